"""Durability modes: what each promises to be stored, and what is stored at once in every one of them (ST-05, ST-16)."""

from __future__ import annotations

from collections import Counter

import pytest

from quiesce.domain.boundary import GapKind, TerminalDurability
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Durability, RunStatus
from quiesce.domain.writes import RunWrite
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate, eventually

MODES = tuple(Durability)


class Worker:
    """An agent of two steps and a checkpoint between them, and a gate at the end of each part."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.between = Gate()

        async def note(name: str) -> str:
            self.ran[name] += 1
            return name

        async def works(run: Run) -> str:
            await run.step(note, "first")
            await run.checkpoint({"after": "first"})
            await run.step(note, "second")
            await self.between.wait()
            return "done"

        self.agent: Agent = declare_agent(works)


@pytest.mark.req("ST-05", "ST-04")
async def test_in_mode_sync_a_step_is_stored_before_the_next_begins(cluster: Cluster) -> None:
    worker = Worker()
    host = await cluster.start(worker.agent)
    run_id = await cluster.submit(worker.agent, durability=Durability.SYNC)
    await worker.between.arrival()
    journal = await cluster.journal(run_id)
    assert [journal[p].has_result for p in ("1", "2", "3")] == [True] * 3
    await host.kill()
    worker.between.open()
    await cluster.start(worker.agent)
    await cluster.result(run_id)
    assert worker.ran == {"first": 1, "second": 1}


@pytest.mark.req("ST-05", "ST-04")
async def test_in_mode_async_a_step_is_stored_while_the_next_runs(cluster: Cluster) -> None:
    gate = Gate()

    async def note() -> None: ...

    async def works(run: Run) -> None:
        await run.step(note)
        await run.step(gate.wait)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, durability=Durability.ASYNC)
    await gate.arrival()

    async def is_stored() -> bool:
        journal = await cluster.journal(run_id)
        return "1" in journal and journal["1"].has_result

    await eventually(is_stored)
    assert "2" not in await cluster.journal(run_id)
    gate.open()
    await cluster.result(run_id)


@pytest.mark.req("ST-05", "ST-04")
async def test_in_mode_exit_steps_and_checkpoints_are_stored_at_the_end(cluster: Cluster) -> None:
    worker = Worker()
    host = await cluster.start(worker.agent)
    run_id = await cluster.submit(worker.agent, durability=Durability.EXIT)
    await worker.between.arrival()
    assert await cluster.journal(run_id) == {}
    assert (await cluster.service.inspect(run_id)).checkpoint is None
    await host.kill()
    worker.between.open()
    await cluster.start(worker.agent)
    await cluster.result(run_id)
    assert worker.ran == {"first": 2, "second": 2}, "what was promised for the end is lost with the process"
    journal = await cluster.journal(run_id)
    assert [o.status for o in journal.values()] == [OperationStatus.CONSUMED] * 3
    checkpoints = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert [c.is_final for c in checkpoints] == [False, True]


@pytest.mark.req("ST-16", "RR-09", "RR-12")
@pytest.mark.parametrize("mode", MODES)
async def test_in_every_mode_a_dispatch_is_stored_before_the_tool_is_touched(cluster: Cluster, mode: Durability) -> None:
    seen: list[OperationStatus] = []
    gate = Gate()

    async def act() -> str:
        (run,) = await cluster.service.list()
        seen.append((await cluster.journal(run.id))["2"].status)
        await gate.wait()
        return "acted"

    tool = declare_tool(act)

    async def note() -> None: ...

    async def works(run: Run) -> object:
        await run.step(note)
        return await run.call(tool)

    agent = declare_agent(works)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, durability=mode)
    await gate.arrival()
    assert seen == [OperationStatus.DISPATCHED]
    assert (await cluster.journal(run_id))["1"].has_result, "the rows it rests on went with it"
    await host.kill()
    await cluster.start(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    assert (await cluster.journal(run_id))["2"].status is OperationStatus.UNKNOWN


@pytest.mark.req("ST-16", "C22")
@pytest.mark.parametrize("mode", MODES)
async def test_in_every_mode_the_result_of_a_call_is_stored_at_once(cluster: Cluster, mode: Durability) -> None:
    calls = 0
    gate = Gate()

    async def act() -> str:
        nonlocal calls
        calls += 1
        return "acted"

    tool = declare_tool(act)

    async def works(run: Run) -> object:
        done = await run.call(tool)
        await gate.wait()
        return done

    agent = declare_agent(works)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, durability=mode)
    await gate.arrival()
    assert (await cluster.journal(run_id))["1"].has_result
    await host.kill()
    gate.open()
    await cluster.start(agent)
    assert await cluster.result(run_id) == "acted"
    assert calls == 1


@pytest.mark.req("ST-16", "TR-21", "TR-09")
@pytest.mark.parametrize("mode", MODES)
async def test_in_every_mode_a_cancel_is_recorded_with_what_was_in_flight(cluster: Cluster, mode: Durability) -> None:
    gate = Gate()

    async def act() -> None:
        await gate.wait()

    tool = declare_tool(act)

    async def note() -> None: ...

    async def works(run: Run) -> None:
        await run.step(note)
        await run.emit("seen")
        await run.checkpoint("seen")
        await run.call(tool)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, durability=mode)
    await gate.arrival()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert receipt.status is RunStatus.CANCELLED
    assert [o["operation"] for o in receipt.unresolved] == ["3"]
    assert (receipt.durability, receipt.gap.kind) == (TerminalDurability.DURABLE, GapKind.NONE)
    assert receipt.frontier.covered_seq == receipt.frontier.emitted_seq == 1


@pytest.mark.req("ST-05", "C58")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut_after", range(1, 7))
async def test_whatever_write_is_the_last_the_effect_happens_once_or_is_unknown(
    cluster: Cluster, mode: Durability, cut_after: int
) -> None:
    effects = 0
    written = 0
    host = cluster.host()

    async def act() -> str:
        nonlocal effects
        effects += 1
        return "acted"

    tool = declare_tool(act)

    async def note(name: str) -> str:
        return name

    async def works(run: Run) -> list[object]:
        first = await run.step(note, "a")
        await run.emit("one")
        acted = await run.call(tool)
        await run.checkpoint([first, acted])
        second = await run.step(note, "b")
        await run.emit("two")
        return [first, acted, second]

    agent = declare_agent(works)

    def cut(_: RunWrite) -> bool:
        nonlocal written
        written += 1
        if written > cut_after:
            host.line.cut()
            host.died.set()
        return False

    host.line.fails_before.append(cut)
    host.worker._registry.add(agent)
    await host.start()
    run_id = await cluster.submit(agent, durability=mode)

    async def is_over() -> bool:
        return host.died.is_set() or (await cluster.run(run_id)).is_terminal

    await eventually(is_over)
    await host.kill()
    await cluster.start(agent)
    run = await cluster.reaches(run_id, RunStatus.COMPLETED, RunStatus.WAITING)
    assert effects <= 1
    if run.status is RunStatus.WAITING:
        assert (await cluster.journal(run_id))["2"].status is OperationStatus.UNKNOWN
    else:
        assert effects == 1
        assert await cluster.result(run_id) == ["a", "acted", "b"]
        messages = [e for e in await cluster.events(run_id) if e.channel == "messages"]
        assert [e.payload for e in messages] == [b'"one"', b'"two"']
