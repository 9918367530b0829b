"""How the cluster is: told every other second by the runner that has it, read by all fronts."""

import time
from dataclasses import dataclass

from pydantic import TypeAdapter

from georesolve.service.store.store import Store
from georesolve.workers.estimate import Capacity

_SILENCE_SECONDS = 10.0
"""A runner that has told nothing for longer is taken for dead."""


@dataclass(frozen=True)
class ClusterState:
    """How the cluster of a runner is.

    Attributes
    ----------
    trouble
        Why it cannot be asked, in words; None while it can.
    silence_seconds
        Time since its scheduler last answered; 0 while there is no cluster.
    device
        What its workers compute on; None while there is no cluster.
    workers
        How many have passed their check.
    dashboard_url
        Where the Dask dashboard answers, or None.
    capacity
        What estimates go by; None while it is not known.
    """

    trouble: str | None
    silence_seconds: float = 0.0
    device: str | None = None
    workers: int = 0
    dashboard_url: str | None = None
    capacity: Capacity | None = None


_STATE = TypeAdapter(ClusterState)


class ClusterView:
    """The cluster as this process knows it: what the runner told last.

    Attributes
    ----------
    state
        That; of the time before this process began nothing counts.
    metrics
        What the runner has counted, in the text format of Prometheus.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._beat: int | None = None
        self._heard_at: float | None = None
        self.metrics = ""
        self.state = ClusterState("no runner has told yet of its cluster")

    def read(self) -> None:
        """Read what the runner told, when something in the database has changed."""
        told = self._store.told()
        if self._beat not in (None, told.beat) and told.cluster:
            self.state = _STATE.validate_python(told.cluster)
            self.metrics, self._heard_at = told.metrics, time.monotonic()
        self._beat = told.beat

    @property
    def trouble(self) -> str | None:
        """Why the cluster cannot be asked, in words; None while it can."""
        if self.state.trouble is not None or self._heard_at is None:
            return self.state.trouble
        seconds = time.monotonic() - self._heard_at
        # On a full disk it cannot tell.
        if seconds < _SILENCE_SECONDS or self._store.writable.trouble() is not None:
            return None
        return f"the runner has told nothing of its cluster for {seconds:.0f} s"

    @property
    def waiting(self) -> str | None:
        """Why no job on the cluster gets on, in words; None while it can be asked."""
        trouble = self.trouble
        return None if trouble is None else f"waiting for workers: {trouble}"
