"""Runs and attempts in memory, and the locks of a transaction.

Nothing can wait here, since transactions run one after the other. The locks are kept all the same, to refuse what would
deadlock or overwrite on a store where transactions overlap: a save without a lock, and locks out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import attrgetter

from quiesce.domain.errors import invariant
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.workers import Attempt, AttemptEnd
from quiesce.stores.memory.state import State

_IDLE = (RunStatus.PENDING, RunStatus.WAITING)
_HELD = (RunStatus.RUNNING, RunStatus.SETTLING)
_BY_ID = attrgetter("id")


class Locks:
    """What one transaction has locked: threads first, then runs by ascending id."""

    def __init__(self) -> None:
        self.threads: set[ThreadId] = set()
        self.runs: set[RunId] = set()
        self._highest = ""

    def lock_thread(self, thread_id: ThreadId) -> None:
        """Lock a thread. Raises `InvariantBroken` after a run was locked."""
        if thread_id not in self.threads:
            invariant(not self._highest, "threads are locked before runs")
            self.threads.add(thread_id)

    def lock_run(self, run_id: RunId) -> None:
        """Lock a run. Raises `InvariantBroken` after a run with a greater id was locked."""
        if run_id not in self.runs:
            invariant(self._highest < run_id, "runs are locked by ascending id")
            self._highest = run_id
            self.runs.add(run_id)


class MemoryRuns:
    """Implements `ports.runs.Runs`."""

    def __init__(self, state: State, locks: Locks) -> None:
        self._state = state
        self._locks = locks

    def insert(self, run: Run) -> None:
        """See the port. Nobody else can see the row yet, so it counts as locked wherever it stands in the order."""
        invariant(run.id not in self._state.runs, "a run is inserted once")
        invariant(run.key is None or self.by_key(run.tenant, run.key) is None, "a key names one run of a tenant")
        self._locks.runs.add(run.id)
        self._state.runs.put(run.id, run)

    def get(self, run_id: RunId) -> Run | None:
        """See the port."""
        return self._state.runs.get(run_id)

    def lock(self, run_id: RunId) -> Run | None:
        """See the port."""
        return self.lock_many([run_id]).get(run_id)

    def lock_many(self, run_ids: Collection[RunId]) -> dict[RunId, Run]:
        """See the port."""
        found = [run for run_id in set(run_ids) if (run := self.get(run_id)) is not None]
        return {run.id: run for run in self._locked(found)}

    def save(self, run: Run) -> None:
        """See the port."""
        invariant(run.id in self._locks.runs, "a run is locked before it is saved")
        self._state.runs.put(run.id, run)

    def save_many(self, runs: Sequence[Run]) -> None:
        """See the port."""
        for run in runs:
            self.save(run)

    def by_key(self, tenant: str, key: str) -> Run | None:
        """See the port."""
        return next((r for r in self._state.runs if r.tenant == tenant and r.key == key), None)

    def claimable(self, *, agents: Collection[str], now: Instant, limit: int) -> list[Run]:
        """See the port."""
        return self._locked(
            self._where(
                lambda r: r.agent in agents and r.is_claimable(now, holder_is_live=self._holder_is_live(r, now)),
                limit=limit,
            )
        )

    def unsettled(self, *, now: Instant, limit: int) -> list[Run]:
        """See the port."""

        def is_left(run: Run) -> bool:
            is_drained = run.drain_fence is not None and self._holder_is_live(run, now)
            return run.status is RunStatus.SETTLING and (_has_come(run.settle_at, now) or not is_drained)

        return self._locked(self._where(is_left, limit=limit))

    def overdue(self, *, now: Instant, limit: int) -> list[Run]:
        """See the port."""

        def is_overdue(run: Run) -> bool:
            is_left = run.status in _IDLE or (run.status is RunStatus.RUNNING and not self._holder_is_live(run, now))
            return is_left and _has_come(run.deadline_at, now)

        return self._locked(self._where(is_overdue, limit=limit))

    def active_children(self, run_id: RunId) -> list[Run]:
        """See the port."""
        return self._where(lambda r: r.parent_id == run_id and r.is_active)

    def children(self, run_id: RunId) -> list[Run]:
        """See the port."""
        return self._where(lambda r: r.parent_id == run_id)

    def held_by(self, worker_id: str) -> list[Run]:
        """See the port."""
        return self._where(lambda r: r.worker_id == worker_id and r.status in _HELD)

    def of_thread(self, thread_id: ThreadId, *, limit: int) -> list[Run]:
        """See the port."""
        found = self._where(lambda r: r.thread_id == thread_id)
        return sorted(found, key=attrgetter("number"), reverse=True)[:limit]

    def page(self, *, tenant: str, statuses: Collection[str], before: RunId | None, limit: int) -> list[Run]:
        """See the port."""
        found = self._where(
            lambda r: r.tenant == tenant and (not statuses or r.status in statuses) and (before is None or r.id < before)
        )
        return found[::-1][:limit]

    def next_due(self, *, now: Instant) -> Instant | None:
        """See the port."""
        times = [at for run in self._state.runs for at in _due_times(run) if at is not None and at > now]
        return min(times, default=None)

    def open_attempt(self, attempt: Attempt) -> None:
        """See the port."""
        attempts = self._state.attempts.of(attempt.run_id)
        invariant(attempt.number not in attempts, "an attempt is opened once")
        attempts.put(attempt.number, attempt)

    def close_attempt(self, run_id: RunId, number: int, end: AttemptEnd, at: Instant) -> None:
        """See the port."""
        attempts = self._state.attempts.of(run_id)
        attempt = attempts.get(number)
        if attempt is not None and attempt.end is None:
            attempts.put(number, replace(attempt, end=end, closed_at=at))

    def attempts(self, run_id: RunId) -> list[Attempt]:
        """See the port."""
        return sorted(self._state.attempts.of(run_id), key=attrgetter("number"))

    def _where(self, matches: Callable[[Run], bool], *, limit: int | None = None) -> list[Run]:
        """Return the runs that match, ascending by id and so oldest first."""
        return sorted((run for run in self._state.runs if matches(run)), key=_BY_ID)[:limit]

    def _locked(self, runs: Collection[Run]) -> list[Run]:
        """Lock runs in their order and return them."""
        found = sorted(runs, key=_BY_ID)
        for run in found:
            self._locks.lock_run(run.id)
        return found

    def _holder_is_live(self, run: Run, now: Instant) -> bool:
        worker = None if run.worker_id is None else self._state.workers.get(run.worker_id)
        return worker is not None and worker.is_live(now)


def _has_come(at: Instant | None, now: Instant) -> bool:
    return at is not None and at <= now


def _due_times(run: Run) -> tuple[Instant | None, ...]:
    """Return the instants at which something of this run falls due, whatever it is."""
    if run.status is RunStatus.SETTLING:
        return (run.settle_at,)
    return (run.due_at, run.deadline_at) if run.is_active else ()
