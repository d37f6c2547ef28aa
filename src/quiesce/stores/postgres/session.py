"""How a function runs in a transaction on one connection, and what may be done when that fails.

The line that matters is the commit. Before it was sent, nothing can have happened: the function may be run again, on another
connection if this one is lost. Once it was sent and no answer came, nobody can say: `CommitInDoubt`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import psycopg

from quiesce.domain.instant import Instant
from quiesce.ports.store import Transaction
from quiesce.stores.postgres.connection import Connection, PostgresQueries
from quiesce.stores.postgres.outcomes import may_run_again
from quiesce.stores.sql.queries import Meter
from quiesce.stores.sql.transaction import SqlTransaction

T = TypeVar("T")


class Mode(Enum):
    """What a transaction is for, as the words after BEGIN."""

    DECIDE = b""
    READ = b" ISOLATION LEVEL REPEATABLE READ READ ONLY"
    WRITE = b" ISOLATION LEVEL READ COMMITTED"
    """A batch of write values: it asks for no clock and notifies nobody."""


class NothingHappened(Exception):
    """The transaction had no effect and may be run again. The cause says why."""


class ConnectionLost(NothingHappened):
    """The same, because the connection broke before the commit was sent."""


class CommitInDoubt(Exception):
    """The connection broke after the commit was sent and before it was answered."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The value of a function whose transaction is committed, and the topics that it rang."""

    value: T
    rung: dict[str, None]


class Session:
    """Runs functions in transactions on one connection."""

    def __init__(self, connection: Connection, *, read_clock: Callable[[], Instant] | None, meter: Meter) -> None:
        """Use a connection. `read_clock` replaces the server's clock."""
        self._queries = PostgresQueries(connection)
        self._read_clock = read_clock
        self._meter = meter

    def run(self, fn: Callable[[Transaction], T], mode: Mode) -> Done[T]:
        """Run `fn` in one transaction.

        Raises what `fn` raises, `psycopg.Error` that will not go away, `NothingHappened`, or `CommitInDoubt`.
        """
        queries = self._queries
        tx = SqlTransaction(queries, self._read_clock or queries.clock, read_now=self._read_clock or queries.now)
        try:
            value = self._body(fn, tx, mode)
            if mode is Mode.READ:
                self._queries.rollback()
            else:
                self._commit()
        finally:
            statements, has_changed = self._queries.take_counts()
            self._meter.add(statements)
        self._meter.add({}, commits=int(has_changed))
        return Done(value, tx.rung)

    def _body(self, fn: Callable[[Transaction], T], tx: SqlTransaction, mode: Mode) -> T:
        queries = self._queries
        try:
            queries.begin(mode.value, with_clock=self._read_clock is None and mode is not Mode.WRITE)
            value = fn(tx)
            if mode is Mode.DECIDE and tx.rung:
                queries.notify(list(tx.rung))
            return value
        except psycopg.Error as error:
            if _is_lost(queries.connection):
                raise ConnectionLost from error
            queries.rollback()
            if may_run_again(error):
                raise NothingHappened from error
            raise
        except BaseException:
            queries.rollback()
            raise

    def _commit(self) -> None:
        try:
            self._queries.commit()
        except psycopg.errors.IdleInTransactionSessionTimeout as error:
            raise ConnectionLost from error  # the server had ended it while it waited for us
        except psycopg.Error as error:
            if _is_lost(self._queries.connection):
                raise CommitInDoubt from error
            if may_run_again(error):
                raise NothingHappened from error
            raise


def _is_lost(connection: Connection) -> bool:
    return connection.closed or connection.broken
