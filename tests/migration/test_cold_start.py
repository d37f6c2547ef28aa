"""Everybody starts at once on an empty place, and one is killed half-way (C85)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.errors import NotAStore, SchemaTooNew, StoreError
from quiesce.stores.migrate import load
from quiesce.stores.postgres import PostgresSettings, PostgresStore

Query = Callable[[str], list[tuple[Any, ...]]]

KNOWN = [(migration.number,) for migration in load("quiesce.stores.sqlite")]
"""The migrations that this version applies."""

_START = """
import asyncio, sys
from quiesce.bootstrap import open_store
from quiesce.testing.samples import Samples

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    store = open_store(sys.argv[1])
    print(await store.transact(lambda tx: len(tx.runs.claimable(agents=["a"], now=tx.now, limit=1))), flush=True)
    await store.close()

asyncio.run(main())
"""
_STOP_HALF_WAY = """
import sys
from quiesce.bootstrap import open_store
from quiesce.stores.migrate import Migration
from quiesce.stores.{dialect} import opening

def half(connection, migration, *others):
    lines = migration.sql.split(";\\n\\n")
    script = ";\\n\\n".join(lines[: len(lines) // 2]) + ";"
    for statement in {statements}:
        connection.execute(statement)
    print("half-way", flush=True)
    sys.stdin.readline()

opening._apply = half
open_store(sys.argv[1])
"""


class Process:
    """A child that is told when to go on."""

    def __init__(self, script: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)

    def end(self) -> str:
        """Wait for the end and return what it said last. Fails if it failed."""
        out, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, err
        return out.strip()


@pytest.fixture
def query(url: str) -> Query:
    """Asks the database past the store."""

    def ask(sql: str) -> list[tuple[Any, ...]]:
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
                return connection.execute(sql).fetchall()
        settings = PostgresSettings.from_url(url)
        with psycopg.connect(settings.conninfo, autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", [settings.schema])
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    return ask


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgres_url"))


def _half_way(url: str) -> Process:
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    statements = "opening.statements(script)" if dialect == "sqlite" else "[script.encode()]"
    process = Process(_STOP_HALF_WAY.format(dialect=dialect, statements=statements), url)
    assert process.hear() == "half-way"
    return process


@pytest.mark.req("C85")
@pytest.mark.parametrize("round_number", range(3))
def test_five_processes_that_start_at_once_all_serve(url: str, query: Query, round_number: int) -> None:
    processes = [Process(_START, url) for _ in range(5)]
    assert [process.hear() for process in processes] == ["ready"] * 5
    for process in processes:
        process.go_on()
    assert [process.end() for process in processes] == ["0"] * 5
    assert query("SELECT number FROM migration ORDER BY number") == KNOWN


@pytest.mark.req("C85")
def test_a_migrator_killed_half_way_leaves_nothing_and_the_others_finish(url: str, query: Query) -> None:
    killed = _half_way(url)
    others = [Process(_START, url) for _ in range(4)]
    assert [process.hear() for process in others] == ["ready"] * 4
    for process in others:
        process.go_on()
    killed.kill()
    assert [process.end() for process in others] == ["0"] * 4
    assert query("SELECT number FROM migration ORDER BY number") == KNOWN


@pytest.mark.req("C85")
def test_a_migrator_killed_alone_leaves_nothing(url: str, query: Query) -> None:
    _half_way(url).kill()
    if url.startswith("sqlite"):
        assert query("SELECT name FROM sqlite_master") == []
    else:
        assert query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()") == []
    later = Process(_START, url)
    later.go_on()
    assert later.end().split() == ["ready", "0"]


async def test_opening_again_applies_and_writes_nothing(url: str, query: Query) -> None:
    await open_store(url).close()
    before = query("SELECT * FROM migration")
    await open_store(url).close()
    assert query("SELECT * FROM migration") == before


@pytest.mark.req("C85")
async def test_an_older_version_refuses_a_newer_schema_and_writes_nothing(url: str, query: Query) -> None:
    await open_store(url).close()
    query("INSERT INTO migration (number, name, checksum, applied_at) SELECT max(number) + 1, 'later', 'x', 0 FROM migration")
    before = query("SELECT * FROM migration")
    with pytest.raises(SchemaTooNew, match="upgrade"):
        open_store(url)
    assert query("SELECT * FROM migration") == before


async def test_an_edited_migration_is_refused(url: str, query: Query) -> None:
    await open_store(url).close()
    query("UPDATE migration SET checksum = 'edited'")
    with pytest.raises(StoreError, match="other content"):
        open_store(url)


def test_a_schema_with_tables_of_another_application_is_not_touched(postgres_url: str) -> None:
    settings = PostgresSettings.from_url(postgres_url)
    with psycopg.connect(settings.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {settings.schema}; CREATE TABLE {settings.schema}.orders (id int)".encode())
        with pytest.raises(NotAStore, match="another application"):
            PostgresStore(settings)
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [settings.schema]).fetchall()
    assert rows == [("orders",)]
