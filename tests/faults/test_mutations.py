"""Damaged files, drawn at random: each is read or refused in words."""

import os

import pytest
from hypothesis import given, seed, settings

from tests.service.test_hostile import ORIGINALS, SETTINGS, check_mutated, mutations

SEED = int(os.environ.get("GEORESOLVE_FAULT_SEED", "2022"))


@pytest.mark.parametrize("name", ORIGINALS)
@seed(SEED)
@settings(SETTINGS, max_examples=60, derandomize=False)
@given(changes=mutations())
def test_mutated_files(service, name, changes):
    check_mutated(service, name, changes)
