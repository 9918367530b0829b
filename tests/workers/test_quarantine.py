"""Whose chunk it was that ended a worker."""

import threading

import pytest

from georesolve.engine.plan import Chunk
from georesolve.workers.quarantine import Suspects, WorkerLost

ONE, OTHER = Chunk(0, 10), Chunk(10, 20)


def test_one_is_on_trial_at_a_time_of_all_jobs():
    trial = threading.Lock()
    ours, theirs = Suspects(trial), Suspects(trial)
    for suspects in (ours, theirs):
        suspects.add(ONE)
        suspects.add(OTHER)
    assert ours.call(0) == [ONE]
    assert ours.call(0) == theirs.call(0.01) == []
    ours.dismiss(OTHER)
    assert theirs.call(0) == [], "another one ended"
    ours.dismiss(ONE)
    assert theirs.call(0) == [ONE]
    assert (len(ours), len(theirs)) == (1, 2), "those on trial are suspects, too"
    theirs.close()
    assert ours.call(0) == [OTHER], "whatever became of the other job"


def test_who_is_lost_in_its_trials_is_guilty():
    suspects = Suspects(threading.Lock())
    for chunk in (ONE, OTHER):
        suspects.blame(chunk)
        suspects.add(chunk)
    assert suspects.call(0) == [ONE]
    suspects.dismiss(ONE)
    suspects.blame(ONE)
    suspects.add(ONE)
    assert suspects.call(0) == [ONE], "what was lost in a trial is tried again at once"
    suspects.dismiss(ONE)
    with pytest.raises(WorkerLost, match="observations 0 to 9 ended their workers in 3 attempts"):
        suspects.blame(ONE)
    assert suspects.call(0) == [OTHER]
