"""Staging on a psycopg connection of the producer's own, synchronous or asynchronous.

For as long as it takes, the connection's libpq handle is seen through a second, plain connection object, while the
producer's own is locked: so its row and cursor factories, its adapters and its prepared statements play no part and are not
touched. The asynchronous kind does the same on a thread of its own; the handle is in nobody's event loop meanwhile.

Keeps: a transaction is begun by the producer's connection, with its settings, and never ended here; everything happens in a
savepoint, so a refusal leaves the transaction usable; the search path is that of the store for these statements only. A
temporary table of the producer's cannot take the place of one of ours: they are searched last. Workers are rung with the
producer's commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from quiesce.adapters.staging.schema import check_schema
from quiesce.domain.errors import Refused
from quiesce.ports.commands import Staging
from quiesce.runtime.background import call_in_thread
from quiesce.stores.postgres.connection import Connection, PostgresQueries
from quiesce.stores.postgres.outcomes import translated
from quiesce.stores.sql.transaction import SqlTransaction

T = TypeVar("T")

_BEGIN: Final = b"SELECT 1"
_ENTER: Final = sql.SQL(
    "SAVEPOINT {}; SELECT current_setting('search_path'); SELECT set_config('search_path', quote_ident({}) || ', pg_temp', true)"
)
_LEAVE: Final = sql.SQL("SELECT set_config('search_path', {}, true); RELEASE SAVEPOINT {}")
_UNDO: Final = sql.SQL("ROLLBACK TO SAVEPOINT {}; RELEASE SAVEPOINT {}")
_SAVEPOINT: Final = sql.Identifier("quiesce staging")
_CANCEL_AGAIN_S: Final = 0.1
_REFUSALS: Final = {
    TransactionStatus.IDLE: (
        "the connection commits each statement by itself and no transaction is open: what was staged would stand without "
        "your own rows. Begin a transaction first"
    ),
    TransactionStatus.INERROR: "a statement of this transaction has failed before: roll it back first",
    TransactionStatus.ACTIVE: "another statement still runs on the connection: let it end first",
}


def run(connection: psycopg.Connection[Any], body: Callable[[Staging], T], schema: str) -> T:
    """Run `body` inside the connection's transaction. Raises what `body` raises, `Refused` or `StoreError`."""
    with _told(schema):
        if _begins_by_itself(connection):
            psycopg.Cursor(connection, row_factory=tuple_row).execute(_BEGIN, prepare=False)
        with connection.lock:
            return _work(connection.pgconn, body, schema)


async def run_async(connection: psycopg.AsyncConnection[Any], body: Callable[[Staging], T], schema: str) -> T:
    """The same. A cancelled task gives up what it waits for in the server, and ends when the connection is free again."""
    with _told(schema):
        if _begins_by_itself(connection):
            await psycopg.AsyncCursor(connection, row_factory=tuple_row).execute(_BEGIN, prepare=False)
        async with connection.lock:
            return await _work_in_thread(connection, body, schema)


async def _work_in_thread(connection: psycopg.AsyncConnection[Any], body: Callable[[Staging], T], schema: str) -> T:
    work = asyncio.ensure_future(call_in_thread(_work, (connection.pgconn, body, schema), {}))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            connection.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work}, timeout=_CANCEL_AGAIN_S)
        if not work.cancelled():
            work.exception()  # taken note of: the cancellation is what the caller hears
        raise


@contextlib.contextmanager
def _told(schema: str) -> Iterator[None]:
    """Tell the driver's errors as the product's."""
    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise translated(error, about=f"the schema {schema}") from error


def _begins_by_itself(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE and not connection.autocommit


def _work(pgconn: psycopg.pq.abc.PGconn, body: Callable[[Staging], T], schema: str) -> T:
    _check_state(pgconn)
    with _seen(pgconn) as connection:
        return _guarded(connection, body, schema)


def _check_state(pgconn: psycopg.pq.abc.PGconn) -> None:
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise Refused("the connection is in pipeline mode: stage before or behind it. Nothing was staged")
    status = TransactionStatus(pgconn.transaction_status)
    if status in _REFUSALS:
        raise Refused(f"{_REFUSALS[status]}. Nothing was staged", transaction=status.name)


@contextlib.contextmanager
def _seen(pgconn: psycopg.pq.abc.PGconn) -> Iterator[Connection]:
    """Show a handle as a plain connection, for a while. Notices and notifications still go to its owner."""
    handlers = pgconn.notice_handler, pgconn.notify_handler
    connection: Connection = psycopg.Connection(pgconn)
    pgconn.notice_handler, pgconn.notify_handler = handlers
    connection.prepare_threshold = None
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    try:
        yield connection
    finally:
        del connection.pgconn  # it is not this object's to close, nor to complain about


def _guarded(connection: Connection, body: Callable[[Staging], T], schema: str) -> T:
    enter = _ENTER.format(_SAVEPOINT, sql.Literal(schema)).as_bytes(connection)  # before there is anything to undo
    try:
        before = _entered(connection, enter)
        value = _staged(PostgresQueries(connection), body)
        connection.execute(_LEAVE.format(sql.Literal(before), _SAVEPOINT))
    except BaseException:
        # The search path goes back with the savepoint. A connection that is lost has nothing to undo.
        with contextlib.suppress(psycopg.Error):
            connection.execute(_UNDO.format(_SAVEPOINT, _SAVEPOINT))
        raise
    return value


def _entered(connection: Connection, enter: bytes) -> str:
    """Set the savepoint and the search path; return the path that stood before."""
    cursor = connection.execute(enter)
    cursor.nextset()
    (before,) = cursor.fetchone() or ("",)
    return str(before)


def _staged(queries: PostgresQueries, body: Callable[[Staging], T]) -> T:
    check_schema("quiesce.stores.postgres", queries.many("applied_migrations"))
    tx = SqlTransaction(queries, queries.clock, read_now=queries.now)
    value = body(tx)
    if tx.rung:
        queries.notify(list(tx.rung))
    return value
