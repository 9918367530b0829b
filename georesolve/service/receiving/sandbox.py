"""What a process that reads files of strangers may still do: Landlock, seccomp, no capabilities.

Landlock (Linux 5.13) leaves it its files and the libraries; seccomp refuses the calls that Landlock
does not see. Both are called through ctypes: what PyPI has for Landlock is an alpha, and libseccomp
is a library of C that not every system has.
"""

import ctypes
import os
import platform
import struct
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

# prctl(2), capset(2), landlock(7): the same numbers on all machines.
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 21, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_GET_ABI, _LANDLOCK_PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
# The first ABI that knows so many rights over files, network and processes outside of the sandbox.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
_NETWORK_RIGHTS = {4: 2}
_SCOPES = {6: 2}

# Instructions of BPF, and what a filter is given: <linux/bpf_common.h>, <linux/seccomp.h>.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CALL, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _UNKNOWN = 0x50000 | 13, 0x50000 | 38  # EACCES, ENOSYS
_CLONE_THREAD = 0x10000
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_FIRST_NEW = 452
"""Calls from this number on are newer than this list: libraries do without them."""
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # Network, and what other processes of the same user listen on.
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "shmctl": (31, 195), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Other programs and processes.
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "kill": (62, 129), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Attributes of files, and files without their paths: Landlock sees neither.
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "truncate": (76, 45),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "ioctl": (16, 29),
    # The kernel.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "pivot_root": (155, 41),
    "chroot": (161, 51), "personality": (135, 92), "fanotify_init": (300, 262),
    "inotify_init1": (294, 26), "memfd_create": (319, 279),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_TGKILL, _PRLIMIT = (234, 131), (302, 261)


class Available(NamedTuple):
    """What the kernel has of both; `landlock` is a version, 0 where there is none."""

    landlock: int
    seccomp: bool

    def __str__(self) -> str:
        """In words, for operators."""
        landlock = f"Landlock (version {self.landlock})" if self.landlock else "no Landlock"
        return f"{landlock}, {'seccomp' if self.seccomp else 'no seccomp'}"


def available() -> Available:
    """Ask the kernel what it has; changes nothing."""
    landlock = _call(_libc.syscall, _LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_GET_ABI)
    has_seccomp = _call(_libc.prctl, _PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    return Available(max(landlock, 0), has_seccomp and platform.machine() in _MACHINES)


def confine(readable: Iterable[Path], writable: Iterable[Path], pipe: int) -> None:
    """Confine this process for good to files that exist, the libraries, and one pipe."""
    # Landlock would hold for one of several.
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"{threads} threads run before the sandbox, which would hold for one")
    has = available()
    _close_all_but(pipe)
    _must(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Where the service runs as root, which could raise its limits again.
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _must(_libc.capset, header, none)
    if has.landlock:
        _restrict_files(has.landlock, readable, writable)
    if has.seccomp:
        instructions = b"".join(struct.pack("=HBBI", *one) for one in _program())
        buffer = ctypes.create_string_buffer(instructions)
        filter = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(buffer))
        _must(_libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter, 0, 0)


def _close_all_but(pipe: int) -> None:
    # The log of the service among them, and what leads back to the server that forks.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard, instead in enumerate((nothing, nothing, pipe)):
        os.dup2(instead, standard)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != pipe:
            # That of the listing has been closed.
            with suppress(OSError):
                os.close(descriptor)


def _restrict_files(abi: int, readable: Iterable[Path], writable: Iterable[Path]) -> None:
    files, network, scopes = (
        (1 << max((bits for first, bits in known.items() if first <= abi), default=0)) - 1
        for known in (_FILE_RIGHTS, _NETWORK_RIGHTS, _SCOPES)
    )
    attributes = struct.pack("=QQQ", files, network, scopes)
    # Each version of the interface knows a longer prefix of the attributes.
    ruleset = _must(_libc.syscall, _LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    rules = dict.fromkeys(libraries(), _READ_FILE | _READ_DIR)
    rules |= dict.fromkeys(readable, _READ_FILE)
    rules |= dict.fromkeys(writable, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & files)
    for path, rights in rules.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, descriptor)
        _must(_libc.syscall, _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
        os.close(descriptor)
    _must(_libc.syscall, _LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


@cache
def libraries() -> tuple[Path, ...]:
    """Folders of code that may be loaded late: modules of Python, shared libraries."""
    paths = sysconfig.get_paths()
    python = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
    return tuple(path for path in map(Path, {*python, *system}) if path.is_dir())


def _program() -> Iterator[tuple[int, int, int, int]]:
    """The filter: operation, how many instructions to skip if it is so and if not, operand."""
    machine, its_name = _MACHINES[platform.machine()]
    yield _LOAD, 0, 0, _MACHINE
    yield _IF_EQUAL, 1, 0, its_name
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _CALL
    # With them those of 32 bits on x86_64, whose numbers are beyond all others.
    yield _IF_AT_LEAST, 0, 1, _FIRST_NEW
    yield _RETURN, 0, 0, _UNKNOWN
    for call in _CALLS.values():
        number = call[machine]
        if number is not None:
            yield _IF_EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _REFUSE
    # Its flags stand in memory, where no filter looks; libraries fall back to clone.
    yield _IF_EQUAL, 0, 1, _CLONE3[machine]
    yield _RETURN, 0, 0, _UNKNOWN
    for call, test, operand in (
        (_CLONE, _IF_ANY_BIT, _CLONE_THREAD),
        # `abort` sends itself a signal.
        (_TGKILL, _IF_EQUAL, os.getpid()),
        (_PRLIMIT, _IF_EQUAL, 0),
    ):
        yield _IF_EQUAL, 0, 4, call[machine]
        yield _LOAD, 0, 0, _FIRST_ARGUMENT
        yield test, 1, 0, operand
        yield _RETURN, 0, 0, _REFUSE
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _ALLOW


def _call(function: Any, *arguments: int | bytes | None) -> int:
    # Of numbers ctypes would pass 32 bits.
    whole = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = function(*whole)
    return result


def _must(function: Any, *arguments: int | bytes | None) -> int:
    result = _call(function, *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
