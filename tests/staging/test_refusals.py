"""What cannot be staged on, and what a store is not: said clearly, with the producer's transaction still usable."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from quiesce.domain.errors import InvalidInput, NotAStore, Refused, SchemaTooNew, StoreBusy, StoreError, StoreUnavailable
from quiesce.staging import stage, stage_async, supersede, withdraw
from tests.staging.kit import KINDS, Producer, World, producing, request

DRIVERS = ["sqlite3", "aiosqlite", "psycopg", "psycopg async"]


@pytest.mark.parametrize("connection", [None, "sqlite:///store.db", object()])
async def test_anything_else_is_refused_with_the_names_of_what_can_be_staged_on(connection: object) -> None:
    synchronous = r"sqlite3\.Connection, a psycopg\.Connection, or a SQLAlchemy Connection or Session"
    for attempt in (
        lambda: stage(connection, request()),
        lambda: withdraw(connection, "an intent"),  # type: ignore[arg-type]
        lambda: supersede(connection, request().target, 1),
    ):
        with pytest.raises(InvalidInput, match=synchronous):
            attempt()
    with pytest.raises(InvalidInput, match=r"psycopg\.AsyncConnection, an aiosqlite\.Connection, or a SQLAlchemy"):
        await stage_async(connection, request())


async def test_the_wrong_half_of_a_driver_is_refused_by_name(sqlite_url: str) -> None:
    async with producing("aiosqlite", sqlite_url) as asynchronous, producing("sqlite3", sqlite_url) as synchronous:
        with pytest.raises(InvalidInput, match=r"aiosqlite\.core\.Connection.*cannot be staged on with stage:"):
            stage(asynchronous.connection, request())
        with pytest.raises(InvalidInput, match=r"sqlite3\.Connection.*cannot be staged on with stage_async:"):
            await stage_async(synchronous.connection, request())
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        with pytest.raises(InvalidInput, match=r"AsyncConnection.*cannot be staged on with stage:"):
            stage(connection, request())
    await engine.dispose()


@pytest.mark.parametrize("schema", ["elsewhere", "", 'a "quoted" one; SELECT 1', "with'quote"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"], indirect=True)
async def test_a_schema_without_a_store_is_not_a_store(producer: Producer, world: World, schema: str) -> None:
    await producer.order(1)
    right, producer.schema = producer.schema, schema
    with pytest.raises(NotAStore, match="lacks a table of ours"):
        await producer.stage(request())
    producer.schema = right
    await producer.order(2)
    await producer.stage(request("order 2"))
    await producer.commit()
    assert await producer.numbers() == [1, 2]
    assert await world.delivered() == ["order 2"]


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
@pytest.mark.parametrize("schema", ["a\0b", "\ud800"])
async def test_a_schema_that_cannot_be_a_name_is_invalid_and_nothing_was_sent(
    producer: Producer, world: World, schema: str
) -> None:
    await producer.order(1)
    right, producer.schema = producer.schema, schema
    with pytest.raises(InvalidInput):
        await producer.stage(request())
    producer.schema = right
    await producer.commit()
    assert await producer.numbers() == [1]


@pytest.mark.parametrize("theirs", ["", "CREATE TABLE migration (number INTEGER, name TEXT, checksum TEXT)"])
@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
async def test_a_file_that_is_no_store_is_not_touched(kind: str, theirs: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with producing(kind, f"sqlite:///{path}") as producer:
        await producer.run("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
        if theirs:
            await producer.run(theirs)
        await producer.commit()
        await producer.order(1)
        with pytest.raises(NotAStore):
            await producer.stage(request())
        await producer.order(2)
        await producer.commit()
        assert await producer.numbers() == [1, 2]
    with sqlite3.connect(path) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%'")}
        assert names <= {"orders", "migration"}
        assert connection.execute("PRAGMA application_id").fetchone() == (0,)
    connection.close()


CHANGES: dict[str, tuple[str, type[Exception], str]] = {
    "a later version": ("INSERT INTO {} VALUES (9999, 'later', 'x', 0)", SchemaTooNew, "upgrade"),
    "an earlier version": ("DELETE FROM {} WHERE number > 1", StoreError, "lacks migration 2"),
    "other content": ("UPDATE {} SET checksum = 'x' WHERE number = 1", StoreError, "other content"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", DRIVERS, indirect=True)
async def test_a_schema_of_another_version_is_refused_and_the_producer_goes_on(
    producer: Producer, world: World, kind: str, change: str
) -> None:
    statement, error, words = CHANGES[change]
    table = f"{producer.schema}.migration" if KINDS[kind][0] == "postgres" else "migration"
    await producer.run(statement.format(table))
    with pytest.raises(error, match=words):
        await producer.stage(request())
    await producer.order()
    await producer.commit()
    assert await producer.numbers() == [1]


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"], indirect=True)
async def test_a_transaction_that_has_failed_is_refused(producer: Producer) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await producer.run("SELECT * FROM nowhere")
    with pytest.raises(Refused, match="has failed before"):
        await producer.stage(request())
    await producer.rollback()
    await producer.stage(request())


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
async def test_a_connection_in_pipeline_mode_is_refused(producer: Producer) -> None:
    connection: psycopg.Connection[Any] = producer.connection
    with connection.pipeline(), pytest.raises(Refused, match="pipeline"):
        await producer.stage(request())
    await producer.stage(request())


@pytest.mark.parametrize("kind", DRIVERS, indirect=True)
async def test_a_closed_connection_is_an_error_of_the_store(producer: Producer, kind: str) -> None:
    closed = producer.connection.close()
    if closed is not None:
        await closed
    with pytest.raises(StoreUnavailable if "sqlite" not in kind else StoreError):
        await producer.stage(request())


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"], indirect=True)
async def test_a_server_that_has_gone_is_told(producer: Producer, world: World, postgres_server: str, begins: bool) -> None:
    if begins:
        await producer.order()
    with psycopg.connect(postgres_server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 30000)", [producer.connection.info.backend_pid])
    with pytest.raises(StoreUnavailable):
        await producer.stage(request())
    assert await world.intent() is None


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"], indirect=True)
async def test_a_transaction_whose_view_has_become_old_is_told_so_and_may_be_run_again(
    producer: Producer, world: World, kind: str, url: str
) -> None:
    await producer.run("BEGIN")
    assert await producer.numbers() == []
    async with producing(kind, url) as other:
        await other.order(1)
        await other.commit()
    with pytest.raises(StoreBusy) as caught:
        await producer.stage(request())
    assert caught.value.retryable
    assert await producer.numbers() == [], "the transaction is still there"
    await producer.rollback()
    await producer.stage(request())
    await producer.commit()
    assert await world.delivered() == ["order 1"]


def test_no_driver_is_imported_that_the_producer_has_not_imported() -> None:
    program = "import sys, quiesce.staging; print(sorted({'psycopg', 'sqlalchemy', 'aiosqlite'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"
