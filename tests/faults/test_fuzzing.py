"""The service against its own description, for longer than `make test` has time for."""

import os
import secrets

import pytest

from tests.fuzzing import check_description

SECONDS = int(os.environ.get("GEORESOLVE_LONG_FUZZ_SECONDS", "300"))


@pytest.mark.timeout(3 * SECONDS + 240)
def test_the_service_keeps_to_its_description(tmp_path, device):
    check_description(tmp_path, device, SECONDS, seed=secrets.randbits(32))
