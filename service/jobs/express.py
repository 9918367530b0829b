"""Small synchronous requests, answered without a job: a worker takes one batch of them at a time.

A request goes to an idle worker at once, alone. While all are busy, those with the same references
and options gather, and the next worker that is free answers them with one search. Owners
take turns, however many requests one of them has waiting.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from georesolve.service.errors import NotReady, Problem, QueueFull, TooManyJobs
from georesolve.workers.express import ExpressAnswer, NotAtOnce, ResolveAtOnce
from georesolve.workers.jobs import Job

logger = logging.getLogger(__name__)

_BATCH = 64
"""Requests that one search answers: enough to share its cost, few enough to answer soon."""
_MOST_UNANSWERED = 16 * _BATCH
"""Each has its sets in memory."""
_MOST_OF_ONE_KEY = 4 * _BATCH
_ATTEMPTS = 3
_PATIENCE_SECONDS = 10.0
"""A worker that has a batch for longer is stopped or in trouble: another one gets its requests."""
_DEADLINE_SECONDS = 30.0


@dataclass(eq=False)
class _Request:
    job: Job
    owner: str
    turn: int
    answer: asyncio.Future[ExpressAnswer]
    attempts: int = 0
    kind: Any = field(init=False)

    def __post_init__(self) -> None:
        # What may share a search; a set against itself has rows that mean something.
        own = self.job.id if self.job.options.exclude_self else ""
        self.kind = (self.job.references.sha256, self.job.options, own)


class ExpressLane:
    """The small requests of one service.

    Parameters
    ----------
    resolve_at_once
        The way to the workers, from `workers.express`.
    """

    def __init__(self, resolve_at_once: ResolveAtOnce) -> None:
        self._resolve_at_once = resolve_at_once
        self._workers: list[str] = []
        self._calls: dict[str, asyncio.Task[list[ExpressAnswer]]] = {}
        self._waiting: list[_Request] = []
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: set[_Request] = set()
        self._is_closed = False

    def notice(self, workers: list[str]) -> None:
        """Take note of the addresses of the workers that there are now."""
        self._workers = workers
        for worker, call in self._calls.items():
            if worker not in workers:
                # The call itself would learn of it when its connection times out.
                call.cancel()
        self._send()

    def close(self) -> None:
        """Refuse what waits, what workers have in hand, and what comes from now on."""
        self._is_closed = True
        for request in self._unanswered:
            _refuse(request, _cluster_lost())
        for call in self._calls.values():
            call.cancel()

    async def resolve(self, job: Job, owner: str) -> ExpressAnswer:
        """The answer to a small job of an owner.

        Raises
        ------
        NotAtOnce, NotResident
            When only a job can give it, or the worker whose turn it is has to load its references
            for long.
        NotReady
            When workers are lost or do not answer, again and again, or the lane is closed.
        QueueFull, TooManyJobs
            When too many wait for theirs: of all owners, or of this one.
        """
        if self._is_closed:
            raise _cluster_lost()
        if len(self._unanswered) >= _MOST_UNANSWERED:
            raise QueueFull(
                f"{len(self._unanswered)} small requests wait for their answers, and "
                f"{_MOST_UNANSWERED} may: come again later",
                headers={"Retry-After": "1"},
            )
        own = [request for request in self._unanswered if request.owner == owner]
        if owner and len(own) >= _MOST_OF_ONE_KEY:
            raise TooManyJobs(
                f"{len(own)} small requests of this key wait for their answers, and "
                f"{_MOST_OF_ONE_KEY} may: wait for one before you send the next",
                headers={"Retry-After": "1"},
            )
        # One turn after the last of its owner, and not before the one that is on.
        turn = 1 + max([self._turn, *(request.turn for request in own)])
        request = _Request(job, owner, turn, asyncio.get_running_loop().create_future())
        self._unanswered.add(request)
        try:
            self._waiting.append(request)
            self._send()
            async with asyncio.timeout(_DEADLINE_SECONDS):
                return await request.answer
        except TimeoutError:
            detail = f"no worker has answered within {_DEADLINE_SECONDS:g} s: try again"
            raise NotReady(detail, headers={"Retry-After": "5"}) from None
        finally:
            self._unanswered.discard(request)

    def _send(self) -> None:
        for worker in self._workers:
            if worker in self._calls:
                continue
            batch = self._next_batch()
            if not batch:
                break
            jobs = [request.job for request in batch]
            self._calls[worker] = asyncio.create_task(self._resolve_at_once(worker, jobs))
            task = asyncio.create_task(self._answer(worker, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> list[_Request]:
        """Those whose turn it is, and who may share a search with the first of them."""
        # Nobody waits any more for an answer that is done: its client has gone.
        waiting = [request for request in self._waiting if not request.answer.done()]
        waiting.sort(key=lambda request: request.turn)
        batch = [request for request in waiting if request.kind == waiting[0].kind][:_BATCH]
        taken = set(batch)
        self._waiting = [request for request in waiting if request not in taken]
        self._turn = batch[0].turn if batch else self._turn
        return batch

    async def _answer(self, worker: str, batch: list[_Request]) -> None:
        call = self._calls[worker]
        await asyncio.wait([call], timeout=_PATIENCE_SECONDS)
        if is_late := not call.done():
            # The worker keeps its call, and gets no other until that ends.
            late = OSError(f"no answer within {_PATIENCE_SECONDS:g} s")
            self._give_up(worker, batch, late)
            self._send()
            await asyncio.wait([call])
        del self._calls[worker]
        error = OSError("the worker is gone") if call.cancelled() else call.exception()
        if error is None:
            for request, answer in zip(batch, call.result(), strict=True):
                if not request.answer.done():
                    request.answer.set_result(answer)
        elif not is_late:
            self._give_up(worker, batch, error)
        self._send()

    def _give_up(self, worker: str, batch: list[_Request], error: BaseException) -> None:
        if isinstance(error, OSError):
            logger.warning("worker %s did not answer small requests: %s", worker, error)
            self._workers = [other for other in self._workers if other != worker]
        for request in batch:
            self._retry(request, error, was_alone=len(batch) == 1)

    def _retry(self, request: _Request, error: BaseException, *, was_alone: bool) -> None:
        """Queue a request again, now alone: one that is at fault takes no other one with it."""
        if request.answer.done():
            return
        request.attempts += 1
        if isinstance(error, OSError) and request.attempts == _ATTEMPTS:
            detail = "workers that had this request were lost or did not answer: try again"
            _refuse(request, NotReady(detail, headers={"Retry-After": "5"}))
        elif isinstance(error, NotAtOnce) or (was_alone and not isinstance(error, OSError)):
            _refuse(request, error)
        else:
            request.kind = (request.kind, request.job.id)
            self._waiting.append(request)


def _cluster_lost() -> Problem:
    return NotReady("the cluster was lost: try again", headers={"Retry-After": "5"})


def _refuse(request: _Request, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
