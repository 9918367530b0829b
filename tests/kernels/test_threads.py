"""Searches that are interrupted, and processes that are forked: what comes after them is right."""

import os
import signal
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

import numpy as np
import pytest

from georesolve.kernels import build_index, nearest
from georesolve.kernels.threads_cpu import allowed, in_threads
from tests import oracle
from tests.kernels.point_sets import cities, sphere
from tests.kernels.test_nearest import vectors

SECONDS = 60


# Python tells of an interrupt that falls into a finalizer, and goes on.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <finalize:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("algorithm", ["tree", "brute"])
def test_what_comes_after_an_interrupt_is_right(algorithm, monkeypatch):
    """At random moments of a search, by the time that it has computed."""
    monkeypatch.setattr(allowed, "threads", 4)
    rng = np.random.default_rng(1)
    references, observations = cities(rng, 500), sphere(rng, 20_000)
    index = build_index(*references)
    want = nearest(index, *observations, algorithm="brute").reference
    some = oracle.nearest_rows(vectors(references), vectors(observations)[:, :500], k=1)
    assert np.array_equal(some[0][:, 0], want[:500])
    interrupted = 0

    def search():
        # Others than are compared: what they leave behind would be right by chance.
        nearest(build_index(*observations), *sphere(rng, 30_000), algorithm="tree")
        nearest(index, *sphere(rng, 30_000), algorithm=algorithm)

    def interrupt(*_):
        raise KeyboardInterrupt

    # Compiled before: an interrupted import leaves files of Python's open.
    search()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        # The clock of such signals is coarse, and a search short.
        for turn in range(3000):
            if turn >= 60 and interrupted:
                break
            try:
                # Two blocks: the interrupt may come as late as in the inner one's end.
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, rng.uniform(1e-4, 1e-2))
                    search()
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            assert np.array_equal(nearest(index, *observations).reference, want)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert interrupted


def test_an_exception_leaves_once_no_share_runs():
    events, begun, go = [], threading.Event(), threading.Event()

    def loop(thread, threads):
        # The first share that begins is the one that ends last.
        if threading.current_thread() is caller:
            assert begun.wait(SECONDS)
            raise KeyboardInterrupt
        begun.set()
        assert go.wait(SECONDS)
        events.append("share")

    def call():
        try:
            in_threads(loop, 2)
        except KeyboardInterrupt:
            events.append("left")

    caller = threading.Thread(target=call)
    caller.start()
    caller.join(1)
    go.set()
    caller.join()
    assert events == ["share", "left"]


def test_further_exceptions_wait_for_the_shares_as_well():
    """Signals that arrive one by one while the caller waits."""
    # A signal may arrive within the handler of another one, where no lock may be taken.
    events, arrived = [], SimpleQueue()

    def interrupt(*_):
        events.append("interrupt")
        arrived.put(None)
        raise KeyboardInterrupt

    def loop(thread, threads):
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(SECONDS)
            raise KeyboardInterrupt
        begun.set()
        for _ in range(3):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGVTALRM)
            # A signal just before the caller waits is told once it has waited.
            with suppress(Empty):
                arrived.get(timeout=0.1)
        events.append("share")

    begun = threading.Event()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_threads(loop, 2)
        events.append("left")
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert "interrupt" in events
    assert [event for event in events if event != "interrupt"] == ["share", "left"]


def test_an_exception_in_another_thread_is_raised():
    def loop(thread, threads):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            raise MemoryError("no memory for a share")
        assert begun.wait(SECONDS)

    begun = threading.Event()
    with pytest.raises(MemoryError, match="for a share"):
        in_threads(loop, 2)


def test_shares_do_not_wait_for_threads_that_have_others():
    """All shares are run, each once, though the threads of the pool are busy."""
    go, ran = threading.Event(), []
    busy = [
        threading.Thread(target=in_threads, args=(lambda *_: go.wait(SECONDS), 8)) for _ in range(2)
    ]
    for one in busy:
        one.start()
    in_threads(lambda thread, threads: ran.append(thread), 8)
    go.set()
    for one in busy:
        one.join()
    assert sorted(ran) == list(range(8))


# Python warns of every fork of a process with threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_in_the_middle_of_searches_answers(monkeypatch):
    monkeypatch.setattr(allowed, "threads", 2)
    rng = np.random.default_rng(4)
    index, observations = build_index(*cities(rng, 3_000)), sphere(rng, 30_000)
    want = nearest(index, *observations)
    over = threading.Event()

    def search():
        while not over.is_set():
            nearest(build_index(*observations), *observations)

    searching = threading.Thread(target=search)
    searching.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if not pid:
                # A thread that is waited for in vain ends the process, not the test.
                signal.alarm(SECONDS)
                answer = nearest(index, *observations)
                os._exit(any(a.tobytes() != b.tobytes() for a, b in zip(answer, want, strict=True)))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        over.set()
        searching.join()
