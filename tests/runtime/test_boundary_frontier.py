"""Behind the frontier nothing leaves; who waits is told what became durable, and when it is so (ST-13, TR-13, TR-22, TR-49)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from quiesce.domain.boundary import (
    WORDS_OF_CANCELLED,
    TerminalDurability,
)
from quiesce.domain.canonical import parse
from quiesce.domain.errors import SettlementPending, Stopped
from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import Draft, Visibility
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.runtime.context import Run
from quiesce.runtime.readers import StreamEnd
from quiesce.runtime.registry import declare_agent
from tests.runtime.cancel_kit import (
    Pause,
    Stubborn,
    cancel,
    cancelled,
    is_at,
    proven,
    read_frames,
)
from tests.runtime.kit import BlockingGate, Cluster, Gate, eventually, within

# -- nothing leaves behind the frontier ----------------------------------------------------------------------------------------


@pytest.mark.req("ST-13", "TR-13")
async def test_a_chunk_that_comes_after_the_freeze_is_refused(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def writes(run: Run) -> None:
        await run.emit("before")
        try:
            await run.step(blocking.wait)
        finally:
            await run.emit("after the freeze")

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: is_at(cluster, run_id, "settling CF"))
    run = await cluster.run(run_id)
    (known,) = await cluster.events(run_id)
    assert run.drain_fence is not None
    late = Draft(channel="messages", payload=b'"late"').sealed(
        run_id=run_id, seq=2, previous=known.chain, fence=run.drain_fence, now=known.emitted_at
    )
    write = RunWrite(run_id=run_id, fence=run.drain_fence, events=(late,))
    assert await cluster.store.write(write) is WriteOutcome.STALE
    blocking.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.frontier.emitted_seq, receipt.h2, receipt.h2_exact) == (1, known.chain, True)
    assert await cluster.events(run_id) == [known]


@pytest.mark.req("ST-13", "TR-13")
async def test_a_late_chunk_of_a_show_first_stream_is_not_even_shown(cluster: Cluster) -> None:
    stubborn = Stubborn()
    refused = asyncio.Event()

    async def writes(run: Run) -> None:
        await run.emit("before")
        await stubborn.hold()
        try:
            await run.emit("after the freeze")
        except Stopped:
            refused.set()
            raise

    agent = declare_agent(writes)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, visibility=Visibility.SHOW_FIRST)
    feed = host.env.live.join(run_id)
    await stubborn.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: is_at(cluster, run_id, "settling CF"))
    stubborn.let_go()
    await within(refused.wait())
    receipt = await proven(cluster, run_id)
    assert [parse(e.payload) for e in feed.take(0)] == ["before"]
    assert (receipt.frontier.emitted_seq, receipt.frontier.emitted_exact) == (1, True)


@pytest.mark.req("C23", "TR-20", "TR-18")
async def test_the_end_frame_comes_only_after_the_final_checkpoint_is_durable(cluster: Cluster) -> None:
    async def says(run: Run) -> str:
        await run.emit("the last word")
        return "whole turn"

    agent = declare_agent(says)
    host = cluster.host(agent, crash_at="end.before")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    frames = await read_frames(cluster, run_id)  # the client leaves with the last visible word
    assert not any(isinstance(frame, StreamEnd) for frame in frames)
    pause.resume()
    seen, end = await cluster.watch(run_id)
    last = await cluster.store.read(lambda tx: tx.checkpoints.last(run_id))
    assert [parse(e.payload) for e in seen] == ["the last word"]
    assert last is not None
    assert last.is_final
    assert (end.status, await cluster.service.result(run_id)) == (RunStatus.COMPLETED, "whole turn")


# -- answers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-22", "TR-63", "TR-23", "TR-46")
async def test_who_waits_for_a_cancel_is_answered_when_it_is_whole_and_told_what_became_durable(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def writes(run: Run) -> None:
        await run.emit("covered")
        await run.checkpoint({"step": 1})
        await run.emit("beyond")
        await run.step(blocking.wait)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    with pytest.raises(SettlementPending, match="settling"):
        await cluster.service.wait(run_id, timeout_ms=30)
    waiting = asyncio.create_task(cluster.service.wait(run_id))
    await eventually(lambda: is_at(cluster, run_id, "settling CF"))
    assert not waiting.done()
    blocking.open()
    receipt = await within(waiting)
    assert (await cluster.run(run_id)).status is receipt.status is RunStatus.CANCELLED
    assert receipt.durability is TerminalDurability.PARTIAL
    assert receipt.checkpoint_id in {c.id for c in await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))}
    assert (receipt.gap.first_seq, receipt.gap.last_seq) == (2, 2)


@pytest.mark.req("TR-49", "TR-01")
async def test_execution_delivery_durable_and_terminal_state_are_four_variables(cluster: Cluster) -> None:
    """Each of four moments changes one of the four, and leaves the other three as they were."""
    gates = [Gate() for _ in range(3)]
    blocking = BlockingGate()

    async def store_it() -> None:
        """Have what was emitted stored along."""

    async def moves(run: Run) -> None:
        await run.step(gates[0].wait)
        await run.emit("delivery moves")
        await run.step(store_it)
        await run.step(gates[1].wait)
        await run.checkpoint("durable state moves")
        await run.step(gates[2].wait)
        await run.step(blocking.wait)

    async def four(run_id: RunId) -> dict[str, object]:
        i = await cluster.service.inspect(run_id)
        assert i.stream is not None
        return {
            "execution": i.run.status,
            "delivery": (i.stream.stored_seq, i.stream.chain),
            "durable": i.checkpoint.id if i.checkpoint else None,
            "terminal": i.receipt.id if i.receipt else None,
        }

    def moved(a: dict[str, object], b: dict[str, object]) -> set[str]:
        return {name for name in a if a[name] != b[name]}

    agent = declare_agent(moves)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    states: list[dict[str, object]] = []
    for gate in gates:
        await gate.arrival()
        states.append(await four(run_id))
        gate.open()
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    states.append(await four(run_id))
    blocking.open()
    await proven(cluster, run_id)
    states.append(await four(run_id))
    changes = [moved(a, b) for a, b in itertools.pairwise(states)]
    assert changes == [{"delivery"}, {"durable"}, {"execution"}, {"execution", "terminal"}]


@pytest.mark.req("TR-24", "G-04")
async def test_one_cancel_has_one_word_in_each_place(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    receipt = await cancelled(cluster, run_id)
    assert {
        "cause": receipt.cause,
        "run": receipt.status,
        "agent_server": "interrupted",
        "wave": "stopped",
    } == WORDS_OF_CANCELLED
