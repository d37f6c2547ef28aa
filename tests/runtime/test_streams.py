"""Streams: numbers that only rise, a replay that shows nothing twice, readers that get every event once and an end."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import InvalidInput, NotFound
from quiesce.domain.ids import RunId
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import EventKind, StreamEvent, first_chain, gap_range, next_chain
from quiesce.runtime.context import Run
from quiesce.runtime.readers import KeepAlive, StreamEnd, read_stream
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import Cluster, Gate, within


def data(events: list[StreamEvent]) -> list[object]:
    """Return the payloads of what the agent emitted."""
    return [parse(e.payload) for e in events if e.kind is EventKind.DATA]


def check_chain(run_id: RunId, events: list[StreamEvent]) -> str:
    """Recompute the hash chain; return its last value."""
    chain, seq = first_chain(run_id), 0
    for event in events:
        assert event.seq == seq + 1 or (event.kind is EventKind.GAP and gap_range(event) == (seq + 1, event.seq - 1))
        chain = next_chain(chain, event.seq, event.kind, event.payload)
        assert event.chain == chain
        seq = event.seq
    return chain


@pytest.mark.req("ST-01", "C29", "TR-13")
async def test_numbers_rise_by_one_over_restarts_and_the_chain_recomputes(cluster: Cluster) -> None:
    gates = [Gate(), Gate(), Gate()]

    async def talks(run: Run) -> None:
        for part, gate in enumerate(gates):
            for n in range(3):
                await run.emit([part, n])
            await run.step(gate.wait)

    agent = declare_agent(talks)
    run_id = await cluster.submit(agent)
    for part, gate in enumerate(gates):
        host = await cluster.start(agent)
        await gate.arrival()
        await cluster.stored(run_id, 3 * (part + 1))
        await host.kill()
        gate.open()
    await cluster.start(agent)
    receipt = await cluster.receipt(run_id)
    events, end = await cluster.watch(run_id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert check_chain(run_id, events) == receipt.h2
    assert receipt.h2_exact
    assert data(events) == [[part, n] for part in range(3) for n in range(3)]
    assert end.last_seq == receipt.frontier.emitted_seq == len(events)
    fences = [e.fence for e in events]
    assert fences == sorted(fences)
    assert len(set(fences)) >= 3


@pytest.mark.req("ST-01", "C37", "RR-15")
async def test_a_replay_shows_nothing_twice(cluster: Cluster) -> None:
    gate = Gate()

    async def talks(run: Run) -> None:
        await run.emit("before")
        await run.checkpoint({"at": 1})
        await run.emit("behind the checkpoint")
        await run.step(gate.wait)
        await run.emit("after")

    agent = declare_agent(talks)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.stored(run_id, 2)
    await first.kill()
    gate.open()
    await cluster.start(agent)
    events, _ = await cluster.watch(run_id)
    assert data(events) == ["before", "behind the checkpoint", "after"]
    assert [e.kind for e in events].count(EventKind.SUPERSEDED) == 0


@pytest.mark.req("ST-12", "ST-01", "TR-34")
async def test_a_replay_that_says_something_else_supersedes_what_it_contradicts(cluster: Cluster) -> None:
    gate = Gate()
    texts = itertools.chain(["same", "old one", "old two"], ["same", "new one", "new two"])

    async def talks(run: Run) -> None:
        for _ in range(3):
            await run.emit(next(texts))
        await run.step(gate.wait)

    agent = declare_agent(talks)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.stored(run_id, 3)
    await first.kill()
    gate.open()
    await cluster.start(agent)
    events, _ = await cluster.watch(run_id)
    assert data(events) == ["same", "old one", "old two", "new one", "new two"]
    (superseded,) = [e for e in events if e.kind is EventKind.SUPERSEDED]
    assert gap_range(superseded) == (2, 3)
    assert superseded.seq < next(e.seq for e in events if parse(e.payload) == "new one")
    assert not superseded.state_bearing


@pytest.mark.req("ST-04", "ST-12")
@pytest.mark.parametrize("how", ["crash", "retry"])
async def test_a_step_that_begins_anew_supersedes_its_partial_output_only(cluster: Cluster, how: str) -> None:
    gate = Gate()
    tries = 0

    async def talks(run: Run) -> None:
        async def writes() -> None:
            nonlocal tries
            tries += 1
            await run.emit(f"partial {tries}")
            if tries == 1 and how == "crash":
                await gate.wait()
            if tries == 1:
                raise RuntimeError("again")

        await run.emit("outside")
        await run.step(writes, retry=RetryPolicy(tries=2, first_delay_ms=1))

    agent = declare_agent(talks)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    if how == "crash":
        await gate.arrival()
        await cluster.stored(run_id, 2)
        await host.kill()
        await cluster.start(agent)
    events, _ = await cluster.watch(run_id)
    assert data(events) == ["outside", "partial 1", "partial 2"]
    (superseded,) = [e for e in events if e.kind is EventKind.SUPERSEDED]
    first = next(e for e in events if parse(e.payload) == "partial 1")
    assert gap_range(superseded) == (first.seq, first.seq)
    assert superseded.operation is None or superseded.operation == "1"


@pytest.mark.req("ST-15", "C34", "C29")
async def test_a_reader_resumes_from_any_number_and_gets_exactly_what_follows(cluster: Cluster) -> None:
    async def talks(run: Run) -> None:
        for n in range(600):  # more than a page
            await run.emit(n)

    agent = declare_agent(talks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    receipt = await cluster.receipt(run_id)
    whole, end = await cluster.watch(run_id)
    assert [e.seq for e in whole] == list(range(1, 601))
    assert (end.receipt_id, end.status) == (receipt.id, receipt.status)
    for after in (1, 299, 500, 599, 600):
        rest, end = await cluster.watch(run_id, after=after)
        assert rest == whole[after:]
        assert end.receipt_id == receipt.id


@pytest.mark.req("ST-15", "C31")
@pytest.mark.parametrize("after", [3, 4, 10**6])
async def test_a_cursor_at_or_past_the_end_gets_the_end_at_once(cluster: Cluster, after: int) -> None:
    async def talks(run: Run) -> None:
        for n in range(3):
            await run.emit(n)

    agent = declare_agent(talks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    receipt = await cluster.receipt(run_id)
    events, end = await cluster.watch(run_id, after=after)
    assert (events, end.receipt_id) == ([], receipt.id)


@pytest.mark.req("ST-15", "C94", "C31")
async def test_a_stream_that_is_not_one_s_own_does_not_exist(cluster: Cluster) -> None:
    async def silent(run: Run) -> None: ...

    agent = declare_agent(silent)
    run_id = await cluster.submit(agent)
    with pytest.raises(NotFound):
        await within(anext(read_stream(cluster.env, run_id, tenant="other")))
    with pytest.raises(InvalidInput, match="after"):
        await within(anext(read_stream(cluster.env, run_id, after=-1)))


@pytest.mark.req("C37", "ST-15", "ST-08", "C34")
async def test_ten_readers_who_reconnect_three_times_each_see_every_event_once(cluster: Cluster) -> None:
    models = 0
    gate = Gate()

    async def talks(run: Run) -> None:
        nonlocal models
        models += 1
        for n in range(90):
            await run.emit(n)
            if n % 10 == 0:
                await run.step(_nothing, n)
        await run.step(gate.wait)

    agent = declare_agent(talks)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)

    async def reads(reader: int) -> list[StreamEvent]:
        seen: list[StreamEvent] = []
        for stop_at in (5 + reader, 30 + reader, 60 + reader):
            async for frame in read_stream(cluster.env, run_id, after=len(seen)):
                if isinstance(frame, StreamEvent):
                    seen.append(frame)
                if len(seen) >= stop_at:
                    break
        rest, _ = await cluster.watch(run_id, after=len(seen))
        return [*seen, *rest]

    readers = [asyncio.create_task(reads(reader)) for reader in range(10)]
    await gate.arrival()
    await first.kill()
    gate.open()
    await cluster.start(agent)
    seen = await within(asyncio.gather(*readers))
    stored = await cluster.events(run_id)
    assert all(events == stored for events in seen)
    assert data(stored) == list(range(90))
    assert models == 2


async def _nothing(n: int) -> int:
    return n


@pytest.mark.req("C38", "ST-15")
async def test_a_keep_alive_has_no_number_and_moves_nothing(cluster: Cluster) -> None:
    gate = Gate()

    async def quiet(run: Run) -> None:
        await run.emit("one")
        await run.step(gate.wait)
        await run.emit("two")

    agent = declare_agent(quiet)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    frames: list[object] = []
    async with asyncio.timeout(20):
        async for frame in read_stream(cluster.env, run_id, keep_alive_ms=40):
            frames.append(frame)
            if [type(f) for f in frames].count(KeepAlive) == 2:
                gate.open()
    alive = [f for f in frames if isinstance(f, KeepAlive)]
    assert len(alive) >= 2
    assert alive[0].status is RunStatus.RUNNING
    assert [f.seq for f in frames if isinstance(f, StreamEvent)] == [1, 2]
    assert isinstance(frames[-1], StreamEnd)


@pytest.mark.req("C33", "C32", "TR-22")
async def test_readers_of_a_waiting_run_get_one_end_that_carries_the_receipt(cluster: Cluster) -> None:
    async def waits(run: Run) -> None:
        await run.emit("asleep")
        await run.sleep(3600)

    agent = declare_agent(waits)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    readers = [asyncio.create_task(cluster.watch(run_id)) for _ in range(2)]
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    for events, end in await within(asyncio.gather(*readers)):
        assert data(events) == ["asleep"]
        assert (end.receipt_id, end.status) == (receipt.id, RunStatus.CANCELLED)


@pytest.mark.req("G-25", "ST-03", "TR-09")
@pytest.mark.parametrize(("state_bearing", "policy"), [(False, "allow"), (True, "reconcile")])
async def test_only_state_bearing_events_open_a_gap(cluster: Cluster, state_bearing: bool, policy: str) -> None:
    gate = Gate()

    async def reports(run: Run) -> None:
        await run.emit("stated")
        await run.checkpoint("stated")
        await run.emit("37 %", channel="progress", state_bearing=state_bearing)
        await run.step(gate.wait)

    agent = declare_agent(reports)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert receipt.policy.policy == policy
    assert (receipt.gap.kind == "none") is not state_bearing
    assert receipt.frontier.covered_seq == 1
    assert receipt.frontier.emitted_seq == receipt.frontier.stored_seq == 2
    assert receipt.gap.state_bearing == int(state_bearing)


@pytest.mark.req("C102")
async def test_an_agent_that_emits_faster_than_the_store_waits_and_loses_nothing(cluster: Cluster) -> None:
    async def floods(run: Run) -> None:
        for n in range(3000):
            await run.emit(n)

    agent = declare_agent(floods)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await cluster.result(run_id)
    assert data(await cluster.events(run_id)) == list(range(3000))
    assert max(len(write.events) for write in host.line.writes) <= host.env.limits.events_buffered_max + 1
