"""The containers of docker-compose.yml, built and run by a real engine."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import IO

import httpx

from tests.conftest import ROOT, free_port, wait_until

HERE = Path(__file__).parent
TARGETS = ("api", "worker-cpu", "proxy")
BASE = "python:3.13-slim-trixie"
"""By its name: what stands in for it where nothing can be pulled has another digest."""
START_SECONDS = 180


class Stack:
    """A deployment of the profile `cpu`.

    Attributes
    ----------
    services
        Its services, in the order of a request's way.
    environment
        The variables of its `.env`; what changes in them counts from the next `up`.
    seconds
        How long what took.
    """

    services = ("proxy", "api", "scheduler", "worker-cpu")

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.environment = {
            "COMPOSE_PROJECT_NAME": f"georesolve-test-{os.getpid()}",
            "COMPOSE_PROFILES": "cpu",
            "PUBLISH_PORT": str(free_port()),
            "BODY_SECONDS": "2",
            "GEORESOLVE_UPLOAD_BYTES": str(64 << 20),
        }
        self._env_file = folder / ".env"
        self._key = ""

    @property
    def address(self) -> str:
        """Where the proxy is published."""
        return f"127.0.0.1:{self.environment['PUBLISH_PORT']}"

    def build(self) -> None:
        """Build the images."""
        start = time.monotonic()
        for target in TARGETS:
            tag = f"georesolve-{target}"
            base = ("--build-arg", f"PYTHON_IMAGE={BASE}")
            docker(
                "build", "--quiet", "--network=host", *base, "--target", target, "--tag", tag, "."
            )
        self.seconds["build"] = time.monotonic() - start
        for name in ("prometheus", "object-store"):
            stand_in = ("--file", f"{HERE}/{name}.Dockerfile", "--tag", f"georesolve-test-{name}")
            docker("build", "--quiet", "--network=host", *stand_in, str(HERE))

    def up(self) -> None:
        """Start what does not run, and wait until all is healthy."""
        start = time.monotonic()
        # Not --wait: the engine calls a container unhealthy between its end and its next start, and
        # Compose gives up at once. A worker that lost its scheduler is started anew like this.
        self.compose("up", "--detach")
        self.wait_until_healthy()
        self.seconds["up"] = time.monotonic() - start

    def recreate(self, service: str) -> None:
        """Make the container of a service anew: other secrets do not make Compose do so."""
        self.compose("up", "--detach", "--wait", "--force-recreate", "--no-deps", service)

    def compose(self, *arguments: str) -> str:
        """Run `docker compose`; returns its output."""
        lines = [f"{name}={value}" for name, value in self.environment.items()]
        self._env_file.write_text("\n".join(lines))
        files = ("--file", "docker-compose.yml", "--file", f"{HERE}/stand-ins.yml")
        return docker("compose", *files, "--env-file", str(self._env_file), *arguments)

    def create_key(self, name: str) -> str:
        """A key of the role admin, made before or while the service runs."""
        run = ("run", "--rm", "--no-deps", "--no-TTY", "api")
        return self.compose(*run, "keys", "create", name, "--role", "admin").strip()

    def client(self, **options) -> httpx.Client:
        """A client of the service, through the proxy, with a key."""
        self._key = self._key or self.create_key("tests")
        headers = {"Authorization": f"Bearer {self._key}"}
        return httpx.Client(
            base_url=f"http://{self.address}", timeout=60, headers=headers, **options
        )

    def containers(self) -> dict[str, dict]:
        """What the engine knows of each container that goes on, by service."""
        ids = self.compose("ps", "--all", "--quiet").split()
        known = json.loads(docker("inspect", *ids))
        found = {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in known}
        # It ends once there are certificates.
        found.pop("certificates", None)
        return found

    def run_in(self, service: str, *command: str) -> str:
        """The output of a command in a running container."""
        return self.compose("exec", "--no-TTY", service, *command)

    def read_in(self, service: str, path: str) -> str:
        """A file of a running container."""
        return self.run_in(service, "cat", path)

    def wait_until_healthy(self) -> None:
        """Wait until all containers are healthy, some of them perhaps started anew meanwhile."""

        def healthy():
            states = [one["State"] for one in self.containers().values()]
            return all(state.get("Health", {}).get("Status") == "healthy" for state in states)

        wait_until(healthy, seconds=START_SECONDS)

    def back_up(self, path: Path) -> None:
        """Back up the service, which runs."""
        self._piped("exec", "-T", "api", "georesolve", "backup", "-", stdout=path.open("wb"))

    def restore(self, path: Path) -> None:
        """Put a backup into a new volume; there are no containers."""
        docker("volume", "rm", f"{self.environment['COMPOSE_PROJECT_NAME']}_data")
        unpack = "cd /data && tar -x && sha256sum --check --quiet sha256sums"
        inside = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "sh", "api", "-c", unpack)
        self._piped(*inside, stdin=path.open("rb"))

    def _piped(self, *command: str, **streams: IO[bytes]) -> None:
        compose = ("docker", "compose", "--env-file", str(self._env_file))
        done = subprocess.run([*compose, *command], cwd=ROOT, stderr=subprocess.PIPE, **streams)
        for stream in streams.values():
            stream.close()
        assert done.returncode == 0, done.stderr.decode()

    def remove(self) -> None:
        """Remove all, with the volumes of all profiles."""
        self.environment["COMPOSE_PROFILES"] = "*"
        self.compose("down", "--volumes", "--timeout", "5")


def docker(*arguments: str) -> str:
    """Run docker in the repository; returns its output."""
    done = subprocess.run(
        ["docker", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-2000:]}"
    return done.stdout
