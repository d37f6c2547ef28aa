"""Runs and their attempts, inside one transaction. Thin on purpose: decisions are made above."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.runs import Run
from quiesce.domain.workers import Attempt, AttemptEnd


class Runs(Protocol):
    """Rows of runs and attempts."""

    def insert(self, run: Run) -> None:
        """Add a run. The caller has checked key and thread under the thread's lock."""

    def get(self, run_id: RunId) -> Run | None:
        """Return a run without locking it."""

    def lock(self, run_id: RunId) -> Run | None:
        """Return a run, locked until the end of the transaction."""

    def lock_many(self, run_ids: Collection[RunId]) -> dict[RunId, Run]:
        """Lock the runs in ascending order of id and return those that exist."""

    def save(self, run: Run) -> None:
        """Store all fields of a run that this transaction has locked."""

    def save_many(self, runs: Sequence[Run]) -> None:
        """Store several locked runs."""

    def by_key(self, tenant: str, key: str) -> Run | None:
        """Return the run submitted under an idempotency key."""

    def claimable(self, *, agents: Collection[str], now: Instant, limit: int) -> list[Run]:
        """Return, locked, up to `limit` runs that a worker may take, oldest first.

        Claimable: pending, waiting with `due_at <= now`, or running under a worker whose lease has `lease_expires_at <=
        now` or that no longer exists; and of one of `agents`. Runs locked by another transaction are passed over.
        """

    def unsettled(self, *, now: Instant, limit: int) -> list[Run]:
        """Return, locked, settling runs that nobody finishes: `settle_at <= now`, or no live holder drains them."""

    def overdue(self, *, now: Instant, limit: int) -> list[Run]:
        """Return, locked, pending and waiting runs (and running ones without a live holder) with `deadline_at <= now`."""

    def active_children(self, run_id: RunId) -> list[Run]:
        """Return the direct children that are neither terminal nor settling, ascending by id. Not locked."""

    def children(self, run_id: RunId) -> list[Run]:
        """Return all direct children, ascending by id. Not locked."""

    def held_by(self, worker_id: str) -> list[Run]:
        """Return the runs with this `worker_id` that run or settle, ascending by id. Not locked."""

    def of_thread(self, thread_id: ThreadId, *, limit: int) -> list[Run]:
        """Return the newest runs of a thread, newest first."""

    def page(self, *, tenant: str, statuses: Collection[str], before: RunId | None, limit: int) -> list[Run]:
        """Return runs, newest first, with an id below `before`; all statuses if `statuses` is empty."""

    def next_due(self, *, now: Instant) -> Instant | None:
        """Return the earliest instant after `now` at which a timer, deadline or settlement falls due, if any."""

    def open_attempt(self, attempt: Attempt) -> None:
        """Record that a holder begins."""

    def close_attempt(self, run_id: RunId, number: int, end: AttemptEnd, at: Instant) -> None:
        """Record how an attempt ended, unless that is recorded already."""

    def attempts(self, run_id: RunId) -> list[Attempt]:
        """Return all attempts of a run, in order."""
