"""The service against its own description, for two minutes; `make test-faults` takes more."""

import os

import pytest

from tests.fuzzing import check_description

SECONDS = int(os.environ.get("GEORESOLVE_FUZZ_SECONDS", "120"))


@pytest.mark.timeout(3 * SECONDS + 240)
def test_the_service_keeps_to_its_description(tmp_path, device):
    # The same requests every time; `make test-faults` looks for others.
    check_description(tmp_path, device, SECONDS, seed=20)
