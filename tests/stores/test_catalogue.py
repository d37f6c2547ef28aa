"""The two catalogues: equal names and parameters, every query compiled against the migrated schema and used by somebody."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import quiesce.stores.sql
from quiesce.domain.errors import InvariantBroken
from quiesce.stores import catalogue
from quiesce.stores.catalogue import Query
from quiesce.stores.postgres import PostgresSettings
from quiesce.stores.postgres import connection as postgres_connection
from quiesce.stores.postgres.opening import prepare
from quiesce.stores.sqlite import SqliteSettings
from quiesce.stores.sqlite import connection as sqlite_connection
from quiesce.stores.sqlite.clock import MachineTime
from quiesce.stores.sqlite.opening import open_file

SQLITE = catalogue.load("quiesce.stores.sqlite")
POSTGRES = catalogue.load("quiesce.stores.postgres")
ONLY_SQLITE = {"get_anchor", "put_anchor", "latest_instant"}
"""The clock of the file; a server has its own."""


@pytest.fixture
def sqlite(sqlite_path: Path) -> Iterator[sqlite3.Connection]:
    connection, reader, _ = open_file(SqliteSettings(path=sqlite_path), MachineTime())
    yield connection
    connection.close()
    reader.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[postgres_connection.Connection]:
    settings = PostgresSettings.from_url(postgres_url)
    with postgres_connection.connect(settings) as connection:
        prepare(connection, settings)
        yield connection


def test_both_dialects_have_the_same_queries_with_the_same_parameters() -> None:
    assert {name: set(query.parameters) for name, query in POSTGRES.items()} == {
        name: set(query.parameters) for name, query in SQLITE.items() if name not in ONLY_SQLITE
    }


def test_both_dialects_agree_on_which_queries_write() -> None:
    assert {name for name, query in POSTGRES.items() if query.writes} == {
        name for name, query in SQLITE.items() if query.writes and name not in ONLY_SQLITE
    }


@pytest.mark.parametrize("query", SQLITE.values(), ids=lambda query: query.name)
def test_every_query_compiles_on_sqlite(sqlite: sqlite3.Connection, query: Query) -> None:
    sqlite.execute("EXPLAIN " + query.sql, dict.fromkeys(query.parameters, "[]"))


def test_every_query_compiles_on_postgres(postgres: postgres_connection.Connection) -> None:
    for query in POSTGRES.values():
        numbered = _numbered(query)
        result = postgres.pgconn.prepare(query.name.encode(), numbered.encode())
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (query.name, result.error_message)


def test_rows_have_their_columns_in_the_same_order_in_both_dialects(
    sqlite: sqlite3.Connection, postgres: postgres_connection.Connection
) -> None:
    tables = [row[0] for row in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in set(tables) - {"clock_anchor"}:
        here = [row[1] for row in sqlite.execute(f"PRAGMA table_info({table})")]
        there = postgres.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position",
            [table],
        )
        assert here == [row[0] for row in there], table


def test_every_query_is_asked_by_somebody_and_nobody_asks_for_another() -> None:
    stores = Path(quiesce.stores.sql.__file__).parents[1]
    source = "\n".join(path.read_text() for path in stores.rglob("*.py"))
    called = set(re.findall(r"(?:\.one|\.many|\.run|\.run_many|\.many_of)\(\s*\"(\w+)\"", source))
    assert called == set(SQLITE)


def test_the_catalogues_are_loaded_by_their_connections() -> None:
    assert dict(sqlite_connection.CATALOGUE) == SQLITE
    assert dict(postgres_connection.CATALOGUE) == POSTGRES


def test_comments_give_the_reason_and_are_not_part_of_the_statement() -> None:
    (query,) = catalogue.parse("-- name: get\n-- Because :of that.\n-- And this.\nSELECT 1 -- :not a parameter\n;\n")
    assert (query.reason, query.sql, query.parameters) == ("Because :of that. And this.", "SELECT 1", ())


def test_casts_are_no_parameters_and_percent_signs_stay() -> None:
    (query,) = catalogue.parse("-- name: get\nSELECT :id::text, :limit % 2, :id;")
    assert query.parameters == ("id", "limit")
    assert query.pyformat() == b"SELECT %(id)b::text, %(limit)b %% 2, %(id)b"


def test_a_name_may_be_used_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "a.sql").write_text("-- name: get\nSELECT 1;\n")
    (tmp_path / "queries" / "b.sql").write_text("-- name: get\nSELECT 2;\n")
    monkeypatch.setattr(catalogue, "files", lambda _: tmp_path)
    with pytest.raises(InvariantBroken, match="twice"):
        catalogue.load("anything")


def _numbered(query: Query) -> str:
    """Return the statement with `$1`, as the server's own PREPARE wants it."""
    return re.sub(r"(?<![:\w]):([a-z_]\w*)", lambda found: f"${query.parameters.index(found[1]) + 1}", query.sql)
