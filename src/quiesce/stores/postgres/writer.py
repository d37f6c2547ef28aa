"""What the writer thread does with a batch of write values: one transaction on a connection of its own.

Applying a batch twice changes nothing the second time, so whatever becomes of the connection, the commit included, the
batch is handed in again for as long as the settings have patience (C88). It notifies nobody: notifying commits wait for
each other on the server, and a bell is a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from quiesce.domain.errors import StoreError, StoreUnavailable
from quiesce.domain.instant import Instant
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.stores.apply import apply_writes
from quiesce.stores.notifier import LocalNotifier
from quiesce.stores.postgres.connection import Connection, connect
from quiesce.stores.postgres.outcomes import translated
from quiesce.stores.postgres.patience import Patience
from quiesce.stores.postgres.session import CommitInDoubt, ConnectionLost, Done, Mode, NothingHappened, Session
from quiesce.stores.postgres.settings import PostgresSettings
from quiesce.stores.sql.group_writer import WriteJob
from quiesce.stores.sql.queries import Meter

_RETRY_MS: Final = 50
_CONFLICTS_MAX: Final = 5


class PostgresWriter:
    """Commits batches of write values. Used by the writer thread only."""

    def __init__(
        self,
        settings: PostgresSettings,
        *,
        read_clock: Callable[[], Instant] | None,
        notifier: LocalNotifier,
        meter: Meter,
        about: str,
    ) -> None:
        self._settings = settings
        self._read_clock = read_clock
        self._notifier = notifier
        self._meter = meter
        self._about = about
        self._connection: Connection | None = None

    def commit(self, batch: Sequence[WriteJob]) -> None:
        """Apply a batch and settle each of its jobs. What is impossible fails alone."""
        try:
            done = self._apply([job.write for job in batch])
        except Exception as error:  # noqa: BLE001 - whatever a write value provokes belongs to who handed it in
            known = translated(error, about=self._about)
            if len(batch) > 1 and not isinstance(known, StoreError):
                for job in batch:
                    self.commit([job])
            else:
                for job in batch:
                    job.fail(known)
            return
        for job, outcome in zip(batch, done.value, strict=True):
            job.settle(outcome)
        self._meter.add({}, writes=sum(outcome.is_applied for outcome in done.value))
        self._notifier.ring_all(done.rung)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _apply(self, writes: Sequence[RunWrite]) -> Done[list[WriteOutcome]]:
        patience = Patience(self._settings.patience_ms)
        conflicts = 0
        while True:
            try:
                return self._session().run(lambda tx: apply_writes(tx, writes), Mode.WRITE)
            except (ConnectionLost, CommitInDoubt, psycopg.OperationalError) as error:
                if patience.is_over or _is_refusal(error):
                    raise self._given_up(error) from error
                patience.pause(_RETRY_MS)
            except NothingHappened as again:
                conflicts += 1
                if conflicts >= _CONFLICTS_MAX:
                    raise self._given_up(again) from again

    def _session(self) -> Session:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._settings)
        return Session(self._connection, read_clock=self._read_clock, meter=self._meter)

    def _given_up(self, error: Exception) -> BaseException:
        if isinstance(error, CommitInDoubt):
            return StoreUnavailable(f"{self._about}: whether the last commit took place is open; hand it in again")
        return translated(error.__cause__ or error, about=self._about)


def _is_refusal(error: Exception) -> bool:
    """Return whether the server itself answered no (a lock timeout, a full disk): it is there and need not be awaited."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is not None
