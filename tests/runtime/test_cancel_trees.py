"""Cancels of trees: who is spared, who is stopped, and what the receipts say of each other (RR-29 to RR-31, C25, TR-64)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from quiesce.domain.boundary import ActorKind, CancelScope, Reason
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import ContinuationRefused, InvalidInput
from quiesce.domain.ids import RunId
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.resume import Policy
from quiesce.domain.runs import Run as StoredRun
from quiesce.domain.runs import RunStatus
from quiesce.runtime.children import ChildOutcome
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from quiesce.runtime.trees import descendants
from tests.runtime.cancel_kit import Pause, awaits, cancel, cancelled, has_evidence, proven, stage, waits_at
from tests.runtime.kit import FAST, BlockingGate, Cluster, Gate, Host, eventually


@dataclass(slots=True)
class Family:
    """A parent, three children, two grandchildren under each; all tick until they are stopped, but one that is done."""

    ticks: Counter[str] = field(default_factory=Counter)

    async def tick(self, name: str) -> None:
        self.ticks[name] += 1

    async def tick_for_ever(self, run: Run, name: str) -> None:
        while True:
            await run.step(self.tick, name)

    def agents(self) -> tuple[Agent, Agent, Agent]:
        async def grandchild(run: Run, name: str) -> str:
            if name != "0.0":
                await self.tick_for_ever(run, name)
            return "done early"

        leaf = declare_agent(grandchild)

        async def child(run: Run, name: str) -> None:
            for n in range(2):
                await run.spawn(leaf, f"{name}.{n}")
            await self.tick_for_ever(run, name)

        middle = declare_agent(child)

        async def parent(run: Run) -> None:
            for n in range(3):
                await run.spawn(middle, str(n))
            await self.tick_for_ever(run, "top")

        return declare_agent(parent), middle, leaf

    async def is_busy(self) -> bool:
        return len(self.ticks) == 9


async def _tree(cluster: Cluster, run_id: RunId) -> list[StoredRun]:
    return await cluster.store.read(lambda tx: descendants(tx, run_id))


async def _completes_something(cluster: Cluster, host: Host) -> None:
    """Have the host advance a run from submission to its end: time enough for whoever had not stopped."""

    async def sum_up(n: int) -> int:
        return n

    async def other(run: Run) -> int:
        return sum([await run.step(sum_up, n) for n in range(10)])

    agent = declare_agent(other)
    host.worker._registry.add(agent)
    assert await cluster.result(await cluster.submit(agent)) == 45


@pytest.mark.req("RR-29", "RR-30", "RR-31", "C52", "C05", "TR-64")
async def test_a_cancel_of_a_tree_stops_every_run_of_it_and_rewrites_nothing_that_had_ended(cluster: Cluster) -> None:
    family = Family()
    parent, *below = family.agents()
    host = await cluster.start(parent, *below)
    run_id = await cluster.submit(parent)
    await eventually(family.is_busy)
    early = next(r.id for r in await _tree(cluster, run_id) if b"0.0" in r.input)
    done = await cluster.receipt(early)
    admission = await cancel(cluster, run_id)
    tree = await _tree(cluster, run_id)
    assert len(tree) == 9
    assert set(admission.reached) == {run_id, *(r.id for r in tree)} - {early}
    assert admission.reached[0] == run_id
    receipts = {r.id: await proven(cluster, r.id) for r in [await cluster.run(run_id), *tree]}
    still = family.ticks.copy()
    await _completes_something(cluster, host)
    assert family.ticks == still
    assert canonical(receipts.pop(early).to_json()) == canonical(done.to_json())
    assert done.status is RunStatus.COMPLETED
    root = receipts.pop(run_id)
    assert (root.status, root.reason, root.actor.kind) == (RunStatus.CANCELLED, Reason.USER_CANCEL, ActorKind.USER)
    for receipt in receipts.values():
        assert (receipt.status, receipt.reason) == (RunStatus.CANCELLED, Reason.PARENT_CANCEL)
        assert (receipt.actor.kind, receipt.actor.name) == (ActorKind.RUN, run_id)
    origins = await cluster.store.read(lambda tx: tx.terminal.occurrences(list(receipts)))
    assert {o.origin_id for o in origins.values()} == {root.occurrence_id}


@pytest.mark.req("RR-29", "RR-30", "C10", "C11")
async def test_a_child_that_had_not_started_never_starts(cluster: Cluster) -> None:
    async def leaf(run: Run) -> None:
        """Never begin."""

    below = declare_agent(leaf)
    agent = awaits(below)
    await cluster.start(agent, settings=replace(FAST, concurrency=1, linger_ms=60_000))  # no room for the child
    run_id = await cluster.submit(agent)
    await eventually(lambda: _has_children(cluster, run_id))
    (child_run,) = await _tree(cluster, run_id)
    assert await _claimable(cluster, below) == [child_run.id]
    await cancel(cluster, run_id)
    assert await _claimable(cluster, agent, below) == []
    receipt = await proven(cluster, child_run.id)
    assert (receipt.never_started, receipt.reason, receipt.attempt) == (True, Reason.PARENT_CANCEL, 0)
    assert (await proven(cluster, run_id)).never_started is False


async def _has_children(cluster: Cluster, run_id: RunId) -> bool:
    return bool(await _tree(cluster, run_id))


async def _claimable(cluster: Cluster, *agents: Agent) -> list[RunId]:
    names = [agent.name for agent in agents]
    found = await cluster.store.transact(lambda tx: tx.runs.claimable(agents=names, now=tx.now, limit=10))
    return [run.id for run in found]


@pytest.mark.req("C52", "RR-30")
async def test_a_cancel_of_the_run_alone_spares_its_children(cluster: Cluster) -> None:
    gate = Gate()

    async def child(run: Run) -> str:
        await run.step(gate.wait)
        return "finished"

    below = declare_agent(child)
    agent = awaits(below)
    await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    admission = await cancel(cluster, run_id, scope=CancelScope.RUN)
    receipt = await proven(cluster, run_id)
    assert (admission.reached, receipt.scope) == ((run_id,), CancelScope.RUN)
    (spared,) = await _tree(cluster, run_id)
    assert spared.status is RunStatus.RUNNING
    gate.open()
    assert await cluster.result(spared.id) == "finished"
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("C25", "RR-39")
async def test_a_child_that_is_cancelled_alone_is_a_value_to_its_parent(cluster: Cluster) -> None:
    gate = Gate()

    async def child(run: Run) -> str:
        await run.emit("said by the child")
        await run.step(gate.wait)
        return "finished"

    below = declare_agent(child)

    async def top(run: Run) -> ChildOutcome:
        return await (await run.spawn(below)).outcome()

    agent = declare_agent(top)
    await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    (child_run,) = await _tree(cluster, run_id)
    stopped = await cancelled(cluster, child_run.id)
    result = await cluster.result(run_id)
    assert result == {
        "run_id": child_run.id,
        "status": "cancelled",
        "reason": "user_cancel",
        "receipt_id": stopped.id,
        "result": None,
    }
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.COMPLETED, Reason.FINISHED)
    assert [o.kind for o in (await cluster.journal(run_id)).values()] == ["child"]
    assert all(b"child" not in e.payload for e in await cluster.events(run_id))


@pytest.mark.req("C25", "C09")
async def test_a_parent_that_was_stopped_while_it_awaited_asks_again_for_the_child_s_real_state(cluster: Cluster) -> None:
    gate = Gate()

    async def child(run: Run) -> str:
        await run.step(gate.wait)
        return "finished"

    below = declare_agent(child)

    async def top(run: Run) -> object:
        return (await (await run.spawn(below)).outcome()).result

    agent = declare_agent(top)
    first = await cluster.start(agent, below, settings=replace(FAST, linger_ms=60_000))
    run_id = await cluster.submit(agent)
    await gate.arrival()
    (child_run,) = await _tree(cluster, run_id)
    await first.kill()  # in the middle of the await, which had not parked
    assert (await cluster.run(run_id)).status is RunStatus.RUNNING
    gate.open()
    await cluster.start(agent, below)
    assert await cluster.result(run_id) == "finished"
    assert [r.id for r in await _tree(cluster, run_id)] == [child_run.id]


@pytest.mark.req("TR-64", "TR-38", "G-35", "C19")
async def test_an_unknown_effect_of_a_child_stands_in_its_parent_s_receipt_and_blocks(cluster: Cluster) -> None:
    gate = BlockingGate()

    def pay() -> str:
        gate.wait()
        return "paid"

    tool = declare_tool(pay)

    async def child(run: Run) -> None:
        await run.call(tool)

    below = declare_agent(child)

    async def top(run: Run) -> None:
        await (await run.spawn(below)).outcome()

    async def fine(run: Run) -> str:
        return "fine"

    agent, other = declare_agent(top), declare_agent(fine)
    await cluster.start(agent, below, other)
    run_id = await cluster.submit(agent, thread="t-1")
    await gate.arrival()
    await cluster.reaches(run_id, RunStatus.WAITING)
    receipt = await cancelled(cluster, run_id, grace_ms=40)
    (child_run,) = await _tree(cluster, run_id)
    assert [(o["run_id"], o["operation"], o["name"]) for o in receipt.unresolved] == [(child_run.id, "1", "pay")]
    assert (receipt.policy.policy, receipt.policy.rule) == (Policy.BLOCK, "R2")
    own = await proven(cluster, child_run.id)
    assert [o["status"] for o in own.unresolved] == ["unknown"]
    with pytest.raises(ContinuationRefused, match="block"):
        await cluster.submit(other, thread="t-1")
    gate.open()
    await eventually(lambda: has_evidence(cluster, child_run.id))
    assert await cluster.result(await cluster.submit(other, thread="t-1")) == "fine"
    assert await proven(cluster, run_id) == receipt


@pytest.mark.req("TR-64", "RR-35")
async def test_a_completed_parent_with_a_child_in_doubt_is_not_clean(cluster: Cluster) -> None:
    gate = Gate()

    async def pay() -> None:
        await gate.wait()

    tool = declare_tool(pay)

    async def child(run: Run) -> None:
        await run.call(tool)

    below = declare_agent(child)

    async def top(run: Run) -> str:
        await run.spawn(below)
        await gate.reached.wait()
        return "not waiting for it"

    agent = declare_agent(top)
    await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "not waiting for it"
    receipt = await proven(cluster, run_id)
    assert [(o["name"], o["status"]) for o in receipt.unresolved] == [("pay", "dispatched")]
    assert receipt.policy.policy is Policy.BLOCK
    gate.open()
    (child_run,) = await _tree(cluster, run_id)
    await cluster.receipt(child_run.id)


@pytest.mark.req("RR-30", "C28")
async def test_a_tree_whose_workers_are_dead_ends_from_the_root_down(cluster: Cluster) -> None:
    gate = Gate()

    below = waits_at(gate)
    agent = awaits(below)
    host = await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.reaches(run_id, RunStatus.WAITING)
    await host.kill()
    await cancel(cluster, run_id)
    assert await stage(cluster, run_id) == "cancelled CFPT"
    assert {await stage(cluster, r.id) for r in await _tree(cluster, run_id)} == {"cancelled CFPT"}


@pytest.mark.req("RR-30", "TR-59")
async def test_a_client_that_dies_behind_the_admission_of_a_tree_leaves_all_of_it_to_others(cluster: Cluster) -> None:
    gate = Gate()

    below = waits_at(gate)
    agent = awaits(below)
    await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.reaches(run_id, RunStatus.WAITING)
    client = cluster.host(crash_at="cancel.after")
    Pause(client)  # holds its line for good: the admission is stored, and its answer never comes
    answer = asyncio.create_task(client.service.cancel(run_id))
    await eventually(lambda: _is_settling(cluster, run_id))
    client.line.cut()
    assert (await proven(cluster, run_id)).status is RunStatus.CANCELLED
    for member in await _tree(cluster, run_id):
        assert (await proven(cluster, member.id)).status is RunStatus.CANCELLED
    answer.cancel()


async def _is_settling(cluster: Cluster, run_id: RunId) -> bool:
    return (await stage(cluster, run_id)) != "waiting"


@pytest.mark.req("RR-30", "CC-10")
async def test_a_tree_that_is_larger_than_one_cancel_reaches_is_refused_whole(cluster: Cluster) -> None:
    gate = Gate()

    below = waits_at(gate)

    async def top(run: Run) -> None:
        for _ in range(3):
            await run.spawn(below)
        await run.step(gate.wait)

    agent = declare_agent(top)
    host = await cluster.start(agent, below, limits=replace(DEFAULT_LIMITS, tree_runs_max=3))
    run_id = await cluster.submit(agent)
    await gate.arrival(4)
    with pytest.raises(InvalidInput, match="at most 3 runs"):
        await host.service.cancel(run_id)
    assert {r.status for r in [await cluster.run(run_id), *await _tree(cluster, run_id)]} == {RunStatus.RUNNING}
    await cancelled(cluster, run_id)
