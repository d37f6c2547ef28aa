"""Cancel wherever a run can be: never started, waiting, in back-off, at any boundary, ended (C08, C09, C10, C14)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.adapters.artifact_directory import ArtifactDirectory
from quiesce.domain.boundary import Cause, GapKind, Reason
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import NotFound
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import OperationKind, RetryPolicy
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.runtime.cancel import CancelVerdict
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from quiesce.runtime.service import Caller
from tests.runtime.cancel_kit import (
    LOCAL,
    Pause,
    cancel,
    cancelled,
    proven,
    stage,
    waits_at,
)
from tests.runtime.kit import FAST, Cluster, Gate, eventually

# -- before it began -------------------------------------------------------------------------------------------------------


@pytest.mark.req("C01", "C10", "RR-29", "TR-05", "TR-25")
async def test_a_run_that_never_started_ends_at_once_and_is_never_started(cluster: Cluster) -> None:
    gate = Gate()
    agent = waits_at(gate)
    run_id = await cluster.submit(agent, thread="t-1")
    admission = await cancel(cluster, run_id)
    assert (admission.verdict, admission.reached) == (CancelVerdict.ACCEPTED, (run_id,))
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.cause, receipt.reason) == (RunStatus.CANCELLED, Cause.EXPLICIT_CANCEL, Reason.USER_CANCEL)
    assert (receipt.actor, receipt.reason_text) == (LOCAL, "changed my mind")
    assert (receipt.never_started, receipt.attempt, receipt.checkpoint_id) == (True, 0, None)
    assert (receipt.frontier.emitted_seq, receipt.gap.kind) == (0, GapKind.NONE)
    gate.open()
    await cluster.start(agent)
    following = await cluster.submit(agent, thread="t-1")
    assert await cluster.result(following) == "done"
    assert (await cluster.journal(run_id), await cluster.events(run_id), gate.arrivals) == ({}, [], 1)
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("C10")
async def test_a_queued_run_is_terminal_without_a_worker_and_without_anybody_who_waits(cluster: Cluster) -> None:
    agent = waits_at(Gate())
    run_id = await cluster.submit(agent, thread="t-1")
    await cancel(cluster, run_id)
    assert await stage(cluster, run_id) == "cancelled CFPT"
    await cluster.submit(agent, thread="t-1")


@pytest.mark.req("C01", "C94")
async def test_a_cancel_of_a_run_that_is_not_there_is_an_error_and_never_a_success(cluster: Cluster) -> None:
    run_id = await cluster.submit(waits_at(Gate()))
    with pytest.raises(NotFound, match="nothing was cancelled"):
        await cluster.service.cancel(RunId("0" * 8))
    stranger = cluster.host(caller=Caller(tenant="other"))
    with pytest.raises(NotFound, match="nothing was cancelled"):
        await stranger.service.cancel(run_id)
    assert await stage(cluster, run_id) == "pending"


# -- while it waits --------------------------------------------------------------------------------------------------------


async def _is_due(cluster: Cluster, agent: Agent, ahead_ms: int) -> list[RunId]:
    found = await cluster.store.transact(
        lambda tx: tx.runs.claimable(agents=[agent.name], now=after_ms(tx.now, ahead_ms), limit=10)
    )
    return [run.id for run in found]


@pytest.mark.req("C08", "C09", "RR-29")
async def test_a_run_that_waits_for_a_timer_ends_at_once_and_the_timer_wakes_nobody(cluster: Cluster) -> None:
    async def sleeps(run: Run) -> None:
        await run.sleep(3600)

    agent = declare_agent(sleeps)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    run = await cluster.reaches(run_id, RunStatus.WAITING)
    assert [w.kind for w in run.waits] == [WaitKind.TIMER]
    assert await _is_due(cluster, agent, 3_700_000) == [run_id]
    await cancel(cluster, run_id)
    assert await stage(cluster, run_id) == "cancelled CFPT"
    receipt = await proven(cluster, run_id)
    assert (receipt.never_started, receipt.attempt, receipt.cleanup_completed) == (False, 1, True)
    assert await _is_due(cluster, agent, 3_700_000) == []
    ended = await cluster.run(run_id)
    assert (ended.waits, ended.due_at, ended.worker_id) == ((), None, None)


@pytest.mark.req("C08", "C09")
@pytest.mark.parametrize("linger_ms", [10, 60_000], ids=["parked", "in its process"])
async def test_a_run_in_back_off_ends_at_once_and_is_not_tried_again(cluster: Cluster, linger_ms: int) -> None:
    tries = 0

    async def stumble() -> None:
        nonlocal tries
        tries += 1
        raise ConnectionError("away")

    async def stumbles(run: Run) -> None:
        await run.step(stumble, retry=RetryPolicy(tries=5, first_delay_ms=30_000))

    agent = declare_agent(stumbles)
    await cluster.start(agent, settings=replace(FAST, linger_ms=linger_ms))
    run_id = await cluster.submit(agent)
    if linger_ms > 1000:
        await eventually(lambda: _is_backed_off(cluster, run_id))
        assert (await cluster.run(run_id)).status is RunStatus.RUNNING
    else:
        await cluster.reaches(run_id, RunStatus.WAITING)
        assert await _is_due(cluster, agent, 60_000) == [run_id]
    receipt = await cancelled(cluster, run_id)
    assert (receipt.status, receipt.cleanup_completed, receipt.escalated) == (RunStatus.CANCELLED, True, False)
    assert await _is_due(cluster, agent, 60_000) == []
    operation = (await cluster.journal(run_id))["1"]
    assert (tries, len(operation.tries), operation.result) == (1, 1, None)
    assert len((await cluster.service.inspect(run_id)).attempts) == 1


async def _is_backed_off(cluster: Cluster, run_id: RunId) -> bool:
    operation = (await cluster.journal(run_id)).get("1")
    return operation is not None and operation.due_at is not None


# -- while it runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("C09", "TR-10", "TR-21")
@pytest.mark.parametrize("place", ["in a step", "between steps"])
async def test_a_running_run_is_interrupted_and_its_clean_up_is_done(cluster: Cluster, place: str) -> None:
    gate = Gate()
    cleaned: list[str] = []

    async def first() -> str:
        return "kept"

    async def works(run: Run) -> None:
        await run.step(first)
        try:
            await (run.step(gate.wait) if place == "in a step" else gate.wait())
        finally:
            cleaned.append("agent")

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    receipt = await cancelled(cluster, run_id)
    assert (receipt.status, receipt.reason, receipt.actor) == (RunStatus.CANCELLED, Reason.USER_CANCEL, LOCAL)
    assert (receipt.cleanup_attempted, receipt.cleanup_completed, receipt.escalated) == (True, True, False)
    assert (receipt.never_started, receipt.attempt) == (False, 1)
    assert cleaned == ["agent"]
    journal = await cluster.journal(run_id)
    assert parse(journal["1"].result or b"") == "kept"
    outcome = (await cluster.service.inspect(run_id)).outcome
    assert outcome is not None
    assert outcome.established_by == "holder"


class Everything:
    """An agent that passes every boundary, and counts what began."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.stumbled = False

        async def note(name: str) -> str:
            self.begun[name] += 1
            return name

        async def stumble() -> None:
            self.begun["stumble"] += 1
            if not self.stumbled:
                self.stumbled = True
                raise ConnectionError("away")

        async def act() -> str:
            self.begun["act"] += 1
            return "acted"

        async def little(run: Run) -> str:
            return await run.step(note, "child")

        tool, self.child = declare_tool(act), declare_agent(little)

        async def everything(run: Run) -> None:
            await run.emit("begun")
            await run.step(note, "first")
            await run.checkpoint({"done": "first"})
            await run.save_artifact("note.txt", "text")
            await run.call(tool)
            await run.step(stumble, retry=RetryPolicy(tries=2, first_delay_ms=1))
            await (await run.spawn(self.child)).outcome()
            for i in range(50):
                await run.step(note, f"then {i}")
            await run.sleep(3600)  # parks here, if the child was quicker than its parent could park for it

        self.agent = declare_agent(everything)


PLACES = (
    *("claim.after", "emit.before", "emit.after", "step.before", "step.after", "checkpoint.before", "checkpoint.after"),
    *("artifact.before", "artifact.after", "dispatch.before", "dispatch.after", "effect.after", "result.after"),
    *("retry.after", "spawn.before", "spawn.after", "park.before", "park.after"),
)
KEPT = {
    "step.before": {"note"},
    "effect.after": {"note", "checkpoint", "save_artifact", "act"},
    "result.after": {"note", "checkpoint", "save_artifact", "act"},
}


@pytest.mark.req("C09", "RR-31", "RR-29", "TR-03", "TR-32")
@pytest.mark.parametrize("place", PLACES)
async def test_a_cancel_at_any_boundary_ends_the_run_within_one_step_and_keeps_what_was_done(
    cluster: Cluster, place: str, tmp_path: Path
) -> None:
    world = Everything()
    host = cluster.host(world.agent, world.child, crash_at=place, artifacts=ArtifactDirectory(tmp_path))
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(world.agent)
    await pause.arrival()
    before = world.begun.total()
    results = {p: o for p, o in (await cluster.journal(run_id)).items() if o.has_result}
    await cancel(cluster, run_id)
    pause.resume()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.CANCELLED, Reason.USER_CANCEL)
    assert (receipt.cleanup_completed, receipt.escalated, receipt.unresolved) == (True, False, ())
    assert world.begun.total() - before <= 1, world.begun
    journal = await cluster.journal(run_id)
    for position, kept in results.items():
        assert replace(journal[position], status=kept.status) == kept
    assert {o.name for o in journal.values() if o.has_result} >= KEPT.get(place, set())
    assert ("act" in world.begun) == (place not in PLACES[: PLACES.index("dispatch.after")])
    children = (await cluster.service.inspect(run_id)).children
    assert len(children) == (place in ("spawn.after", "park.before", "park.after"))
    for child in children:
        assert (await proven(cluster, child.id)).status in (RunStatus.CANCELLED, RunStatus.COMPLETED)
    checkpoints = {c.id for c in await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))}
    marks = [o for o in journal.values() if o.kind is OperationKind.CHECKPOINT]
    assert {_checkpoint_of(mark.result) for mark in marks} == checkpoints
    assert receipt.checkpoint_id in checkpoints or (receipt.checkpoint_id is None and not checkpoints)


def _checkpoint_of(result: bytes | None) -> object:
    facts = parse(result or b"null")
    assert isinstance(facts, dict)
    return facts["checkpoint_id"]


@pytest.mark.req("C09", "RR-10")
async def test_a_step_that_was_scheduled_but_not_begun_never_begins(cluster: Cluster) -> None:
    gate = Gate()
    begun = 0

    async def costly() -> None:
        nonlocal begun
        begun += 1

    async def plans(run: Run) -> None:
        await gate.wait()
        await run.step(costly, reserve={"tokens": 5})

    agent = declare_agent(plans)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tokens": 10})
    await gate.arrival()
    host.line.hold()
    gate.open()
    await cancel(cluster, run_id)
    host.line.release()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, begun) == (RunStatus.CANCELLED, 0)
    assert receipt.usage["tokens"] == {"limit": 10, "used": 0, "reserved": 0}
    assert await cluster.journal(run_id) == {}


@pytest.mark.req("C14")
async def test_a_cancel_of_one_run_leaves_the_other_nine_alone(cluster: Cluster) -> None:
    gate = Gate()
    agent = waits_at(gate)
    await cluster.start(agent)
    run_ids = [await cluster.submit(agent, thread=f"t-{n}") for n in range(10)]
    for run_id in run_ids:
        await cluster.reaches(run_id, RunStatus.RUNNING)
    admission = await cancel(cluster, run_ids[3])
    assert admission.reached == (run_ids[3],)
    assert (await proven(cluster, run_ids[3])).status is RunStatus.CANCELLED
    gate.open()
    others = [await proven(cluster, run_id) for run_id in run_ids if run_id != run_ids[3]]
    assert {r.status for r in others} == {RunStatus.COMPLETED}


# -- after it ended --------------------------------------------------------------------------------------------------------


@pytest.mark.req("RR-28", "RR-31", "G-36", "TR-16")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_cancel_of_a_run_that_ended_changes_not_one_byte_and_is_no_failure(cluster: Cluster, end: str) -> None:
    async def ends(run: Run) -> str:
        if end == "failed":
            raise ValueError("broken")
        if end == "cancelled":
            await run.sleep(3600)
        return "done"

    agent = declare_agent(ends)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    if end == "cancelled":
        await cluster.reaches(run_id, RunStatus.WAITING)
        await cancel(cluster, run_id)
    receipt = await proven(cluster, run_id)
    assert receipt.status == end
    before = (canonical(receipt.to_json()), await cluster.run(run_id), await cluster.journal(run_id))
    admission = await cancel(cluster, run_id)
    assert admission.verdict is CancelVerdict.ALREADY_TERMINAL
    assert (admission.reached, admission.receipt) == ((), receipt)
    assert admission.occurrence is not None
    assert admission.occurrence.id == receipt.occurrence_id
    again = await cluster.receipt(run_id)
    assert (canonical(again.to_json()), await cluster.run(run_id), await cluster.journal(run_id)) == before
