"""The group writer: one thread that commits together what has gathered while it committed before.

Natural batching: there is no timer. A write that finds the thread idle is committed at once; under load each commit carries
what arrived during the last one, up to a bound. What was handed in first is applied first. All who wait on one event loop
are told with a single call to it. Knows nothing of databases: `commit` applies a batch and settles its jobs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from quiesce.domain.errors import InvariantBroken, StoreUnavailable
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction

T = TypeVar("T")
J = TypeVar("J", bound="Job")


class Job:
    """Work handed in, and who waits for it: a task of an event loop, or a thread."""

    __slots__ = ("_is_done", "_refuse", "_tell", "loop")

    def __init__(self, future: asyncio.Future[T] | concurrent.futures.Future[T]) -> None:
        self.loop = future.get_loop() if isinstance(future, asyncio.Future) else None
        self._is_done: Callable[[], bool] = future.done
        self._refuse: Callable[[BaseException], None] = future.set_exception
        self._tell: Callable[[], None] | None = None

    def fail(self, error: BaseException) -> None:
        """Record that it failed, whatever was recorded before."""
        self._tell = partial(self._refuse, error)

    def resolve(self) -> None:
        """Tell who waits, unless they have gone. Runs on their event loop, after the commit."""
        if self._is_done():
            return
        if self._tell is None:
            self.fail(InvariantBroken("a batch settles each of its jobs"))
        if self._tell is not None:
            self._tell()


class WriteJob(Job):
    """A write value."""

    __slots__ = ("_answer", "write")

    def __init__(self, write: RunWrite, future: asyncio.Future[WriteOutcome]) -> None:
        super().__init__(future)
        self.write = write
        self._answer = future.set_result

    def settle(self, outcome: WriteOutcome) -> None:
        """Record the answer."""
        self._tell = partial(self._answer, outcome)


class DecisionJob(Job, Generic[T]):
    """A function to be run in a transaction."""

    __slots__ = ("_answer", "_fn")

    def __init__(self, fn: Callable[[Transaction], T], future: asyncio.Future[T] | concurrent.futures.Future[T]) -> None:
        super().__init__(future)
        self._fn = fn
        self._answer: Callable[[T], None] = future.set_result

    def decide(self, tx: Transaction) -> None:
        """Run the function and record its value. Raises what it raises."""
        self._tell = partial(self._answer, self._fn(tx))


class GroupWriter(Generic[J]):
    """Owns the thread. `J` is the kind of jobs that `commit` takes."""

    def __init__(
        self,
        commit: Callable[[Sequence[J]], None],
        *,
        name: str,
        batch_max: int,
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Start the thread.

        `idle` is asked before each wait and runs on the thread; it returns the seconds after which it wants to be asked
        again although nothing was handed in, or None.
        """
        self._commit = commit
        self._idle = idle
        self._batch_max = batch_max
        self._queue: queue.SimpleQueue[J | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: J) -> None:
        """Hand in a job. Raises `StoreUnavailable` after `close`."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable("the store is closed")
            self._queue.put(job)

    def wake(self) -> None:
        """Have `idle` asked again soon. Safe from any thread."""
        self._queue.put(None)

    def close(self) -> None:
        """Finish what was handed in and end the thread. Idempotent; blocks."""
        with self._lock:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while not (self._is_closed and self._queue.empty()):
            if batch := self._gather():
                try:
                    self._commit(batch)
                except BaseException as error:  # noqa: BLE001 - the thread must outlive whatever went wrong; it is told
                    for job in batch:
                        job.fail(error)
                publish(batch)

    def _gather(self) -> list[J]:
        """Wait for a job and return it with all others that are there by then."""
        batch: list[J] = []
        try:
            job = self._queue.get(timeout=self._idle())
            while True:
                if job is not None:
                    batch.append(job)
                    if len(batch) >= self._batch_max:
                        break
                job = self._queue.get_nowait()
        except queue.Empty:
            pass
        return batch


def publish(batch: Sequence[Job]) -> None:
    """Tell all who wait for these jobs, each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in batch:
        if job.loop is None:
            job.resolve()
        else:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:
            continue  # that loop was closed meanwhile: nobody waits any more


def _resolve(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.resolve()
