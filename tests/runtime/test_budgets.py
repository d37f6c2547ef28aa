"""Budgets: reserved before use, drawn on every ancestor, neither given back nor counted twice (RR-06, RR-18, RR-19)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.errors import BudgetExceeded
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import after_ms, elapsed_ms
from quiesce.domain.operations import OperationStatus, RetryPolicy
from quiesce.domain.runs import RunStatus
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate

Usage = Mapping[str, Mapping[str, int | None]]


def row(limit: int | None, used: int, reserved: int = 0) -> dict[str, int | None]:
    return {"limit": limit, "used": used, "reserved": reserved}


@pytest.mark.req("RR-06", "RR-19")
async def test_units_are_reserved_durably_before_the_tool_is_touched(cluster: Cluster) -> None:
    seen: list[Usage] = []

    async def act() -> None:
        (run,) = await cluster.service.list()
        seen.append(run.budget.to_json())

    tool = declare_tool(act, cost={"tool_calls": 1, "usd_micros": 40})

    async def acts(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(acts)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tool_calls": 2})
    receipt = await cluster.receipt(run_id)
    assert seen == [{"tool_calls": row(2, 0, 1), "usd_micros": row(None, 0, 40)}]
    assert receipt.usage == {"tool_calls": row(2, 1), "usd_micros": row(None, 40)}


@pytest.mark.req("RR-06", "RR-19")
async def test_a_refused_reservation_dispatches_nothing_and_is_refused_again_on_replay(cluster: Cluster) -> None:
    calls = 0
    gate = Gate()

    async def act() -> None:
        nonlocal calls
        calls += 1

    tool = declare_tool(act)

    async def acts(run: Run) -> str:
        await run.call(tool)
        try:
            await run.call(tool)
        except BudgetExceeded as error:
            refusal = str(error)
        else:
            refusal = ""
        await run.step(gate.wait)
        return refusal

    agent = declare_agent(acts)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tool_calls": 1})
    await gate.arrival()
    await first.kill()
    refused = (await cluster.journal(run_id))["2"]
    assert refused.status is OperationStatus.COMMITTED or refused.status is OperationStatus.CONSUMED
    assert (refused.tries, dict(refused.reserved), dict(refused.used)) == ((), {}, {})
    gate.open()
    await cluster.start(agent)
    refusal = await cluster.result(run_id)
    assert isinstance(refusal, str)
    assert "needs {'tool_calls': 1}" in refusal
    assert calls == 1
    assert (await cluster.receipt(run_id)).usage == {"tool_calls": row(1, 1)}


@pytest.mark.req("RR-19", "C20")
async def test_a_run_that_does_not_catch_the_refusal_ends_with_reason_budget(cluster: Cluster) -> None:
    async def act() -> None: ...

    tool = declare_tool(act)

    async def acts(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(acts)
    await cluster.start(agent)
    receipt = await cluster.receipt(await cluster.submit(agent, budget={"tool_calls": 0}))
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, Reason.BUDGET)
    assert receipt.usage == {"tool_calls": row(0, 0)}


@pytest.mark.req("RR-06", "RR-19")
async def test_of_calls_side_by_side_as_many_are_made_as_the_budget_holds(cluster: Cluster) -> None:
    calls = 0

    async def act(x: int) -> int:
        nonlocal calls
        calls += 1
        return x

    tool = declare_tool(act)

    async def acts(run: Run) -> list[bool]:
        answers = await asyncio.gather(*[run.call(tool, x) for x in range(7)], return_exceptions=True)
        return [isinstance(answer, BudgetExceeded) for answer in answers]

    agent = declare_agent(acts)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tool_calls": 5})
    assert await cluster.result(run_id) == [False] * 5 + [True] * 2
    assert calls == 5
    assert (await cluster.receipt(run_id)).usage == {"tool_calls": row(5, 5)}


@pytest.mark.req("RR-19")
async def test_a_child_draws_on_its_own_allowance_and_on_each_ancestor_s(cluster: Cluster) -> None:
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1

    tool = declare_tool(act)

    async def spends(run: Run, times: int) -> int:
        done = 0
        for _ in range(times):
            try:
                await run.call(tool)
            except BudgetExceeded:
                break
            done += 1
        return done

    leaf = declare_agent(spends)

    async def delegates(run: Run) -> list[object]:
        first = await (await run.spawn(leaf, 9, budget={"tool_calls": 2})).outcome()
        second = await (await run.spawn(leaf, 9)).outcome()
        return [first.result, second.result]

    middle = declare_agent(delegates)

    async def begins(run: Run) -> object:
        return (await (await run.spawn(middle)).outcome()).result

    root = declare_agent(begins)
    await cluster.start(root, middle, leaf)
    run_id = await cluster.submit(root, budget={"tool_calls": 5})
    assert await cluster.result(run_id) == [2, 3]
    assert calls == 5
    assert (await cluster.receipt(run_id)).usage == {"tool_calls": row(5, 5)}
    (child,) = (await cluster.service.inspect(run_id)).children
    assert (await cluster.receipt(child.id)).usage == {"tool_calls": row(None, 5)}
    grandchildren = (await cluster.service.inspect(child.id)).children
    assert [(await cluster.receipt(g.id)).usage["tool_calls"] for g in grandchildren] == [row(2, 2), row(None, 3)]


@pytest.mark.req("RR-19", "C56")
@pytest.mark.parametrize(
    ("effect", "usage"),
    [
        ("idempotent", row(5, 1, 1)),  # the first dispatch may have cost its unit: nobody can say, so it stays reserved
        ("once", row(5, 0, 1)),
    ],
)
async def test_a_restart_gives_nothing_back_and_counts_nothing_twice(
    cluster: Cluster, effect: str, usage: dict[str, int | None]
) -> None:
    async def act() -> None: ...

    tool = declare_tool(act, effect=effect)

    async def acts(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(acts)
    first = await cluster.start(agent, crash_at="effect.after")
    run_id = await cluster.submit(agent, budget={"tool_calls": 5})
    await first.death()
    assert (await cluster.run(run_id)).budget.to_json() == {"tool_calls": row(5, 0, 1)}
    await cluster.start(agent)
    run = await cluster.reaches(run_id, RunStatus.COMPLETED, RunStatus.WAITING)
    assert run.budget.to_json() == {"tool_calls": usage}


@pytest.mark.req("RR-19", "C22")
@pytest.mark.parametrize("point", ["result.after", "dispatch.before"])
async def test_use_that_is_stored_is_counted_once_however_often_the_process_dies(cluster: Cluster, point: str) -> None:
    async def act() -> None: ...

    tool = declare_tool(act)

    async def acts(run: Run) -> None:
        await run.call(tool)
        await run.call(tool)

    agent = declare_agent(acts)
    run_id = await cluster.submit(agent, budget={"tool_calls": 2})
    for _ in range(2):
        host = await cluster.start(agent, crash_at=point)
        await host.death()
    await cluster.start(agent)
    assert (await cluster.receipt(run_id)).usage == {"tool_calls": row(2, 2)}


@pytest.mark.req("RR-19")
async def test_a_step_reserves_at_most_and_counts_what_it_really_used(cluster: Cluster) -> None:
    tries = 0

    async def thinks() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("overloaded")
        return 30

    async def asks(run: Run) -> int:
        return await run.step(
            thinks,
            reserve={"tokens": 100},
            usage=lambda used: {"tokens": used if isinstance(used, int) else 0},
            retry=RetryPolicy(tries=2, first_delay_ms=1),
        )

    agent = declare_agent(asks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tokens": 120})
    assert await cluster.result(run_id) == 30
    assert (await cluster.receipt(run_id)).usage == {"tokens": row(120, 30)}


@pytest.mark.req("RR-06")
async def test_a_holder_that_was_passed_by_reserves_nothing(cluster: Cluster) -> None:
    gate = Gate()

    async def act() -> None:
        await gate.wait()

    tool = declare_tool(act)

    async def acts(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(acts)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tool_calls": 5})
    await gate.arrival()
    old = next(write for write in first.line.writes if write.operations)
    await first.kill()
    await cluster.start(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    before = (await cluster.run(run_id)).budget
    fresh = tuple(replace(operation, position=Position("9")) for operation in old.operations)
    outcome = await cluster.store.write(RunWrite(run_id=run_id, fence=old.fence, operations=fresh))
    assert outcome is WriteOutcome.STALE
    assert (await cluster.run(run_id)).budget == before


async def _submitted(cluster: Cluster, agent: Agent, place: RunStatus) -> RunId:
    """Submit with a deadline and return once the run is in its place; once more, if the machine was slower than its time."""
    while True:
        run_id = await cluster.submit(agent, timeout_ms=500)
        if (await cluster.reaches(run_id, place, RunStatus.FAILED)).status is not RunStatus.FAILED:
            return run_id


@pytest.mark.req("RR-18", "C20")
@pytest.mark.parametrize("where", ["running", "waiting", "pending", "orphaned"])
async def test_a_deadline_is_absolute_and_ends_a_run_wherever_it_is(cluster: Cluster, where: str) -> None:
    gate = Gate()

    async def lingers(run: Run) -> None:
        if where == "waiting":
            await run.sleep(3600)
        await run.step(gate.wait)

    agent = declare_agent(lingers)
    other = declare_agent(lingers, name="other")
    host = await cluster.start(other if where == "pending" else agent)
    places = {"waiting": RunStatus.WAITING, "pending": RunStatus.PENDING}
    run_id = await _submitted(cluster, agent, places.get(where, RunStatus.RUNNING))
    if where == "orphaned":
        await host.kill()
        await cluster.start(other)
    receipt = await cluster.receipt(run_id)
    deadline = (await cluster.run(run_id)).deadline_at
    assert (receipt.status, receipt.reason, receipt.actor.name) == (RunStatus.FAILED, Reason.DEADLINE, "clock")
    assert receipt.never_started is (where == "pending")
    assert deadline is not None
    assert elapsed_ms((await cluster.run(run_id)).created_at, deadline) == 500
    assert receipt.published_at >= deadline


@pytest.mark.req("RR-18", "RR-16", "RR-17", "RR-15")
async def test_a_restart_keeps_identity_question_authority_and_deadline(cluster: Cluster) -> None:
    gate = Gate()
    seen: list[tuple[object, ...]] = []

    async def looks(run: Run, question: str) -> None:
        seen.append((run.id, run.thread_id, question, run.deadline_at, dict(run.bindings), run.budget("tool_calls").limit))
        await run.step(gate.wait)

    agent = declare_agent(looks, bindings={"model": "m"})
    first = await cluster.start(agent)
    deadline = after_ms(cluster.env.clock.now(), 60_000)
    run_id = await cluster.submit(
        agent, "why?", deadline_at=deadline, budget={"tool_calls": 3}, bindings={"scope": "read"}, thread="t-1"
    )
    await gate.arrival()
    before = await cluster.run(run_id)
    await first.kill()
    gate.open()
    await cluster.start(agent)
    await cluster.result(run_id)
    assert seen == [(run_id, "t-1", "why?", deadline, {"model": "m", "scope": "read"}, 3)] * 2
    after = await cluster.run(run_id)
    assert (after.input, after.bindings, after.subject, after.deadline_at) == (
        before.input,
        before.bindings,
        before.subject,
        before.deadline_at,
    )


@pytest.mark.req("RR-18")
async def test_a_child_never_outlives_its_parent_s_deadline(cluster: Cluster) -> None:
    async def lives(run: Run) -> int | None:
        return run.deadline_at

    child = declare_agent(lives)

    async def spawns(run: Run) -> object:
        return (await (await run.spawn(child)).outcome()).result

    parent = declare_agent(spawns)
    await cluster.start(parent, child)
    deadline = after_ms(cluster.env.clock.now(), 60_000)
    assert await cluster.result(await cluster.submit(parent, deadline_at=deadline)) == deadline
