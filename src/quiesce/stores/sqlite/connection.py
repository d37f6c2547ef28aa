"""One SQLite connection with the named queries on it. It belongs to one thread at a time.

Knows nothing of what a query means. Transactions are begun and ended by whoever owns the connection.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from quiesce.stores.catalogue import Catalogue, load
from quiesce.stores.sql.queries import Params, Row
from quiesce.stores.sqlite.settings import SqliteSettings

APPLICATION_ID: Final = 0x51756965
"""`Quie`: stands in the header of every file of ours."""

CATALOGUE: Final[Catalogue] = load("quiesce.stores.sqlite")

SAVEPOINT: Final = "part"
"""The savepoint of a decision that shares its commit with others."""


def connect(settings: SqliteSettings) -> sqlite3.Connection:
    """Open the file, creating it if need be. Sets nothing that changes it."""
    connection = sqlite3.connect(
        settings.path,
        timeout=settings.busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=len(CATALOGUE) + 16,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA synchronous = {settings.synchronous.upper()}")
    return connection


class SqliteQueries:
    """Implements `stores.sql.queries.Queries` on one connection, and counts what it sends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._sql = {name: query.sql for name, query in CATALOGUE.items()}
        self._sent: dict[str, int] = {}
        self._changes = connection.total_changes
        self._is_guarded = self._is_lent = False

    def one(self, query: str, /, **params: object) -> Row | None:
        """See the protocol."""
        row: Row | None = self._execute(query, params).fetchone()
        return row

    def many(self, query: str, /, **params: object) -> list[Row]:
        """See the protocol."""
        given = {name: json.dumps(value) if isinstance(value, list) else value for name, value in params.items()}
        return self._execute(query, given).fetchall()

    def run(self, query: str, /, **params: object) -> int:
        """See the protocol."""
        return self._execute(query, params).rowcount

    def run_many(self, query: str, rows: Sequence[Params], /) -> int:
        """See the protocol."""
        self._count(query)
        return self.connection.executemany(self._sql[query], rows).rowcount

    def many_of(self, query: str, rows: Sequence[Params], /) -> list[Row]:
        """See the protocol. A single parameter is given as a JSON array of all its values; others row by row."""
        parameters = CATALOGUE[query].parameters
        if len(parameters) == 1:
            (name,) = parameters
            return self._execute(query, {name: json.dumps([row[name] for row in rows])}).fetchall()
        self._count(query)
        sql, execute = self._sql[query], self.connection.execute
        return [found for row in rows for found in execute(sql, row)]

    def lend(self) -> sqlite3.Connection:
        """See the protocol. Lent until the next `control`."""
        if not self._is_guarded:
            self.connection.set_authorizer(self._authorize)
            self._is_guarded = True
        self._is_lent = True
        return self.connection

    def control(self, statement: str) -> None:
        """Run a statement that begins or ends a transaction or savepoint.

        The authorizer is asked when a statement is compiled, and compiled ones are kept by their text: so ours has a text of
        its own.
        """
        self._is_lent = False
        self._count(statement.partition(" ")[0].lower())
        self.connection.execute(f"{statement} -- of the store")

    def take_counts(self) -> tuple[dict[str, int], bool]:
        """Return what was sent since the last call, by name, and whether any row was changed by it."""
        sent, self._sent = self._sent, {}
        before, self._changes = self._changes, self.connection.total_changes
        return sent, self._changes != before

    def _execute(self, query: str, params: Mapping[str, object]) -> sqlite3.Cursor:
        self._count(query)
        return self.connection.execute(self._sql[query], params)

    def _authorize(self, action: int, _operation: str | None, name: str | None, *_: str | None) -> int:
        ends = action == sqlite3.SQLITE_TRANSACTION or (action == sqlite3.SQLITE_SAVEPOINT and name == SAVEPOINT)
        return sqlite3.SQLITE_DENY if self._is_lent and ends else sqlite3.SQLITE_OK

    def _count(self, name: str) -> None:
        self._sent[name] = self._sent.get(name, 0) + 1
