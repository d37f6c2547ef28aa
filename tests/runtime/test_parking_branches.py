"""A run parks when all its branches wait, and not under one that is about to ask or is taking what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Final, TypeVar

import pytest

from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus
from quiesce.ports.store import Transaction
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import FAST, Cluster, Gate, Host, eventually

T = TypeVar("T")
Reach = Callable[[Run], Coroutine[object, object, object]]
AT_ONCE: Final = replace(FAST, linger_ms=0)
TURNS: Final = 40
"""Questions to the store, in which a run that parks parks."""


def held(host: Host, decisions: str) -> Gate:
    """Hold the decisions of one function of the runtime on their way to the store: it is slow, for a branch."""
    gate, transact = Gate(), host.line.transact

    async def slow(fn: Callable[[Transaction], T]) -> T:
        if fn.__qualname__.startswith(decisions):
            await gate.wait()
        return await transact(fn)

    host.line.transact = slow  # type: ignore[method-assign]
    return gate


async def answer(cluster: Cluster, run_id: RunId) -> None:
    """Answer the run's question as soon as it has asked."""

    async def has_asked() -> bool:
        return bool(await cluster.service.questions())

    await eventually(has_asked)
    (question,) = await cluster.service.questions()
    await cluster.service.answer(question.id, True)


async def wake(cluster: Cluster, run_id: RunId) -> None:
    await cluster.service.wake(run_id, "a", True)


@pytest.mark.req("C13", "C78", "C79", "C82", "NO-12")
@pytest.mark.parametrize(
    ("reach", "decisions", "resolve"),
    [
        pytest.param(lambda run: run.ask("a?"), "_asked.", answer, id="asking"),
        pytest.param(lambda run: run.ask("a?"), "perform_ask.", answer, id="taking an answer"),
        pytest.param(lambda run: run.wait_for("a"), "_take.", wake, id="taking a wake"),
    ],
)
async def test_a_branch_in_a_slow_transaction_is_not_forgotten_by_a_run_whose_other_branch_waits(
    cluster: Cluster, reach: Reach, decisions: str, resolve: Callable[[Cluster, RunId], Coroutine[object, object, None]]
) -> None:
    """Parked with the other's wait alone, it would not be woken by what this branch is given."""
    went_on = Gate()

    async def quick(run: Run) -> object:
        given = await reach(run)
        await run.step(went_on.wait)
        return given

    async def both(run: Run) -> list[object]:
        return list(await asyncio.gather(quick(run), run.wait_for("b")))

    agent = declare_agent(both)
    host = cluster.host(agent, settings=AT_ONCE)
    gate = held(host, decisions)
    await host.start()
    run_id = await cluster.submit(agent)
    if decisions != "_asked.":
        await resolve(cluster, run_id)
    await gate.arrival()
    for _ in range(TURNS):
        await cluster.run(run_id)
    gate.open()
    if decisions == "_asked.":
        await resolve(cluster, run_id)
    await went_on.arrival()
    went_on.open()
    await cluster.service.wake(run_id, "b", "other")
    assert await cluster.result(run_id) == [True, "other"]


@pytest.mark.req("C13", "C61")
async def test_what_begins_while_the_run_is_being_parked_is_left_to_its_next_attempt(cluster: Cluster) -> None:
    """A question stored behind the waits that the run is parked with would be waited for by nobody."""
    agents_own = Gate()

    async def asks_late(run: Run) -> object:
        await agents_own.wait()
        return await run.ask("a?")

    async def both(run: Run) -> list[object]:
        return list(await asyncio.gather(asks_late(run), run.wait_for("b")))

    agent = declare_agent(both)
    host = cluster.host(agent, settings=AT_ONCE)
    parking = held(host, "Execution._park.")
    await host.start()
    run_id = await cluster.submit(agent)
    await parking.arrival()
    agents_own.open()
    for _ in range(TURNS):
        await cluster.run(run_id)
    assert await cluster.service.questions() == []
    parking.open()
    await cluster.reaches(run_id, RunStatus.WAITING)
    await cluster.service.wake(run_id, "b", "other")
    await answer(cluster, run_id)
    assert await cluster.result(run_id) == [True, "other"]
