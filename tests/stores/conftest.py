"""Fixtures of the tests of the SQL stores: both dialects, opened by URL and closed whatever happened."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from quiesce.bootstrap import open_store
from quiesce.ports.store import Store
from quiesce.stores.postgres import PostgresSettings
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]
Dump = Callable[[], dict[str, list[tuple[object, ...]]]]


@pytest.fixture
def make() -> Samples:
    """Builders of records."""
    return Samples()


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def sqlite_url(sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty place for a store, of each dialect in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens stores without holding up the event loop, and closes them in the end."""
    stores: list[Store] = []

    async def open_at(url: str) -> Store:
        stores.append(await asyncio.to_thread(open_store, url))
        return stores[-1]

    yield open_at
    for store in stores:
        await store.close()


@pytest.fixture
def dump(url: str) -> Dump:
    """Reads every row of every table past the store, so that nothing it wrote can hide."""
    return (lambda: _dump_sqlite(url)) if url.startswith("sqlite") else (lambda: _dump_postgres(url))


def _dump_sqlite(url: str) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}  # noqa: S608
    connection.close()
    return found


def _dump_postgres(url: str) -> dict[str, list[tuple[object, ...]]]:
    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", [settings.schema])
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [settings.schema]).fetchall()
        found: dict[str, list[Any]] = {}
        for (name,) in names:
            table = psycopg.sql.Identifier(name)
            found[name] = sorted(connection.execute(psycopg.sql.SQL("SELECT * FROM {}").format(table)), key=repr)
        return found
