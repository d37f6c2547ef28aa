"""Producers that meet: in scopes named in opposite order, under one key, or at a file's one lock for writers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.staging.kit import Producer, World, producing, request
from tests.stores.meeting import BOUND_S


async def until_waiting(server: str, *producers: Producer) -> None:
    """Return once each of these waits for a row that another has locked."""
    pids = [producer.connection.info.backend_pid for producer in producers]
    question = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = ANY(%s)"

    def look() -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            while connection.execute(question, [pids]).fetchone() != (len(pids),):
                pass

    await asyncio.wait_for(asyncio.to_thread(look), BOUND_S)


@contextlib.asynccontextmanager
async def several(url: str, count: int) -> AsyncIterator[list[Producer]]:
    """Producers whose staging may wait without holding up the test."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(producing("psycopg async", url)) for _ in range(count)]


@pytest.mark.req("CC-24", "CC-26")
@pytest.mark.parametrize("kind", ["psycopg async"], indirect=True)
async def test_two_producers_who_name_their_scopes_in_opposite_order_do_not_block_each_other(
    world: World, url: str, postgres_server: str
) -> None:
    """Who names `b` first stands first in line for it; had it not taken `a` before, the other would have, and wait for `b`."""
    async with several(url, 3) as (holder, backward, forward):
        await holder.stage(request("0", scope="b"))
        first = asyncio.ensure_future(backward.stage(request("1", scope="b"), request("2", scope="a")))
        await until_waiting(postgres_server, backward)
        second = asyncio.ensure_future(forward.stage(request("3", scope="a"), request("4", scope="b")))
        await until_waiting(postgres_server, backward, forward)
        await holder.commit()
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert len(await first) == 2
        await backward.commit()
        assert len(await second) == 2
        await forward.commit()
    assert sorted(await world.delivered()) == ["0", "1", "2", "3", "4"]


@pytest.mark.req("CC-20")
@pytest.mark.parametrize("kind", ["aiosqlite"], indirect=True)
async def test_on_sqlite_a_transaction_that_begins_with_staging_waits_for_another_writer(world: World, url: str) -> None:
    """Had it read first, what it had seen would be old by the time that the other has committed."""
    asks_to_write = threading.Event()
    async with producing("sqlite3", url) as one, producing("aiosqlite", url) as other:

        def look(statement: str) -> None:
            if statement.startswith(("DELETE", "INSERT")):
                asks_to_write.set()

        await other.run("PRAGMA busy_timeout = 60000")
        await other.connection.set_trace_callback(look)
        await one.order(1)
        await one.stage(request("order 1"))
        waiting = asyncio.ensure_future(other.stage(request("order 2")))
        assert await asyncio.to_thread(asks_to_write.wait, BOUND_S)
        await one.commit()
        await waiting
        await other.commit()
    assert sorted(await world.delivered()) == ["order 1", "order 2"]


@pytest.mark.req("CC-12", "CC-20")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["psycopg async"], indirect=True)
async def test_a_producer_of_the_same_key_waits_and_gets_the_first_intent_if_that_is_committed(
    world: World, url: str, postgres_server: str, ends: str
) -> None:
    async with several(url, 2) as (one, other):
        (first,) = await one.stage(request())
        waiting = asyncio.ensure_future(other.stage(request()))
        await until_waiting(postgres_server, other)
        await (one.commit() if ends == "commit" else one.rollback())
        (second,) = await waiting
        await other.commit()
    assert second.is_new == (ends == "rollback")
    assert (second.intent == first.intent) == (ends == "commit")
    assert await world.intent() == second.intent
    assert await world.used() == 1


@pytest.mark.req("CC-20")
@pytest.mark.parametrize("kind", ["psycopg async"], indirect=True)
async def test_a_cancelled_task_gives_up_its_wait_and_its_connection_is_free_again(
    world: World, url: str, postgres_server: str
) -> None:
    async with several(url, 2) as (one, other):
        await one.stage(request())
        await other.order(2)
        waiting = asyncio.ensure_future(other.stage(request("order 2")))
        await until_waiting(postgres_server, other)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await other.numbers() == [2], "the producer's transaction goes on"
        await one.commit()
        await other.stage(request("order 2"))
        await other.commit()
    assert sorted(await world.delivered()) == ["order 1", "order 2"]
