"""One PostgreSQL connection with the named queries on it. It belongs to one thread at a time.

Parameters and results travel in binary; whole numbers always as `bigint`, so that a statement is prepared once and not
again for each size of number. A batch goes as one statement over arrays. Transactions are begun and ended by whoever owns
the connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper

from quiesce.domain.errors import Refused, StoreError, invariant
from quiesce.domain.instant import Instant
from quiesce.stores.catalogue import Catalogue, load
from quiesce.stores.postgres.settings import PostgresSettings
from quiesce.stores.sql.queries import Params, Row

CATALOGUE: Final[Catalogue] = load("quiesce.stores.postgres")

Connection = psycopg.Connection[Row]


class LendableConnection(psycopg.Connection[Row]):
    """A connection on which, while it is lent, nobody but the store ends the transaction."""

    is_lent = False

    def commit(self) -> None:
        """Commit, unless lent."""
        self._check()
        super().commit()

    def rollback(self) -> None:
        """Roll back, unless lent."""
        self._check()
        super().rollback()

    def _check(self) -> None:
        if self.is_lent:
            raise Refused("a transaction of the store is not begun or ended on its connection by anybody else")


_STATEMENTS: Final = {name: query.pyformat() for name, query in CATALOGUE.items()}
_NOW: Final = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_CONFIGURE: Final = b"""
    SELECT set_config('search_path', %(schema)s, false),
           set_config('enable_seqscan', 'off', false),
           set_config('enable_hashjoin', 'off', false),
           set_config('enable_mergejoin', 'off', false),
           set_config('jit', 'off', false),
           set_config('lock_timeout', %(lock_timeout)s, false),
           set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false)
"""
"""Every query has its index. A plan made while the tables were small stays in use while they grow, so none may scan them, nor
a whole index of theirs to join it."""
_KEEP_ALIVE: Final[Mapping[str, str | int]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "quiesce",
}
"""A peer that has silently gone is noticed within about ten seconds, unless the URL says otherwise."""


def connect_options(settings: PostgresSettings) -> dict[str, str | int | bool]:
    """Return the keyword arguments of every connection: what the URL does not say itself."""
    given = conninfo_to_dict(settings.conninfo)
    return {**{name: value for name, value in _KEEP_ALIVE.items() if name not in given}, "autocommit": True}


def configure(connection: Connection, settings: PostgresSettings) -> None:
    """Prepare a new connection for use."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.prepared_max = 2 * len(CATALOGUE)
    connection.execute(
        _CONFIGURE,
        {
            "schema": settings.schema,
            "lock_timeout": str(settings.patience_ms),
            "idle_timeout": str(settings.idle_in_transaction_ms),
        },
    )


def connect(settings: PostgresSettings) -> Connection:
    """Open a connection outside the pool. Raises `psycopg.OperationalError`."""
    options = connect_options(settings)
    connection: Connection = LendableConnection.connect(settings.conninfo, **options)  # type: ignore[arg-type]
    try:
        configure(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


class PostgresQueries:
    """Implements `stores.sql.queries.Queries` on one connection, and counts what it sends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor = connection.cursor(binary=True)
        self._sent: dict[str, int] = {}
        self._has_changed = False
        self._now: Instant | None = None

    def one(self, query: str, /, **params: object) -> Row | None:
        """See the protocol."""
        return self._execute(query, params).fetchone()

    def many(self, query: str, /, **params: object) -> list[Row]:
        """See the protocol."""
        return self._execute(query, params).fetchall()

    def run(self, query: str, /, **params: object) -> int:
        """See the protocol."""
        return self._execute(query, params).rowcount

    def run_many(self, query: str, rows: Sequence[Params], /) -> int:
        """See the protocol."""
        return self._execute(query, _columns(query, rows)).rowcount if rows else 0

    def many_of(self, query: str, rows: Sequence[Params], /) -> list[Row]:
        """See the protocol."""
        return self._execute(query, _columns(query, rows)).fetchall() if rows else []

    def lend(self) -> Connection:
        """See the protocol. Lent until the transaction ends."""
        self._set_lent(True)
        return self.connection

    def begin(self, mode: bytes = b"", *, with_clock: bool) -> None:
        """Begin a transaction; the server's clock comes back with the same round trip if it is wanted."""
        self._count("begin")
        statement = b"BEGIN" + mode
        self._now = None
        if not with_clock:
            self.connection.execute(statement)
            return
        cursor = self.connection.execute(statement + b"; " + _NOW)
        cursor.nextset()
        row = cursor.fetchone()
        self._now = None if row is None else Instant(row[0])

    def commit(self) -> None:
        """Commit. Raises `StoreError` if the server has rolled back instead: a statement had failed before."""
        self._set_lent(False)
        invariant(
            self.connection.info.transaction_status != TransactionStatus.IDLE,
            "somebody ended the transaction of the store on its connection; what was written before that is stored",
        )
        self._count("commit")
        if self.connection.execute(b"COMMIT").statusmessage != "COMMIT":
            raise StoreError("the transaction had failed before its commit; nothing was written")

    def rollback(self) -> None:
        """Roll back. A connection that is lost needs none."""
        self._set_lent(False)
        if not self.connection.closed:
            self._count("rollback")
            try:
                self.connection.execute(b"ROLLBACK")
            except psycopg.OperationalError:
                self.connection.close()

    def now(self) -> Instant:
        """Return the server's clock, as of the transaction's beginning if it was asked for there."""
        if self._now is None:
            self._now = self.clock()
        return self._now

    def clock(self) -> Instant:
        """Return the server's clock as it stands now, in a statement of its own: what waited before it is counted."""
        self._count("clock")
        row = self._cursor.execute(_NOW).fetchone()
        return Instant(row[0] if row else 0)

    def notify(self, topics: Sequence[str]) -> None:
        """Send topics to the listeners of this schema, with the commit."""
        self._count("notify")
        self.connection.execute(b"SELECT pg_notify(current_schema(), topic) FROM unnest(%s::text[]) AS topic", [list(topics)])

    def take_counts(self) -> tuple[dict[str, int], bool]:
        """Return what was sent since the last call, by name, and whether any row was changed by it."""
        sent, self._sent = self._sent, {}
        has_changed, self._has_changed = self._has_changed, False
        return sent, has_changed

    def _execute(self, query: str, params: Mapping[str, object]) -> psycopg.Cursor[Row]:
        self._count(query)
        cursor = self._cursor.execute(_STATEMENTS[query], params, prepare=True)
        if cursor.rowcount > 0 and CATALOGUE[query].writes:
            self._has_changed = True
        return cursor

    def _set_lent(self, is_lent: bool) -> None:
        if isinstance(self.connection, LendableConnection):
            self.connection.is_lent = is_lent

    def _count(self, name: str) -> None:
        self._sent[name] = self._sent.get(name, 0) + 1


def _columns(query: str, rows: Sequence[Params]) -> dict[str, list[object]]:
    """Turn rows of parameters into one array per parameter."""
    return {name: [row[name] for row in rows] for name in CATALOGUE[query].parameters}
