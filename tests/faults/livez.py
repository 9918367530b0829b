"""How long each front takes to answer `/livez`, as a process of its own sees it.

The siege has thirty threads: one of them would measure how long it waits for its own turn.
"""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

PAUSE_SECONDS = 0.05
LONGEST_SECONDS = 60
CONNECTIONS = 16
"""So many are opened at a time: fronts share them, and one of them should be the front's."""


class Answer(NamedTuple):
    """One question, answered or broken off by the end of its front."""

    front: str
    pid: int
    start: float
    end: float


class LivezWatch:
    """Asks every front of a service, again and again, until it is closed.

    Attributes
    ----------
    service
        Number of the process whose children the fronts are; may change.
    answers
        All of them, once it is closed.
    """

    def __init__(self, url, pid, fronts):
        context = multiprocessing.get_context("spawn")
        self.answers = []
        self.service = context.Value("i", pid)
        self._stop = context.Event()
        self._told, telling = context.Pipe(duplex=False)
        arguments = (url, fronts, self.service, self._stop, telling)
        self._process = context.Process(target=_watch, args=arguments)
        self._process.start()
        telling.close()

    def close(self):
        """Ask no more, and take what was answered."""
        self._stop.set()
        self.answers = self._told.recv()
        self._process.join()


def _watch(url, fronts, service, stop, telling):
    with ThreadPoolExecutor(fronts) as threads:
        names = [f"front {number + 1}" for number in range(fronts)]
        tasks = [threads.submit(_watch_front, name, url, service, stop) for name in names]
        telling.send([answer for task in tasks for answer in task.result()])


def _watch_front(name, url, service, stop):
    answers, connection, pid = [], None, 0
    while not stop.wait(PAUSE_SECONDS):
        if connection is None:
            connection, pid = _connected(name, urlsplit(url), service.value)
            continue
        start = time.monotonic()
        is_answered = _is_answered(connection)
        answers.append(Answer(name, pid, start, time.monotonic()))
        if not is_answered:
            connection = None
    return answers


def _is_answered(connection):
    try:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException):
        connection.close()
        return False
    assert answer.status == 200, answer.status
    return True


def _connected(name, url, service):
    """A connection that a front has taken, and the front; None where there is none now."""
    found, others = (None, 0), []
    with suppress(psutil.Error, OSError):
        # None while it starts.
        [front] = [one for one in psutil.Process(service).children() if one.name() == name] or [
            None
        ]
        while front and found[0] is None and len(others) < CONNECTIONS:
            one = HTTPConnection(url.hostname, url.port, timeout=LONGEST_SECONDS)
            one.connect()
            others.append(one)
            # A front takes one that others have not taken within some milliseconds.
            time.sleep(PAUSE_SECONDS)
            taken = {each.raddr for each in front.net_connections("tcp")}
            for other in others:
                if other.sock.getsockname() in taken:
                    found = other, front.pid
    for other in others:
        if other is not found[0]:
            other.close()
    return found
