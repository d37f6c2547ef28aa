"""Many readers and slow ones: who waits costs next to nothing, and who does not take its frames holds up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus
from quiesce.ports.notifier import run_topic
from quiesce.runtime import readers
from quiesce.runtime.context import Run
from quiesce.runtime.readers import KeepAlive, read_stream
from quiesce.runtime.registry import declare_agent
from tests.readers.kit import Read, last_number, process
from tests.runtime.kit import FAST, Cluster, eventually, within

IDLE = 300
POOL = 5


async def waits(run: Run) -> None:
    await run.emit("asleep")
    await run.sleep(3600)


WAITS = declare_agent(waits)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that has threads and connections to run out of."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    url = str(request.getfixturevalue("postgres_url"))
    return f"{url}&pool_size={POOL}"


@pytest.mark.req("C101", "C33", "ST-15")
async def test_readers_of_waiting_runs_hold_neither_threads_nor_connections_and_cost_one_look(cluster: Cluster) -> None:
    host = await cluster.start(WAITS, settings=replace(FAST, linger_ms=0))
    run_ids = await asyncio.gather(*(cluster.submit(WAITS) for _ in range(IDLE)))
    await eventually(lambda: _all_wait(cluster, run_ids))
    await host.close()
    env, line = process(cluster.store)
    threads = threading.active_count()
    reads = [Read() for _ in run_ids]
    tasks = [
        asyncio.create_task(read.take(read_stream(env, run_id, keep_alive_ms=1)))
        for read, run_id in zip(reads, run_ids, strict=True)
    ]
    await eventually(lambda: _all_have(reads, 1))
    before, quiet = line.reads, 20
    for _ in range(quiet):
        await env.live.lookout.glance(env.store, env.clock, run_ids[0])  # behind it, everybody who was due has looked
        await env.clock.sleep(FAST.poll_ms)
    assert line.reads - before < IDLE, "hundreds of readers look together"
    assert threading.active_count() <= threads + POOL
    for run_id, read, task in list(zip(run_ids, reads, tasks, strict=True))[:3]:
        await cluster.service.cancel(run_id)
        receipt = await cluster.receipt(run_id)
        await within(task)
        assert (read.end.receipt_id, read.end.status) == (receipt.id, RunStatus.CANCELLED)
    assert not any(task.done() for task in tasks[3:])
    for task in tasks[3:]:
        task.cancel()
    await asyncio.wait(tasks)
    assert [read.data for read in reads] == [["asleep"]] * IDLE
    assert not env.live._feeds, "who leaves leaves nothing behind"


async def _all_wait(cluster: Cluster, run_ids: list[RunId]) -> bool:
    glances = await cluster.store.read(lambda tx: tx.streams.glances(run_ids))
    return all(glances[run_id].status == RunStatus.WAITING for run_id in run_ids)


async def _all_have(reads: list[Read], count: int) -> bool:
    return all(len(read.events) >= count for read in reads)


@pytest.mark.req("C102", "C37", "ST-08", "ST-15")
async def test_a_reader_that_stalls_and_one_that_leaves_hold_up_nobody(cluster: Cluster) -> None:
    count, taken = 12_000, 10
    agent_may_end = asyncio.Event()

    async def floods(run: Run) -> int:
        for n in range(count):
            await run.emit(n)
        await agent_may_end.wait()
        return count

    agent = declare_agent(floods)
    run_id = await cluster.submit(agent)
    env, line = process(cluster.store)
    stalled, its_frames = Read(), read_stream(env, run_id)
    leaving, normal = Read(), Read()
    reading = asyncio.create_task(normal.take(read_stream(cluster.env, run_id)))
    host = await cluster.start(agent)
    await stalled.take(its_frames, until=lambda _: len(stalled.events) == taken)
    await leaving.take(read_stream(cluster.env, run_id), until=lambda _: len(leaving.events) == taken)
    reads_of_the_stalled = line.reads
    agent_may_end.set()
    assert await cluster.result(run_id) == count, "it ends while one reader takes nothing"
    await within(reading)
    assert normal.data == list(range(count))
    assert line.reads == reads_of_the_stalled, "who takes nothing has nothing read for it"
    assert max(len(write.events) for write in host.line.writes) <= host.env.limits.events_buffered_max + 1
    await stalled.take(its_frames)
    assert stalled.data == list(range(count)), "it catches up from where it was"
    assert stalled.end == normal.end
    assert last_number(run_id, stalled.events) == normal.end.last_seq


@pytest.mark.req("C38", "C101")
async def test_a_reader_that_is_rung_for_nothing_reads_no_page_and_is_kept_alive(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await cluster.start(WAITS)
    run_id = await cluster.submit(WAITS)
    await cluster.reaches(run_id, RunStatus.WAITING)
    await host.close()
    env, _ = process(cluster.store, replace(FAST, poll_ms=600_000))
    pages = alive = 0

    def read_page(*given: object, **named: object) -> object:
        nonlocal pages
        pages += 1
        return original(*given, **named)

    original = cast("Callable[..., object]", readers._read_page)
    monkeypatch.setattr(readers, "_read_page", read_page)
    ringing = asyncio.create_task(_ring(cluster, run_id))
    async with asyncio.timeout(60):
        async for frame in read_stream(env, run_id, keep_alive_ms=20):
            alive += isinstance(frame, KeepAlive)
            if alive == 3:
                break
    ringing.cancel()
    assert pages == 1


async def _ring(cluster: Cluster, run_id: RunId) -> None:
    """Ring for nothing, as commits of other processes do."""
    while True:
        cluster.store.notifier.ring(run_topic(run_id))
        await asyncio.sleep(0.001)
