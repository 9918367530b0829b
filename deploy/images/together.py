"""A preload of Dask's nannies: where one worker of a container ends for good, all end.

Docker and Kubernetes start the container anew then. With the others left it would stay up, healthy,
with fewer workers than it was to have.
"""

import signal
from typing import Any


def dask_teardown(nanny: Any) -> None:
    """End the process of all nannies, unless that is what ends this one."""
    # Dask takes its handler away with the first signal.
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.raise_signal(signal.SIGTERM)
