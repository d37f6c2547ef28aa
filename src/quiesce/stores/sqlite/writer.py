"""What the writer thread does with a batch: one transaction, one commit, an answer for each job.

Write values that stand next to each other are applied together; a decision is a part by itself. Parts that share a
transaction run in a savepoint each, so that one that raises takes back itself only. If SQLite itself ends the transaction
(no room, an I/O error), the whole batch has failed and nothing of it was written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from quiesce.domain.errors import StoreError
from quiesce.domain.instant import Instant
from quiesce.stores.apply import apply_writes
from quiesce.stores.notifier import LocalNotifier
from quiesce.stores.sql.group_writer import DecisionJob, Job, WriteJob
from quiesce.stores.sql.queries import Meter
from quiesce.stores.sql.transaction import SqlTransaction
from quiesce.stores.sqlite.connection import SAVEPOINT, SqliteQueries
from quiesce.stores.sqlite.outcomes import translated


class SqliteWriter:
    """Commits batches on one connection. Used by the writer thread only."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        read_clock: Callable[[], Instant],
        notifier: LocalNotifier,
        meter: Meter,
        about: str,
    ) -> None:
        self._queries = SqliteQueries(connection)
        self._read_clock = read_clock
        self._notifier = notifier
        self._meter = meter
        self._about = about

    def commit(self, batch: Sequence[Job]) -> None:
        """Apply a batch in one transaction and settle each of its jobs. What is impossible fails alone."""
        rung: dict[str, None] = {}
        parts = list(_parts(batch))
        try:
            self._queries.control("BEGIN IMMEDIATE")
            apply = self._apply if len(parts) == 1 else self._apply_guarded
            writes = sum(apply(part, rung) for part in parts)
            self._queries.control("COMMIT")
            is_committed = True
        except BaseException as error:  # noqa: BLE001 - whatever a decision raises belongs to who asked for it
            self._undo()
            known = translated(error, about=self._about)
            if len(batch) > 1 and not isinstance(known, StoreError):
                for job in batch:
                    self.commit([job])
                return
            for job in batch:
                job.fail(known)
            rung, writes, is_committed = {}, 0, False
        decisions = sum(isinstance(job, DecisionJob) for job in batch)
        statements, has_changed = self._queries.take_counts()
        self._meter.add(statements, commits=int(is_committed and has_changed), writes=writes, transactions=decisions)
        self._notifier.ring_all(rung)

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed."""
        return int(self._queries.connection.execute("PRAGMA data_version").fetchone()[0])

    def _apply(self, part: Sequence[Job], rung: dict[str, None]) -> int:
        """Run one decision, or apply neighbouring write values together; return how many of these were applied."""
        tx = SqlTransaction(self._queries, self._read_clock)
        writes = [job for job in part if isinstance(job, WriteJob)]
        for job in part:
            if isinstance(job, DecisionJob):
                job.decide(tx)
        outcomes = apply_writes(tx, [job.write for job in writes]) if writes else []
        for job, outcome in zip(writes, outcomes, strict=True):
            job.settle(outcome)
        rung.update(tx.rung)
        return sum(outcome.is_applied for outcome in outcomes)

    def _apply_guarded(self, part: Sequence[Job], rung: dict[str, None]) -> int:
        """Apply a part so that its failure takes back nothing else. Raises only if the whole transaction is lost."""
        rung_by_part: dict[str, None] = {}
        self._queries.control(f"SAVEPOINT {SAVEPOINT}")
        try:
            applied = self._apply(part, rung_by_part)
        except BaseException as error:
            if not self._queries.connection.in_transaction:
                raise
            self._queries.control(f"ROLLBACK TO {SAVEPOINT}")
            self._queries.control(f"RELEASE {SAVEPOINT}")
            if len(part) > 1:
                return sum(self._apply_guarded([job], rung) for job in part)
            part[0].fail(translated(error, about=self._about))
            return 0
        self._queries.control(f"RELEASE {SAVEPOINT}")
        rung.update(rung_by_part)
        return applied

    def _undo(self) -> None:
        if self._queries.connection.in_transaction:
            self._queries.control("ROLLBACK")


def _parts(batch: Iterable[Job]) -> Iterable[list[Job]]:
    """Split a batch into runs of write values, and single decisions, in their order."""
    for is_write, jobs in groupby(batch, key=lambda job: isinstance(job, WriteJob)):
        if is_write:
            yield list(jobs)
        else:
            yield from ([job] for job in jobs)
