"""Show-first streams: shown before they are stored, and still bounded when their process is gone (ST-13, ST-14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.boundary import GapKind, TerminalDurability
from quiesce.domain.canonical import parse
from quiesce.domain.limits import Limits
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import EventKind, StreamEvent, Visibility, gap_range
from quiesce.domain.writes import RunWrite
from quiesce.runtime.context import Run
from quiesce.runtime.readers import read_stream
from quiesce.runtime.registry import Agent, declare_agent
from tests.runtime.kit import FAST, LASTING, Cluster, Gate, Host, within

SHOW_FIRST = Visibility.SHOW_FIRST


class Talker:
    """An agent that emits, then waits at a gate, then emits again."""

    def __init__(self) -> None:
        self.gate = Gate()

        async def talks(run: Run) -> str:
            await run.emit("one")
            await run.emit("two")
            await run.step(self.gate.wait)
            await run.emit("three")
            return "done"

        self.agent: Agent = declare_agent(talks)


async def _shown(host: Host, run_id: str, count: int) -> list[StreamEvent]:
    """Read in the host's process until so many events were shown."""
    seen: list[StreamEvent] = []
    async for frame in read_stream(host.env, run_id, keep_alive_ms=10):  # type: ignore[arg-type]
        if isinstance(frame, StreamEvent):
            seen.append(frame)
        if len(seen) == count:
            return seen
    return seen


@pytest.mark.req("ST-14", "ST-02")
async def test_a_reader_in_the_process_sees_events_before_they_are_stored(cluster: Cluster) -> None:
    talker = Talker()
    host = cluster.host(talker.agent)
    refused = 0

    def no_events(write: RunWrite) -> bool:
        nonlocal refused
        if not write.events:
            return False
        refused += 1
        host.line.fails_before.append(no_events)  # each time anew: not one event is stored
        return True

    host.line.fails_before.append(no_events)
    await host.start()
    run_id = await cluster.submit(talker.agent, visibility=SHOW_FIRST)
    seen = await within(_shown(host, run_id, 2))
    assert [parse(e.payload) for e in seen] == ["one", "two"]
    assert await cluster.events(run_id) == []
    state = await cluster.store.read(lambda tx: tx.streams.state(run_id))
    assert state is not None
    assert state.reserved_seq >= seen[-1].seq, "what may be shown is bounded durably before it is shown"
    host.line.fails_before.clear()
    talker.gate.open()
    await cluster.result(run_id)
    events, _ = await cluster.watch(run_id)
    assert events[:2] == seen
    assert refused


@pytest.mark.req("ST-14", "ST-13", "TR-17", "TR-37", "C16")
async def test_after_a_death_and_a_cancel_the_frontier_is_bounded_and_says_so(cluster: Cluster) -> None:
    talker = Talker()
    host = await cluster.start(talker.agent)
    run_id = await cluster.submit(talker.agent, visibility=SHOW_FIRST, thread="t-1")
    await talker.gate.arrival()
    stored = 2
    await cluster.stored(run_id, stored)
    await host.kill()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    frontier = receipt.frontier
    assert (frontier.stored_seq, frontier.emitted_exact) == (stored, False)
    assert frontier.emitted_seq == FAST_BLOCK
    assert receipt.gap.kind is GapKind.PART_LOST
    assert (receipt.gap.first_seq, receipt.gap.last_seq) == (1, FAST_BLOCK)
    assert (receipt.durability, receipt.policy.policy) == (TerminalDurability.PARTIAL, Policy.RESTART)
    assert not receipt.h2_exact
    assert not receipt.cleanup_attempted
    events, end = await cluster.watch(run_id)
    assert (len(events), end.receipt_id) == (stored, receipt.id)


FAST_BLOCK = Limits().reserve_block


@pytest.mark.req("ST-14", "ST-01", "C29")
async def test_a_successor_accounts_for_the_numbers_that_died_and_reuses_none(cluster: Cluster) -> None:
    talker = Talker()
    host = await cluster.start(talker.agent)
    run_id = await cluster.submit(talker.agent, visibility=SHOW_FIRST)
    await talker.gate.arrival()
    stored = 2
    await cluster.stored(run_id, stored)
    await host.kill()
    reader = asyncio.create_task(cluster.watch(run_id, after=stored + 3))  # a client that saw more than was stored
    talker.gate.open()
    await cluster.start(talker.agent)
    await cluster.result(run_id)
    events, _ = await cluster.watch(run_id)
    gap = events[stored]
    assert gap.kind is EventKind.GAP
    assert gap_range(gap) == (stored + 1, FAST_BLOCK)
    assert gap.seq == FAST_BLOCK + 1
    assert [parse(e.payload) for e in events if e.kind is EventKind.DATA][-1] == "three"
    rejoined, _ = await within(reader)
    assert rejoined == events[stored:]
    assert (await cluster.receipt(run_id)).frontier.emitted_exact


@pytest.mark.req("ST-14", "ST-13", "TR-09")
async def test_a_run_that_waits_without_a_process_has_lost_nothing(cluster: Cluster) -> None:
    async def naps(run: Run) -> None:
        await run.emit("one")
        await run.sleep(3600)

    agent = declare_agent(naps)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, visibility=SHOW_FIRST)
    await cluster.reaches(run_id, RunStatus.WAITING)
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert (receipt.frontier.emitted_seq, receipt.frontier.emitted_exact) == (1, True)
    assert receipt.gap.kind is GapKind.RECOVERABLE
    assert receipt.h2_exact


@pytest.mark.req("ST-01", "ST-14")
@pytest.mark.parametrize("how", ["parked", "released"])
async def test_a_holder_that_left_in_order_leaves_no_gap(cluster: Cluster, how: str) -> None:
    gate = Gate()

    async def talks(run: Run) -> None:
        await run.emit("one")
        if how == "parked":
            await (await run.spawn(LASTING)).outcome()
        else:
            await run.step(gate.wait)
        await run.emit("two")

    agent = declare_agent(talks)
    host = await cluster.start(agent, settings=replace(FAST, shutdown_ms=10))
    run_id = await cluster.submit(agent, visibility=SHOW_FIRST)
    if how == "parked":
        await cluster.wake(run_id)
    else:
        await gate.arrival()
        await host.close()
        await cluster.reaches(run_id, RunStatus.PENDING)
        gate.open()
        await cluster.start(agent)
    await cluster.result(run_id)
    events, _ = await cluster.watch(run_id)
    assert (await cluster.run(run_id)).attempt == 2
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [parse(e.payload) for e in events if e.kind is EventKind.DATA] == ["one", "two"]
    assert all(e.kind is not EventKind.GAP for e in events)


@pytest.mark.req("ST-13", "ST-14")
async def test_a_cancel_freezes_the_frontier_where_the_holder_really_was(cluster: Cluster) -> None:
    shown = asyncio.Event()

    async def babbles(run: Run) -> None:
        for n in range(100_000):
            await run.emit(n)
            if n == 20:
                shown.set()
            await asyncio.sleep(0.001)

    agent = declare_agent(babbles)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, visibility=SHOW_FIRST)
    live = asyncio.create_task(cluster.watch(run_id, env=host.env))
    await within(shown.wait())
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    frontier = receipt.frontier
    assert frontier.emitted_exact
    assert frontier.emitted_seq == frontier.stored_seq
    events, end = await within(live)
    assert events[-1].seq == end.last_seq == frontier.emitted_seq, "nothing is shown beyond the frozen frontier"
    assert await cluster.events(run_id) == events


@pytest.mark.req("ST-01", "ST-14")
async def test_what_a_leaving_holder_has_shown_is_stored_before_anybody_else_may_continue(cluster: Cluster) -> None:
    shown, has_left = asyncio.Event(), asyncio.Event()

    async def babbles(run: Run) -> str:
        for n in range(400):
            await run.emit(n)
            if n == 20:
                shown.set()
            if n == 300:
                await has_left.wait()  # however slowly the first holder leaves, it is not done before
            await asyncio.sleep(0.001)
        return "done"

    agent = declare_agent(babbles)
    first = await cluster.start(agent, settings=replace(FAST, shutdown_ms=1))
    run_id = await cluster.submit(agent, visibility=SHOW_FIRST)
    live: dict[int, StreamEvent] = {}

    async def watches() -> None:
        async for frame in read_stream(first.env, run_id, keep_alive_ms=10):
            if isinstance(frame, StreamEvent):
                live[frame.seq] = frame

    watching = asyncio.create_task(watches())
    await within(shown.wait())
    await first.close()
    has_left.set()
    await cluster.start(agent)
    await cluster.result(run_id)
    await within(watching)
    stored = {e.seq: e for e in await cluster.events(run_id)}
    assert live == stored, "no number was given to two events"
    assert [parse(e.payload) for e in stored.values() if e.kind is EventKind.DATA] == list(range(400))
    assert (await cluster.run(run_id)).attempt == 2
