"""After staging, the producer's connection is as it was before, also where staging was refused."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Dumper
from psycopg.rows import RowMaker, dict_row, tuple_row

from quiesce.domain.errors import InvalidInput
from quiesce.stores.postgres import PostgresSettings
from tests.staging.kit import Producer, World, request

ON_POSTGRES = ["psycopg", "psycopg async", "sqlalchemy connection over postgres", "sqlalchemy async connection over postgres"]


def only_mine(cursor: Any) -> RowMaker[Any]:
    """A row factory that serves the producer's rows and no others."""
    assert [column.name for column in cursor.description or []] in ([], ["n"]), "not a row of the producer's"
    return dict_row(cursor)


async def _stage_well_and_badly(producer: Producer) -> None:
    await producer.stage(request())
    with pytest.raises(InvalidInput):
        await producer.stage(request("bad", revision=7))


@pytest.mark.parametrize("kind", ON_POSTGRES, indirect=True)
async def test_the_search_path_is_the_producers_own_during_its_transaction_and_behind_it(producer: Producer) -> None:
    show = "SELECT current_setting('search_path')"
    await producer.run('SET search_path = somewhere, "Else, where"')
    await producer.commit()
    await producer.run("SET search_path = 'for this and what follows'")
    (here,) = await producer.run(show)
    await _stage_well_and_badly(producer)
    assert await producer.run(show) == [here]
    await producer.run("SET LOCAL search_path = 'for this only'")
    await producer.stage(request("order 2"))
    assert await producer.run(show) == [('"for this only"',)]
    await producer.commit()
    assert await producer.run(show) == [('"for this and what follows"',)]


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
async def test_factories_adapters_and_prepared_statements_of_a_psycopg_connection_stay(producer: Producer, url: str) -> None:
    class Doubled(Dumper):
        oid = psycopg.adapters.types["int4"].oid

        def dump(self, obj: int) -> bytes:
            return str(2 * obj).encode()

    connection: psycopg.Connection[Any] = producer.connection
    connection.row_factory = only_mine
    connection.cursor_factory = psycopg.ClientCursor
    connection.adapters.register_dumper(int, Doubled)
    connection.prepare_threshold = 0
    notices: list[str] = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    names = "SELECT name FROM pg_prepared_statements ORDER BY name"
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    before = [cursor.execute(names).fetchall() for _ in range(2)][1]
    assert len(before) == 1
    connection.commit()
    await _stage_well_and_badly(producer)
    assert cursor.execute(names).fetchall() == before, "prepared by the producer, and still usable"
    assert connection.row_factory is only_mine
    assert connection.cursor_factory is psycopg.ClientCursor
    assert connection.prepare_threshold == 0
    assert connection.execute("SELECT %s AS n", [4]).fetchone() == {"n": 8}
    connection.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
    assert notices == ["heard"], "its notices still come to it"


@pytest.mark.parametrize("kind", ["psycopg async"], indirect=True)
async def test_factories_of_an_asynchronous_psycopg_connection_stay(producer: Producer) -> None:
    connection: psycopg.AsyncConnection[Any] = producer.connection
    connection.row_factory = only_mine
    await _stage_well_and_badly(producer)
    assert connection.row_factory is only_mine
    cursor = await connection.execute("SELECT 4 AS n")
    assert await cursor.fetchone() == {"n": 4}


@pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
async def test_row_and_text_factories_of_a_sqlite_connection_stay(producer: Producer) -> None:
    connection: sqlite3.Connection = producer.connection
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes
    await _stage_well_and_badly(producer)
    assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
    await producer.commit()
    (row,) = connection.execute("SELECT producer_key FROM intent").fetchall()
    assert row["producer_key"] == b"order 1"


@pytest.mark.parametrize("kind", ["aiosqlite"], indirect=True)
async def test_the_row_factory_of_an_aiosqlite_connection_stays(producer: Producer) -> None:
    producer.connection.row_factory = sqlite3.Row
    await _stage_well_and_badly(producer)
    assert producer.connection.row_factory is sqlite3.Row


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
async def test_tables_of_the_producers_own_never_stand_in_for_those_of_the_store(producer: Producer, world: World) -> None:
    await producer.run("CREATE TEMPORARY TABLE intent (n int) ON COMMIT DROP")
    await producer.run("CREATE TEMPORARY TABLE migration (n int) ON COMMIT DROP")
    await producer.stage(request())
    assert await producer.run("SELECT * FROM pg_temp.intent") == []
    await producer.commit()
    assert await world.intent() is not None


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"], indirect=True)
async def test_workers_are_rung_with_the_commit_and_only_then(producer: Producer, world: World, url: str) -> None:
    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo, autocommit=True) as listener:
        listener.execute(f'LISTEN "{settings.schema}"'.encode())
        await producer.stage(request())
        await producer.rollback()
        await producer.run(f"NOTIFY \"{settings.schema}\", 'a mark'")
        await producer.commit()
        await producer.stage(request())
        await producer.run(f"NOTIFY \"{settings.schema}\", 'another'")
        await producer.commit()
        heard = [notice.payload for notice in listener.notifies(timeout=30, stop_after=3)]
    assert heard == ["a mark", "commands", "another"]


@pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
async def test_on_sqlite_the_instant_is_that_of_the_files_own_clock(producer: Producer, world: World) -> None:
    """An anchor that lies a day ahead shows which clock was asked."""
    before = await world.store.read(lambda tx: tx.read_clock())
    (staged,) = await producer.stage(request())
    await producer.commit()
    assert before <= staged.intent.staged_at <= await world.store.read(lambda tx: tx.read_clock())
    await producer.run("UPDATE clock_anchor SET wall_us = wall_us + 86400000000")
    (later,) = await producer.stage(request("order 2"))
    assert later.intent.staged_at - staged.intent.staged_at >= 82_800_000_000
