"""The service against its own description, for longer than `make test` has time for."""

import os

import pytest

from tests.fuzzing import check_description

SECONDS = int(os.environ.get("GEORESOLVE_LONG_FUZZ_SECONDS", "240"))
SEED = int(os.environ.get("GEORESOLVE_LONG_FUZZ_SEED", "21"))
"""Another than that of `make test`; give one of your own to look where nobody has looked."""


@pytest.mark.timeout(3 * SECONDS + 240)
def test_the_service_keeps_to_its_description(tmp_path, device):
    check_description(tmp_path, device, SECONDS, seed=SEED)
