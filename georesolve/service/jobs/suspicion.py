"""Which job ends the service that runs it: told by the deaths of the service.

Somebody else may have killed the service, so a death weighs five times as much when the kernel was
killing for want of memory meanwhile. At half of the guilt a job runs alone, so that no other is
blamed for it; at the whole it is failed; and a part of it that comes clears it.
"""

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")
OUT_OF_MEMORY = 5
"""What the death of a service weighs if memory had run out; any other weighs 1."""
ALONE = 5
"""A job under so much suspicion runs alone."""
GUILTY = 10
"""A job under so much suspicion is failed."""


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not tell.

    Those of the whole machine, a container's too: the count outlives whatever is killed.
    """
    try:
        counters = dict(line.split() for line in _COUNTERS.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
