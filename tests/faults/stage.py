"""The processes of a deployment, each of which can be killed and started again at any moment."""

import contextlib
from collections import Counter

import psutil

from tests.conftest import (
    free_port,
    kill_with_children,
    roles_of,
    start_scheduler,
    start_service,
    start_worker,
)
from tests.postgres import running_postgres


class Stage:
    """A service on a fixed port, with a cluster of its own.

    Attributes
    ----------
    kills
        How often what was killed.
    """

    cluster_flags = ("--workers", "2", "--fronts", "2")

    def __init__(self, folder, device):
        self.data_dir = folder / "data"
        self.kills = Counter()
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.log = (folder / "log").open("ab")
        self._flags = ["--device", device, "--port", self._port, *self.cluster_flags]
        self._processes = {}
        for name in self._starters():
            self._start(name)

    def _starters(self):
        """How to start each process that an init system would keep alive."""
        return {"service": lambda: start_service(self.data_dir, self.log, *self._flags)}

    def _start(self, name):
        self._processes[name] = self._starters()[name]()

    @property
    def pid(self):
        """The process of the service itself."""
        return self._processes["service"].pid

    @property
    def victims(self):
        """What can be killed, and how."""
        return {
            "the service alone": lambda: self._kill("service", alone=True),
            "the service with its children": lambda: self._kill("service"),
            "a worker": lambda: self._kill_worker("service", 0),
            "another worker": lambda: self._kill_worker("service", 1),
            "a front": lambda: self._kill_role("service", "front"),
            "the runner": lambda: self._kill_role("service", "runner"),
        }

    def kill(self, name):
        """Kill a victim, and start it again unless another process does; False if it is not up."""
        is_done = self.victims[name]()
        self.kills[name] += is_done
        return is_done

    def keep_alive(self):
        """Start again whatever has ended by itself, as an init system does."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                self._start(name)

    def _kill(self, name, alone=False):
        process = self._processes[name]
        if process.poll() is None:
            if alone:
                process.kill()
                process.wait()
            else:
                kill_with_children(process)
        self._start(name)
        return True

    def _kill_worker(self, name, number):
        """Kill a worker below a process, which has to notice and start another."""
        workers = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._processes[name].pid).children(recursive=True)
            workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if len(workers) <= number:
            return False
        workers[number].kill()
        return True

    def _kill_role(self, name, role):
        """Kill a process of a service, which has to start another one."""
        found = []
        with contextlib.suppress(psutil.Error):
            found = roles_of(self._processes[name], role)
        if not found:
            return False
        found[0].kill()
        return True

    def settle(self):
        """Let one start alone, which removes what was left by what was killed."""
        self._kill("service")

    def close(self):
        """End everything."""
        for process in self._processes.values():
            if process.poll() is None:
                kill_with_children(process)
        self.log.close()


class PostgresStage(Stage):
    """Two services, each with a front and a runner, on one folder and one Postgres database.

    Clients ask the first one; either runs the jobs.
    """

    def __init__(self, folder, device):
        self._postgres = contextlib.ExitStack()
        url = self._postgres.enter_context(running_postgres())("kills")
        self.cluster_flags = ("--workers", "1", "--database-url", url)
        super().__init__(folder, device)

    def _starters(self):
        return super()._starters() | {
            "other service": lambda: start_service(
                self.data_dir, self.log, *self._flags, "--port", "0"
            )
        }

    @property
    def victims(self):
        """What can be killed, and how."""
        return {
            "a service": lambda: self._kill("service"),
            "another service": lambda: self._kill("other service"),
            "a front": lambda: self._kill_role("service", "front"),
            "a runner": lambda: self._kill_role("service", "runner"),
            "another runner": lambda: self._kill_role("other service", "runner"),
        }

    def settle(self):
        """Let one start alone, which removes what was left by what was killed."""
        other = self._processes.pop("other service")
        if other.poll() is None:
            kill_with_children(other)
        super().settle()

    def close(self):
        """End everything."""
        super().close()
        self._postgres.close()


class ExternalStage(Stage):
    """A service that computes on a scheduler and two workers which it does not own."""

    def __init__(self, folder, device):
        self._scheduler_port = free_port()
        self.cluster_flags = ("--scheduler", f"tcp://127.0.0.1:{self._scheduler_port}")
        super().__init__(folder, device)

    def _starters(self):
        return super()._starters() | {
            "scheduler": lambda: start_scheduler(self._scheduler_port, self.log),
            "node 1": lambda: start_worker(self._scheduler_port, self.log),
            "node 2": lambda: start_worker(self._scheduler_port, self.log),
        }

    @property
    def victims(self):
        """What can be killed, and how."""
        return {
            "the service": lambda: self._kill("service"),
            "the scheduler": lambda: self._kill("scheduler"),
            "a node": lambda: self._kill("node 1"),
            "a worker": lambda: self._kill_worker("node 2", 0),
        }
