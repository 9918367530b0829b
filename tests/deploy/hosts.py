"""Several hosts on one machine: network namespaces with an address each, joined by a switch."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT, kill_with_children

# Of each run its own, so that none is in the way of another, or of what a killed one left behind.
NETWORK = f"10.{64 + (os.getpid() >> 8 & 63)}.{os.getpid() & 255}"


def require_hosts():
    """Skip the test where hosts cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("hosts in network namespaces need root and ip, of the package iproute2")


class Hosts:
    """Hosts that share the disk and reach each other only over their network.

    Attributes
    ----------
    addresses
        Of each host, by name.
    """

    def __init__(self, *names, log):
        self.addresses = {name: f"{NETWORK}.{i}" for i, name in enumerate(names, 1)}
        self._log = log
        self._prefix = f"gr{os.getpid()}"
        self._stack = contextlib.ExitStack()
        self._processes = {}

    def __enter__(self):
        self._add(self._space("switch"))
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        # The machine itself is one more host, for the test to ask from.
        for name, address in (*self.addresses.items(), ("test", f"{NETWORK}.254")):
            if name != "test":
                self._add(self._space(name))
                self._ip(name, "link", "set", "lo", "up")
            self._connect(name, address)
        return self

    def __exit__(self, *error):
        for process in self._processes.values():
            if process.poll() is None:
                kill_with_children(process)
        self._stack.close()

    def start(self, name, *command, **environment):
        """Start the process of a host; ends what was started there before."""
        if name in self._processes:
            kill_with_children(self._processes[name])
        inside = ["ip", "netns", "exec", self._space(name), sys.executable, "-m", *command]
        self._processes[name] = subprocess.Popen(
            inside, cwd=ROOT, stdout=self._log, stderr=self._log, env={**os.environ, **environment}
        )
        return self._processes[name]

    def cut(self, name):
        """Pull the plug of a host: what it sends arrives nowhere, and nobody is told."""
        self._ip("switch", "link", "set", self._port(name), "down")

    def _space(self, name):
        return f"{self._prefix}-{name}"

    def _port(self, name):
        # Names of interfaces have at most 15 letters.
        return f"p-{name}"[:15]

    def _add(self, space):
        _run("ip", "netns", "add", space)
        self._stack.callback(_run, "ip", "netns", "delete", space)

    def _connect(self, name, address):
        cable = f"{self._prefix[:10]}c{address.rpartition('.')[2]}"
        port = ("peer", "name", self._port(name), "netns", self._space("switch"))
        _run("ip", "link", "add", cable, "type", "veth", *port)
        if name == "test":
            _run("ip", "address", "add", f"{address}/24", "dev", cable)
            _run("ip", "link", "set", cable, "up")
        else:
            _run("ip", "link", "set", cable, "netns", self._space(name))
            self._ip(name, "address", "add", f"{address}/24", "dev", cable)
            self._ip(name, "link", "set", cable, "up")
        self._ip("switch", "link", "set", self._port(name), "master", "bridge", "up")

    def _ip(self, name, *arguments):
        _run("ip", "-netns", self._space(name), *arguments)


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
