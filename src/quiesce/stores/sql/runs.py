"""Runs and attempts over named queries.

What is fixed at submission (question, bindings, key, deadline, limits, place in the thread) is written once and not touched
by a save. A save needs a lock held by the same transaction: nothing else keeps two deciders from overwriting each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from quiesce.domain.budgets import Budget
from quiesce.domain.errors import invariant
from quiesce.domain.ids import Fence, RunId, ThreadId, WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.runs import Durability, Run, RunStatus, Wait
from quiesce.domain.streams import Visibility
from quiesce.domain.workers import Attempt, AttemptEnd
from quiesce.stores.sql.codec import EMPTY_LIST, EMPTY_OBJECT, decode, encode
from quiesce.stores.sql.queries import Params, Queries, Row

REACH: Final = 256
"""How many candidates beyond its limit a claim or sweep looks at: those that other transactions have locked."""


class SqlRuns:
    """Implements `ports.runs.Runs`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._locked: set[RunId] = set()

    def insert(self, run: Run) -> None:
        """See the port. Nobody else can see the row yet, so it counts as locked."""
        self._queries.run(
            "insert_run",
            thread_id=run.thread_id,
            number=run.number,
            tenant=run.tenant,
            subject=run.subject,
            key=run.key,
            fingerprint=run.fingerprint,
            agent=run.agent,
            input=run.input,
            bindings=run.bindings,
            parent_id=run.parent_id,
            root_id=run.root_id,
            deadline_at=run.deadline_at,
            durability=run.durability.value,
            visibility=run.visibility.value,
            created_at=run.created_at,
            **_changing(run),
        )
        self._locked.add(run.id)

    def get(self, run_id: RunId) -> Run | None:
        """See the port."""
        row = self._queries.one("get_run", id=run_id)
        return None if row is None else run_of(row)

    def lock(self, run_id: RunId) -> Run | None:
        """See the port."""
        row = self._queries.one("lock_run", id=run_id)
        return None if row is None else self._held([row])[0]

    def lock_many(self, run_ids: Collection[RunId]) -> dict[RunId, Run]:
        """See the port."""
        rows = self._queries.many_of("lock_runs", [{"id": run_id} for run_id in sorted(set(run_ids))])
        return {run.id: run for run in self._held(rows)}

    def save(self, run: Run) -> None:
        """See the port."""
        self.save_many([run])

    def save_many(self, runs: Sequence[Run]) -> None:
        """See the port."""
        invariant(self._locked.issuperset(run.id for run in runs), "a run is locked before it is saved")
        self._queries.run_many("save_runs", [_changing(run) for run in runs])

    def by_key(self, tenant: str, key: str) -> Run | None:
        """See the port."""
        row = self._queries.one("run_by_key", tenant=tenant, key=key)
        return None if row is None else run_of(row)

    def claimable(self, *, agents: Collection[str], now: Instant, limit: int) -> list[Run]:
        """See the port."""
        names = sorted(set(agents))
        return self._held(self._queries.many("claimable_runs", agents=names, now=now, limit=limit, reach=limit + REACH))

    def unsettled(self, *, now: Instant, limit: int) -> list[Run]:
        """See the port."""
        return self._held(self._queries.many("unsettled_runs", now=now, limit=limit))

    def overdue(self, *, now: Instant, limit: int) -> list[Run]:
        """See the port."""
        return self._held(self._queries.many("overdue_runs", now=now, limit=limit, reach=limit + REACH))

    def active_children(self, run_id: RunId) -> list[Run]:
        """See the port."""
        return [run_of(row) for row in self._queries.many("active_children", parent_id=run_id)]

    def children(self, run_id: RunId) -> list[Run]:
        """See the port."""
        return [run_of(row) for row in self._queries.many("children", parent_id=run_id)]

    def held_by(self, worker_id: str) -> list[Run]:
        """See the port."""
        return [run_of(row) for row in self._queries.many("held_runs", worker_id=worker_id)]

    def of_thread(self, thread_id: ThreadId, *, limit: int) -> list[Run]:
        """See the port."""
        return [run_of(row) for row in self._queries.many("runs_of_thread", thread_id=thread_id, limit=limit)]

    def page(self, *, tenant: str, statuses: Collection[str], before: RunId | None, limit: int) -> list[Run]:
        """See the port."""
        wanted = sorted({RunStatus(status).value for status in statuses} or {status.value for status in RunStatus})
        rows = self._queries.many("page_of_runs", tenant=tenant, statuses=wanted, before=before, limit=limit)
        return [run_of(row) for row in rows]

    def next_due(self, *, now: Instant) -> Instant | None:
        """See the port."""
        row = self._queries.one("next_due", now=now)
        return None if row is None or row[0] is None else Instant(row[0])

    def open_attempt(self, attempt: Attempt) -> None:
        """See the port."""
        self._queries.run(
            "open_attempt",
            run_id=attempt.run_id,
            number=attempt.number,
            fence=attempt.fence,
            worker_id=attempt.worker_id,
            worker_name=attempt.worker_name,
            opened_at=attempt.opened_at,
            closed_at=attempt.closed_at,
            end=None if attempt.end is None else attempt.end.value,
        )

    def close_attempt(self, run_id: RunId, number: int, end: AttemptEnd, at: Instant) -> None:
        """See the port."""
        self._queries.run("close_attempt", run_id=run_id, number=number, end=end.value, at=at)

    def attempts(self, run_id: RunId) -> list[Attempt]:
        """See the port."""
        return [_attempt_of(row) for row in self._queries.many("attempts_of_run", run_id=run_id)]

    def _held(self, rows: Sequence[Row]) -> list[Run]:
        runs = [run_of(row) for row in rows]
        self._locked.update(run.id for run in runs)
        return runs


def run_of(row: Row) -> Run:
    """Map a row of the table `run`, whose columns stand in the order of the fields."""
    (id_, thread_id, number, tenant, subject, key, fingerprint, agent, input_, bindings, parent_id, root_id) = row[:12]
    (status, fence, worker_id, attempt, drain_fence, settle_at, waits, due_at, deadline_at) = row[12:21]
    (durability, visibility, budget, created_at, ended_at) = row[21:]
    return Run(
        id=id_,
        thread_id=thread_id,
        number=number,
        tenant=tenant,
        subject=subject,
        key=key,
        fingerprint=fingerprint,
        agent=agent,
        input=input_,
        bindings=bindings,
        parent_id=parent_id,
        root_id=root_id,
        status=RunStatus(status),
        fence=fence,
        worker_id=worker_id,
        attempt=attempt,
        drain_fence=drain_fence,
        settle_at=settle_at,
        waits=() if waits == EMPTY_LIST else tuple(Wait.from_json(wait) for wait in decode(waits)),
        due_at=due_at,
        deadline_at=deadline_at,
        durability=Durability(durability),
        visibility=Visibility(visibility),
        budget=Budget() if budget == EMPTY_OBJECT else Budget.from_json(decode(budget)),
        created_at=created_at,
        ended_at=ended_at,
    )


def _changing(run: Run) -> Params:
    """Return the id and the columns that a run's life changes."""
    return {
        "id": run.id,
        "status": run.status.value,
        "fence": run.fence,
        "worker_id": run.worker_id,
        "attempt": run.attempt,
        "drain_fence": run.drain_fence,
        "settle_at": run.settle_at,
        "waits": encode([wait.to_json() for wait in run.waits]) if run.waits else EMPTY_LIST,
        "due_at": run.due_at,
        "budget": encode(run.budget.to_json()) if run.budget.allowances else EMPTY_OBJECT,
        "ended_at": run.ended_at,
    }


def _attempt_of(row: Row) -> Attempt:
    run_id, number, fence, worker_id, worker_name, opened_at, closed_at, end = row
    return Attempt(
        run_id=RunId(run_id),
        number=number,
        fence=Fence(fence),
        worker_id=WorkerId(worker_id),
        worker_name=worker_name,
        opened_at=Instant(opened_at),
        closed_at=closed_at,
        end=None if end is None else AttemptEnd(end),
    )
