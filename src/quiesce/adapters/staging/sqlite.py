"""Staging on a `sqlite3.Connection` of the producer's own, to the file of a store.

Keeps: a transaction is begun as the connection itself would at its first write, and never ended here; everything happens in
a savepoint, so a refusal leaves the transaction as it was; row and text factories are put back. The clock is the file's own,
as for the store. The write lock is taken by the first statement: a transaction that has not read yet then waits for it up to
the connection's timeout, and does not fail because its view has become old.

Nobody is rung: a store notices the commits of others by the file's data version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from quiesce.adapters.staging.schema import check_schema
from quiesce.domain.errors import NotAStore, Refused
from quiesce.ports.commands import Staging
from quiesce.stores.sql.transaction import SqlTransaction
from quiesce.stores.sqlite.clock import AnchoredClock, MachineTime
from quiesce.stores.sqlite.connection import APPLICATION_ID, SAVEPOINT, SqliteQueries
from quiesce.stores.sqlite.opening import anchor_tx
from quiesce.stores.sqlite.outcomes import translated

T = TypeVar("T")

_ABOUT: Final = "the file of the connection"
_TAKE_WRITE_LOCK: Final = "DELETE FROM main.migration WHERE 0"
_MARK: Final = "PRAGMA main.application_id"


def run(connection: sqlite3.Connection, body: Callable[[Staging], T]) -> T:
    """Run `body` inside the connection's transaction. Raises what `body` raises, `Refused` or `StoreError`."""
    try:
        _require_transaction(connection)
        with _plain_rows(connection):
            return _guarded(SqliteQueries(connection), body)
    except (sqlite3.Error, UnicodeEncodeError) as error:
        raise translated(error, about=_ABOUT) from error


def _require_transaction(connection: sqlite3.Connection) -> None:
    """Raise `Refused` where every statement commits by itself; begin where the driver would begin at the first write."""
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise Refused(
            "the connection commits each statement by itself and no transaction is open: what was staged would stand "
            "without your own rows. Begin a transaction first. Nothing was staged"
        )
    connection.execute(f"BEGIN {connection.isolation_level}")


@contextmanager
def _plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    rows, texts = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = rows, texts


def _guarded(queries: SqliteQueries, body: Callable[[Staging], T]) -> T:
    """Run in a savepoint. If SQLite itself has ended the transaction (no room, say), there is none to go back to."""
    queries.control(f"SAVEPOINT {SAVEPOINT}")
    try:
        _check_store(queries)
        machine = MachineTime()
        value = body(SqlTransaction(queries, AnchoredClock(anchor_tx(queries, machine), machine).now))
    except BaseException:
        if queries.connection.in_transaction:
            queries.control(f"ROLLBACK TO {SAVEPOINT}")
            queries.control(f"RELEASE {SAVEPOINT}")
        raise
    queries.control(f"RELEASE {SAVEPOINT}")
    return value


def _check_store(queries: SqliteQueries) -> None:
    try:
        queries.connection.execute(_TAKE_WRITE_LOCK)
        is_ours = queries.connection.execute(_MARK).fetchone() == (APPLICATION_ID,)
        rows = queries.many("applied_migrations") if is_ours else []
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise NotAStore(f"{_ABOUT} is not a store ({error}); open it with Quiesce first. Nothing was staged") from error
    if not is_ours:
        raise NotAStore(f"{_ABOUT} is a database of another application; nothing was staged")
    check_schema("quiesce.stores.sqlite", rows)
