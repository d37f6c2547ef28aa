"""A store that fails at the worst moment: nothing is done twice, nothing is believed that is not stored (C22, C58, C88)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import StoreFull
from quiesce.domain.ids import Position
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.runs import RunStatus
from quiesce.domain.workers import AttemptEnd
from quiesce.domain.writes import RunWrite
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.kit import Cluster, eventually
from tests.runtime.line import Line


def carries(kind: OperationKind, *statuses: OperationStatus) -> Callable[[RunWrite], bool]:
    """Pick the write that carries an operation in one of these positions."""
    return lambda write: any(o.kind is kind and o.status in statuses for o in write.operations)


RESULT = carries(OperationKind.CALL, OperationStatus.COMMITTED)
DISPATCH = carries(OperationKind.CALL, OperationStatus.DISPATCHED)


def _checkpoint(write: RunWrite) -> bool:
    return bool(write.checkpoints)


def _events(write: RunWrite) -> bool:
    return bool(write.events)


@pytest.mark.req("C22", "C58", "C88", "RR-09")
@pytest.mark.parametrize("side", ["fails_before", "fails_after"])
@pytest.mark.parametrize("rule", [RESULT, DISPATCH, _checkpoint, _events], ids=["result", "dispatch", "checkpoint", "events"])
async def test_a_write_that_fails_once_is_made_again_and_the_effect_is_not(
    cluster: Cluster, side: str, rule: Callable[[RunWrite], bool]
) -> None:
    effects = 0
    stored_at_next_step: list[bool] = []
    host = cluster.host()
    line: Line = host.line

    async def act() -> str:
        nonlocal effects
        effects += 1
        return "acted"

    tool = declare_tool(act)

    async def looks() -> None:
        stored_at_next_step.append(any(RESULT(write) for write in line.writes) or side == "fails_after")

    async def acts(run: Run) -> object:
        await run.emit("begin")
        done = await run.call(tool)
        await run.step(looks)
        await run.checkpoint({"done": done})
        return done

    agent = declare_agent(acts)
    host.worker._registry.add(agent)
    getattr(line, side).append(rule)
    await host.start()
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "acted"
    assert effects == 1
    assert not getattr(line, side), "the fault has struck"
    call = (await cluster.journal(run_id))["1"]
    assert (call.status, parse(call.result or b"")) == (OperationStatus.CONSUMED, "acted")
    assert stored_at_next_step == [True]
    events = [e for e in await cluster.events(run_id) if e.channel == "messages"]
    assert [parse(e.payload) for e in events] == ["begin"]
    assert (await cluster.run(run_id)).attempt == 1


@pytest.mark.req("C88", "C22", "RR-15")
async def test_decisions_whose_answer_was_lost_are_found_as_they_were_stored(cluster: Cluster) -> None:
    async def child(run: Run) -> str:
        return "child"

    losses = iter([1])
    born = declare_agent(child)

    async def parent(run: Run) -> list[str]:
        # Only the first attempt decides anything: a parent that parked on its child is played again from what is stored.
        host.line.loses_of_agents += next(losses, 0)
        handle = await run.spawn(born)
        return [str((await handle.outcome()).result)]

    agent = declare_agent(parent)
    host = cluster.host(agent)
    await host.start()
    await cluster.start(born)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == ["child"]
    inspection = await cluster.service.inspect(run_id)
    assert len(inspection.children) == 1
    assert host.line.loses_of_agents == 0, "the fault has struck"
    assert AttemptEnd.EXPIRED not in [attempt.end for attempt in inspection.attempts]


@pytest.mark.req("C61", "C88")
async def test_an_attempt_that_the_store_failed_for_good_is_not_stranded_with_its_worker(cluster: Cluster) -> None:
    starts = 0

    async def note() -> int:
        return starts

    async def writes(run: Run) -> int:
        nonlocal starts
        starts += 1
        return await run.step(note)

    def full(write: RunWrite) -> bool:
        if starts == 1 and any(o.kind is OperationKind.STEP for o in write.operations):
            raise StoreFull("injected: no room")
        return False

    agent = declare_agent(writes)
    host = cluster.host(agent)
    host.line.fails_before.append(full)
    await host.start()
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == 2
    assert (await cluster.run(run_id)).attempt == 2


@pytest.mark.req("C22", "RR-12")
async def test_what_the_process_remembers_is_what_the_store_holds(cluster: Cluster) -> None:
    remembered: dict[Position, Operation] = {}

    async def act(x: int) -> int:
        return x

    tool = declare_tool(act, effect="idempotent")

    async def acts(run: Run) -> int:
        for x in range(3):
            await run.call(tool, x)
        await run.checkpoint({})
        remembered.update(run._attempt.journal.operations)
        return 0

    agent = declare_agent(acts)
    host = cluster.host(agent)
    host.line.fails_after.extend([RESULT, DISPATCH])
    host.line.fails_before.extend([RESULT, DISPATCH])
    await host.start()
    run_id = await cluster.submit(agent)
    await cluster.result(run_id)
    assert await cluster.journal(run_id) == remembered


@pytest.mark.req("C87", "C88")
async def test_a_worker_survives_a_store_that_is_away_for_a_while(cluster: Cluster) -> None:
    async def quick(run: Run) -> str:
        return "done"

    agent = declare_agent(quick)
    host = await cluster.start(agent)
    host.line.loses_transactions = 6
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "done"

    async def struck() -> bool:
        return host.line.loses_transactions == 0

    await eventually(struck)
    assert (await cluster.run(run_id)).status is RunStatus.COMPLETED
