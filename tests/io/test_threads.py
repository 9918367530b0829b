"""Work side by side: its outcomes in order, and nothing left running."""

import time
from contextlib import closing

import pytest

from georesolve.io.threads import encoders, side_by_side


@pytest.mark.parametrize("shared", [None, encoders()], ids=["own threads", "shared threads"])
def test_what_is_left_early_runs_no_further(shared):
    done = []

    def work(number):
        time.sleep(0.05)
        done.append(number)
        return number

    with closing(side_by_side(work, range(1_000), shared)) as outcomes:
        assert [next(outcomes) for _ in range(5)] == [0, 1, 2, 3, 4]
    before = len(done)
    time.sleep(0.3)
    assert len(done) == before < 100


def test_an_error_is_that_of_its_item():
    def work(number):
        if number == 3:
            raise ZeroDivisionError(number)
        return number

    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(side_by_side(work, range(10), encoders()))
    assert list(side_by_side(work, range(3), encoders())) == [0, 1, 2]
