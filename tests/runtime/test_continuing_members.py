"""Background members after a Stop: untouched where it did not mean them, and resumable from where each stood (C27)."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import pytest

from quiesce.domain.boundary import CancelScope, Reason
from quiesce.domain.canonical import parse
from quiesce.domain.continuations import OnGap
from quiesce.domain.ids import RunId
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent
from tests.runtime.kit import Cluster, Gate
from tests.runtime.talk import accept

STEPS = 4


class Background:
    """A parent with three members; each member makes steps, one after the other, and waits at a gate before the third."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.done: Counter[str] = Counter()

    @cached_property
    def member(self) -> Agent:
        async def member(run: Run, name: str) -> list[int]:
            past = await run.history()
            state = past[-1].state if past else None
            finished: list[int] = state["finished"] if isinstance(state, dict) else []  # type: ignore[assignment]
            for number in range(len(finished), STEPS):
                if number == 2 and not past:
                    await run.emit({"text": f"{name} begins {number}"})
                    await run.step(self.gate.wait, name="hold")
                finished.append(await run.step(self.work, name, number))
                await run.checkpoint({"finished": finished})
            return finished

        return declare_agent(member)

    async def work(self, name: str, number: int) -> int:
        self.done[f"{name} {number}"] += 1
        return number

    @cached_property
    def parent(self) -> Agent:
        member = self.member

        async def parent(run: Run) -> list[str]:
            members = [await run.spawn(member, name) for name in ("a", "b", "c")]
            return [str((await each.outcome()).status) for each in members]

        return declare_agent(parent)


async def _started(cluster: Cluster, background: Background) -> tuple[RunId, list[RunId]]:
    await cluster.start(background.parent, background.member)
    parent = await cluster.submit(background.parent)
    await background.gate.arrival(3)
    children = await cluster.store.read(lambda tx: [child.id for child in tx.runs.children(parent)])
    for child in children:
        await cluster.stored(child, 1)
    return parent, children


@pytest.mark.req("C27", "RR-30")
async def test_a_stop_of_the_foreground_alone_leaves_its_members_as_they_were(cluster: Cluster) -> None:
    background = Background()
    parent, children = await _started(cluster, background)
    await cluster.service.cancel(parent, scope=CancelScope.RUN)
    assert (await cluster.receipt(parent)).reason is Reason.USER_CANCEL
    assert {(await cluster.run(child)).status for child in children} <= {RunStatus.RUNNING, RunStatus.WAITING}
    background.gate.open()
    for child in children:
        assert await cluster.result(child) == list(range(STEPS))
    assert set(background.done.values()) == {1}


@pytest.mark.req("C27", "TR-29", "TR-36")
async def test_a_stop_of_the_tree_leaves_each_member_resumable_from_its_last_checkpoint_without_redoing_a_step(
    cluster: Cluster,
) -> None:
    background = Background()
    parent, children = await _started(cluster, background)
    await cluster.service.cancel(parent, scope=CancelScope.TREE)
    await cluster.receipt(parent)
    for child in children:
        receipt = await cluster.receipt(child)
        assert (receipt.reason, receipt.policy.policy) == (Reason.PARENT_CANCEL, Policy.RECONCILE)
        name = str(parse((await cluster.run(child)).input)["args"][0])  # type: ignore[index,call-overload]
        resumed = await cluster.submit(background.member, name, thread=receipt.thread_id, turn=accept(receipt, OnGap.RECONCILE))
        assert await cluster.result(resumed) == list(range(STEPS))
    assert background.done == Counter({f"{name} {number}": 1 for name in "abc" for number in range(STEPS)})
