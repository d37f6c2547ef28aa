"""Bringing a schema up to date, and what the server says about its own durability.

Of several processes that start at once, one holds the advisory lock and applies what is missing, each migration in its own
transaction with that lock; the others wait and find it applied. One that is killed leaves nothing (C85).
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from quiesce.domain.errors import NotAStore
from quiesce.stores.migrate import Applied, Migration, load, missing
from quiesce.stores.postgres.connection import Connection, PostgresQueries
from quiesce.stores.postgres.settings import PostgresSettings

_LOCK: Final = b"SELECT pg_advisory_xact_lock(hashtextextended('quiesce migration of ' || %s, 0))"
_NO_LIMIT: Final = b"SET LOCAL lock_timeout = 0"
_MIGRATION_TABLE: Final = b"""
    CREATE TABLE IF NOT EXISTS migration (
      number bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at bigint NOT NULL)
"""
_TABLES: Final = b"SELECT tablename FROM pg_tables WHERE schemaname = %s"


def prepare(connection: Connection, settings: PostgresSettings) -> str:
    """Apply missing migrations; return the durability that receipts show.

    Raises `SchemaTooNew`, `NotAStore` for a schema with tables of somebody else, `psycopg.Error`.
    """
    migrate(connection, settings, load("quiesce.stores.postgres"))
    return _durability(connection)


def migrate(connection: Connection, settings: PostgresSettings, known: list[Migration]) -> None:
    """Apply what the schema lacks, each migration in its own transaction under the lock."""
    while missing(known, _applied(connection, settings)):
        with connection.transaction():
            connection.execute(_NO_LIMIT)
            connection.execute(_LOCK, [settings.schema])
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(settings.schema)))
            connection.execute(_MIGRATION_TABLE)
            todo = missing(known, _applied(connection, settings))
            if todo:
                _apply(connection, todo[0])


def _apply(connection: Connection, migration: Migration) -> None:
    connection.execute(migration.sql.encode())
    queries = PostgresQueries(connection)
    queries.run(
        "record_migration",
        number=migration.number,
        name=migration.name,
        checksum=migration.checksum,
        applied_at=queries.now(),
    )


def _applied(connection: Connection, settings: PostgresSettings) -> list[Applied]:
    tables = {name for (name,) in connection.execute(_TABLES, [settings.schema])}
    if not tables:
        return []
    if "migration" not in tables:
        raise NotAStore(f"the schema {settings.schema} holds tables of another application; it was not touched")
    try:
        rows = PostgresQueries(connection).many("applied_migrations")
    except psycopg.errors.UndefinedColumn as error:
        raise NotAStore(f"the table {settings.schema}.migration is another application's; it was not touched") from error
    return [Applied(number=number, name=name, checksum=checksum) for number, name, checksum in rows]


def _durability(connection: Connection) -> str:
    """Return `full` at PostgreSQL's defaults or better, else the weaker setting by name."""
    row = connection.execute(b"SELECT current_setting('fsync'), current_setting('synchronous_commit')").fetchone()
    fsync, synchronous_commit = row or ("unknown", "unknown")
    if fsync != "on":
        return f"fsync={fsync}"
    return f"synchronous_commit={synchronous_commit}" if synchronous_commit == "off" else "full"
