"""What a run waits for, asks and hears stands in its journal under kinds of its own: none is taken for another (C86)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.ids import RunId
from quiesce.domain.operations import OperationKind
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import Cluster, Gate, eventually

Reach = Callable[[Run], Coroutine[object, object, object]]
REACHED: Final[Mapping[str, Reach]] = {
    "wait 'order-7'": lambda run: run.wait_for("order-7"),
    "question 'ask'": lambda run: run.ask("May I?"),
    "correction 'corrections'": lambda run: run.corrections(),
    "timer 'sleep'": lambda run: run.sleep(600),
}
PAIRS: Final = [(held, [*REACHED][number - 1]) for number, held in enumerate(REACHED)]


@pytest.mark.req("C86", "RR-09")
@pytest.mark.parametrize(("held", "wanted"), PAIRS)
async def test_a_wait_a_question_a_correction_and_a_timer_are_told_apart_by_name(
    cluster: Cluster, held: str, wanted: str
) -> None:
    gate = Gate()
    version = 1

    async def evolving(run: Run) -> object:
        if version == 1:
            return await asyncio.gather(REACHED[held](run), run.step(gate.wait))
        return await REACHED[wanted](run)

    async def is_held() -> bool:
        return held in {f"{o.kind} {o.name!r}" for o in (await cluster.journal(run_id)).values()}

    agent = declare_agent(evolving)
    run_id = await cluster.submit(agent)
    await cluster.service.correct(run_id, "that there were none waits for the next write")
    first = await cluster.start(agent)
    await gate.arrival()
    await eventually(is_held)
    await first.kill()
    version = 2
    await cluster.start(agent)
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, Reason.REPLAY_MISMATCH)
    assert f"the journal holds {held}, the code asks for {wanted}" in receipt.reason_text


@pytest.mark.req("C86", "RR-09")
async def test_a_step_may_have_the_name_of_what_the_library_does_itself(cluster: Cluster) -> None:
    """A name is the agent's own: what an operation is says its kind alone."""

    async def sameness() -> str:
        return "mine"

    async def namesake(run: Run) -> list[object]:
        return [await run.step(sameness, name=name) for name in ("ask", "corrections", "order-7", "sleep")]

    agent = declare_agent(namesake)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == ["mine"] * 4
    assert await kinds(cluster, run_id) == [OperationKind.STEP] * 4


async def kinds(cluster: Cluster, run_id: RunId) -> list[OperationKind]:
    return [operation.kind for operation in (await cluster.journal(run_id)).values()]
