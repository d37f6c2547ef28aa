"""Opening a file: is it ours, is its schema known, what time is it there.

Order matters. Nothing is written before the file is known to be empty or ours, and no mode is switched before its schema is
known not to be newer than this version. Migrations run one per transaction under the write lock, so of several processes
that start at once one applies each and the others find it applied; one that is killed leaves nothing (C85).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quiesce.domain.errors import NotAStore, StoreBusy, StoreError, StoreReadOnly, StoreUnavailable
from quiesce.stores.migrate import Applied, Migration, load, missing
from quiesce.stores.sqlite.clock import Anchor, AnchoredClock, MachineTime, make_anchor, pause
from quiesce.stores.sqlite.connection import APPLICATION_ID, SqliteQueries, connect
from quiesce.stores.sqlite.outcomes import translated
from quiesce.stores.sqlite.settings import SqliteSettings

_RETRY_MS: Final = 10
_MIGRATION_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS migration (
      number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT
"""


def open_file(settings: SqliteSettings, machine: MachineTime) -> tuple[sqlite3.Connection, sqlite3.Connection, AnchoredClock]:
    """Return a connection to write and one to read a file with the current schema, and the file's clock.

    Raises `NotAStore` for a file of somebody else, `SchemaTooNew`, `StoreReadOnly`, `StoreBusy`, `StoreUnavailable`.
    """
    with contextlib.ExitStack() as stack:
        try:
            _check_ours(settings.path, settings.busy_timeout_ms)
            writing = stack.enter_context(contextlib.closing(connect(settings)))
            _prepare(writing, settings)
            migrate(writing, load("quiesce.stores.sqlite"), machine)
            anchor = _anchored(SqliteQueries(writing), machine)
            reading = stack.enter_context(contextlib.closing(connect(settings)))
            reading.execute("PRAGMA query_only = ON")
            reading.execute("SELECT count(*) FROM migration").fetchone()
        except (sqlite3.Error, StoreError) as error:
            raise _explained(error, settings.path) from error
        stack.pop_all()
    return writing, reading, AnchoredClock(anchor, machine)


def migrate(connection: sqlite3.Connection, known: list[Migration], machine: MachineTime) -> None:
    """Apply what the file lacks, each migration in its own transaction."""
    while todo := missing(known, _applied(connection)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(_MIGRATION_TABLE)
            if todo[0] in missing(known, _applied(connection)):
                _apply(connection, todo[0], machine)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def statements(sql: str) -> Iterator[str]:
    """Split a script where SQLite says that a statement is complete; bodies of triggers stay whole."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _apply(connection: sqlite3.Connection, migration: Migration, machine: MachineTime) -> None:
    for statement in statements(migration.sql):
        connection.execute(statement)
    SqliteQueries(connection).run(
        "record_migration",
        number=migration.number,
        name=migration.name,
        checksum=migration.checksum,
        applied_at=machine.wall_us(),
    )


def _applied(connection: sqlite3.Connection) -> list[Applied]:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone() is None:
        return []
    rows = SqliteQueries(connection).many("applied_migrations")
    return [Applied(number=number, name=name, checksum=checksum) for number, name, checksum in rows]


def _check_ours(path: Path, patience_ms: int) -> None:
    """Raise unless the file is absent, or may be written and is empty or ours. Reads the header and nothing else.

    Through SQLite, never with a descriptor of our own: closing one would drop every lock that this process holds on the
    file, also those of a store that is open already (POSIX), and its log could then be removed under its feet.
    """
    try:
        if not path.exists():
            return
    except OSError as error:
        raise StoreUnavailable(f"{path}: cannot be reached ({error.strerror})", path=str(path)) from error
    if path.is_dir() or not os.access(path, os.R_OK):
        raise StoreUnavailable(f"{path}: cannot be read", path=str(path))
    if not _may_write(path):
        raise StoreReadOnly(f"{path} cannot be written", path=str(path))
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=patience_ms / 1000)) as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            mark = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise NotAStore(f"{path} is not a SQLite database; it was not touched", path=str(path)) from error
        raise
    if pages and mark != APPLICATION_ID:
        raise NotAStore(f"{path} is a database of another application; it was not touched", path=str(path))


def _prepare(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    """Mark the file as ours and switch it to a write-ahead log, both for good.

    The mark comes first, in the rollback journal's mode, so that it stands in the file and not only in a log beside it.
    """
    if not connection.execute("PRAGMA application_id").fetchone()[0]:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    missing(load("quiesce.stores.sqlite"), _applied(connection))
    if _switched_to_wal(connection, settings.busy_timeout_ms) != "wal":
        raise StoreUnavailable(f"{settings.path}: no write-ahead log is possible here (a network file system?)")


def _switched_to_wal(connection: sqlite3.Connection, patience_ms: int) -> str:
    """Switch to a write-ahead log and return the mode that the file is in now.

    The switch needs the file for itself and does not wait for it: another process may be opening it at the same time.
    """
    waited_ms = 0
    while True:
        try:
            mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
            return mode if mode == "wal" else str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited_ms >= patience_ms:
                raise
            waited_ms += _RETRY_MS
            pause(_RETRY_MS)


def _anchored(queries: SqliteQueries, machine: MachineTime) -> Anchor:
    """Return the anchor of this run of the machine; the first process to ask writes it."""
    anchor = _stored_anchor(queries, machine)
    if anchor is not None:
        return anchor
    queries.control("BEGIN IMMEDIATE")
    try:
        anchor = anchor_tx(queries, machine)
        queries.control("COMMIT")
    except BaseException:
        if queries.connection.in_transaction:
            queries.control("ROLLBACK")
        raise
    return anchor


def anchor_tx(queries: SqliteQueries, machine: MachineTime) -> Anchor:
    """Return the anchor of this run of the machine, written if there is none, in a transaction that may write."""
    anchor = _stored_anchor(queries, machine)
    if anchor is None:
        latest = queries.one("latest_instant")
        anchor = make_anchor(machine, not_before_us=(latest[0] or 0) if latest else 0)
        queries.run("put_anchor", boot_id=anchor.boot_id, wall_us=anchor.wall_us, monotonic_us=anchor.monotonic_us)
    return anchor


def _stored_anchor(queries: SqliteQueries, machine: MachineTime) -> Anchor | None:
    row = queries.one("get_anchor")
    if row is None:
        return None
    anchor = Anchor(boot_id=row[0], wall_us=row[1], monotonic_us=row[2])
    return anchor if anchor.holds(machine.boot_id(), machine.monotonic_us()) else None


def _explained(error: BaseException, path: Path) -> BaseException:
    """Translate, and tell a directory that may not be written from one that is not there."""
    known = translated(error, about=str(path))
    if isinstance(known, StoreUnavailable) and path.parent.is_dir() and not _may_write(path.parent):
        return StoreReadOnly(f"{path.parent} cannot be written; SQLite needs files beside its own", path=str(path))
    if isinstance(known, StoreBusy):
        known.details["path"] = str(path)
    return known


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
