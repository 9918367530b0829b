"""A private Postgres server, where its programs are installed."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def missing():
    """Why there can be no server here; None when there can."""
    if not _PROGRAMS:
        return "the programs of a Postgres server are not in /usr/lib/postgresql"
    return None


@contextmanager
def running_postgres():
    """A server of its own on a Unix socket; yields a function that makes a database, by URL."""
    programs = _PROGRAMS[-1].parent
    # Not pytest's folder, into which another user cannot look; a socket's path is short, too.
    folder = Path(tempfile.mkdtemp(prefix="georesolve-postgres-"))
    # Postgres refuses to run as root.
    identity = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
    if identity:
        shutil.chown(folder, **identity)

    def call(program, *arguments):
        command = [programs / program, *map(str, arguments)]
        subprocess.run(
            command, check=True, capture_output=True, cwd=folder, timeout=100, **identity
        )

    data = folder / "data"
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        call("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:

            def database(name):
                call("createdb", "-h", folder, "-U", "tester", name)
                return f"postgresql://tester@/{name}?host={folder}"

            yield database
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
