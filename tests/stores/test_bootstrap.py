"""Opening a store from a URL: what is meant is found, what is not is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.errors import InvalidInput, StoreError
from quiesce.stores.postgres import PostgresSettings
from quiesce.stores.sqlite import SqliteSettings


async def test_each_scheme_opens_its_store(sqlite_url: str, postgres_url: str) -> None:
    names = []
    for url in ("memory://", sqlite_url, postgres_url):
        store = open_store(url)
        names.append((store.capabilities.name, store.capabilities.durability))
        await store.close()
    assert names == [("memory", "memory"), ("sqlite", "full"), ("postgres", "full")]


@pytest.mark.parametrize("url", ["mysql://host/db", "store.db", "", "sqlite:store.db", "://"])
def test_an_unknown_scheme_is_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="url"):
        open_store(url)


def test_a_sqlite_url_is_relative_or_absolute() -> None:
    assert SqliteSettings.from_url("sqlite:///agents.db").path == Path("agents.db")
    assert SqliteSettings.from_url("sqlite:////var/lib/agents%20x.db").path == Path("/var/lib/agents x.db")


def test_settings_of_a_sqlite_url_are_read() -> None:
    settings = SqliteSettings.from_url("sqlite:///a.db?synchronous=normal&busy_timeout_ms=70")
    assert (settings.synchronous, settings.busy_timeout_ms) == ("normal", 70)


@pytest.mark.parametrize(
    ("query", "field"),
    [("synchronous=off", "synchronous"), ("busy_timeout_ms=-1", "busy_timeout_ms"), ("cache=shared", "cache")],
)
def test_a_setting_that_cannot_be_is_named(query: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"url.{field}"):
        SqliteSettings.from_url(f"sqlite:///a.db?{query}")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_sqlite_url_names_a_file(url: str) -> None:
    with pytest.raises(InvalidInput, match="memory://"):
        open_store(url)


async def test_a_weaker_setting_shows(sqlite_url: str) -> None:
    store = open_store(f"{sqlite_url}?synchronous=normal")
    assert store.capabilities.durability == "synchronous=normal"
    await store.close()


def test_our_settings_of_a_postgres_url_are_kept_from_libpq() -> None:
    settings = PostgresSettings.from_url("postgresql://u:p%40@h/db?sslmode=require&schema=agents&pool_size=3&host=/tmp")
    assert (settings.schema, settings.pool_size) == ("agents", 3)
    assert settings.conninfo == "postgresql://u:p%40@h/db?sslmode=require&host=/tmp"
    assert PostgresSettings.from_url("postgresql://h/db?schema=x").conninfo == "postgresql://h/db"


@pytest.mark.parametrize(
    ("query", "field"),
    [("schema=A;B", "schema"), ("schema=", "schema"), ("pool_size=0", "pool_size"), ("colour=red", "url")],
)
def test_a_postgres_setting_that_cannot_be_is_named(query: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=field) as refused:
        PostgresSettings.from_url(f"postgresql://u:secret@h/db?{query}")
    assert "secret" not in str(refused.value)


def test_a_missing_driver_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"quiesce\[postgres\]"):
        open_store("postgresql://localhost/db")


@pytest.mark.req("C88")
async def test_a_weaker_postgres_shows(postgres_url: str) -> None:
    store = open_store(f"{postgres_url}&options=-c%20synchronous_commit%3Doff")
    assert store.capabilities.durability == "synchronous_commit=off"
    await store.close()


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        open_store(f"postgresql://u@/db?host={tmp_path}")
    assert refused.value.code == "STORE_UNAVAILABLE"
    assert os.fspath(tmp_path) in str(refused.value)
