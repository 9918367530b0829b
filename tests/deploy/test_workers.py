"""The workers of a container of the profile `cpu`, which is started anew when they end."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Scheduler

from tests.conftest import ROOT

IMAGES = ROOT / "deploy" / "images"


@pytest.mark.parametrize("how", ["one is lost", "SIGTERM"])
def test_all_end_together(how, tmp_path):
    """Where one loses its scheduler: with the others the container would stay up, but too small."""

    async def end():
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            command = ["sh", IMAGES / "worker-cpu.sh", "--preload-nanny", IMAGES / "together.py"]
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            with (tmp_path / "log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, scheduler.address, "--local-directory", tmp_path],
                    env=os.environ | {"WORKERS": "2", "PATH": path},
                    stderr=log,
                )
            try:
                async with asyncio.timeout(300):
                    while len(scheduler.workers) < 2:
                        await asyncio.sleep(0.1)
                    if how == "SIGTERM":
                        process.terminate()
                    else:
                        scheduler.stream_comms[min(scheduler.workers)].abort()
                    while process.poll() is None:
                        await asyncio.sleep(0.1)
            finally:
                process.kill()
                process.wait()
        return process.returncode

    assert asyncio.run(end()) == 0
