"""A result as a layer of tiles in QGIS."""

import io
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.clients.test_clients import run
from tests.conftest import points
from tests.service.test_results import finished_job

PYTHON = Path("/usr/bin/python3")
"""Debian's, to which its QGIS belongs."""
HALF_M = 20037508.342789244
"""Half the width of web mercator's square."""


def has_qgis():
    command = [PYTHON, "-c", "import qgis.core"]
    return PYTHON.exists() and not subprocess.run(command, capture_output=True).returncode


def image_of(content):
    return np.asarray(Image.open(content).convert("RGBA")).astype(int)


def test_qgis_shows_the_tiles_where_they_belong(service, tmp_path):
    if not has_qgis():
        pytest.skip("QGIS is not installed (apt-get install --no-install-recommends qgis)")
    job = finished_job(service, points(20_000, 91), points(2000, 92), max_distance_m=300_000)
    # The four tiles around the crossing of the equator and Greenwich.
    z, middle = 3, [3, 4]
    side = HALF_M / 2 ** (z - 1)
    picture = tmp_path / "qgis.png"
    run(
        *(PYTHON, Path(__file__).with_name("in_qgis.py")),
        *(f"{str(service.base_url).rstrip('/')}{job}/tiles", picture),
        *(-side, -side, side, side, 512),
        cwd=tmp_path,
        QT_QPA_PLATFORM="offscreen",
        HOME=str(tmp_path),
        # Of this Python, not of Debian's.
        PYTHONPATH="",
    )
    tiles = np.vstack(
        [
            np.hstack(
                [
                    image_of(io.BytesIO(service.get(f"{job}/tiles/{z}/{x}/{y}.png").content))
                    for x in middle
                ]
            )
            for y in middle
        ]
    )
    assert (tiles[..., 3] > 0).sum() > 1000
    shown = image_of(picture)
    assert np.array_equal(shown[..., 3], tiles[..., 3])
    # QGIS keeps colours multiplied by their opacity, in whole numbers.
    assert np.abs(shown - tiles).max() <= 2
