"""Cancel against claim, against completion, against a late result: exactly one winner, whoever it is (C11, G-36)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.canonical import parse
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import RunId
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import RunStatus
from quiesce.runtime.cancel import CancelVerdict
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from tests.runtime.cancel_kit import Pause, awaits, cancel, cancel_impatiently, has_evidence, proven, stage, waits_at
from tests.runtime.kit import Cluster, Gate, eventually, within


def greets(greeted: Counter[str]) -> Agent:
    async def greet(run_id: str) -> str:
        greeted[run_id] += 1
        return "hello"

    async def greeter(run: Run) -> str:
        await run.emit("on my way")
        return await run.step(greet, run.id)

    return declare_agent(greeter)


# -- cancel ‖ claim --------------------------------------------------------------------------------------------------------


@pytest.mark.req("C11", "RR-29", "C09")
async def test_of_claim_and_cancel_one_is_first_and_the_run_shows_which(cluster: Cluster) -> None:
    greeted: Counter[str] = Counter()
    agent = greets(greeted)
    run_ids = [await cluster.submit(agent) for _ in range(60)]
    first, second = cluster.host(agent), cluster.host(agent)
    await asyncio.gather(first.start(), *(cancel(cluster, run_id) for run_id in run_ids), second.start())
    ends: Counter[str] = Counter()
    for run_id in run_ids:
        receipt = await proven(cluster, run_id)
        inspection = await cluster.service.inspect(run_id)
        ends[f"{receipt.status} {receipt.never_started}"] += 1
        assert receipt.never_started == (not inspection.attempts), inspection.to_json()
        if receipt.never_started:
            assert receipt.status is RunStatus.CANCELLED
            assert (inspection.operations, receipt.frontier.emitted_seq, greeted[run_id]) == ([], 0, 0)
        assert greeted[run_id] <= 1
    assert ends.total() == len(run_ids)


@pytest.mark.req("C11", "RR-29", "C10")
async def test_a_run_that_was_claimed_before_its_cancel_is_not_called_never_started(cluster: Cluster) -> None:
    greeted: Counter[str] = Counter()
    agent = greets(greeted)
    host = cluster.host(agent, crash_at="claim.after")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    await cancel(cluster, run_id)
    assert await stage(cluster, run_id) == "settling C"
    pause.resume()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.never_started, receipt.attempt) == (RunStatus.CANCELLED, False, 1)


# -- cancel ‖ completion ---------------------------------------------------------------------------------------------------


@pytest.mark.req("G-36", "RR-28", "RR-29")
@pytest.mark.parametrize("end", ["completion", "failure"])
async def test_a_cancel_that_is_first_wins_over_a_completion_on_its_way(cluster: Cluster, end: str) -> None:
    async def greet() -> str:
        return "hello"

    async def greeter(run: Run) -> str:
        if end == "failure":
            raise ValueError("broken")
        return await run.step(greet)

    agent = declare_agent(greeter)
    host = cluster.host(agent, crash_at="end.before")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    fence = (await cluster.run(run_id)).fence
    admission = await cancel(cluster, run_id)
    assert (admission.verdict, admission.receipt) == (CancelVerdict.ACCEPTED, None)
    settling = await cluster.run(run_id)
    assert (settling.fence, settling.drain_fence) == (fence + 1, fence)
    pause.resume()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.CANCELLED, Reason.USER_CANCEL)
    assert (receipt.checkpoint_id, await cluster.service.result(run_id)) == (None, None)
    assert (receipt.cleanup_completed, receipt.escalated) == (True, False)
    results = [parse(o.result or b"") for o in (await cluster.journal(run_id)).values()]
    assert results == (["hello"] if end == "completion" else [])


@pytest.mark.req("G-36", "RR-28", "RR-31")
@pytest.mark.parametrize("cancel_is_under_way", [True, False])
async def test_a_completion_that_is_first_wins_over_a_cancel_on_its_way(cluster: Cluster, cancel_is_under_way: bool) -> None:
    greeted: Counter[str] = Counter()
    agent = greets(greeted)
    client = cluster.host(crash_at="cancel.before")
    pause = Pause(client)
    run_id = await cluster.submit(agent)
    cancelling = asyncio.create_task(client.service.cancel(run_id)) if cancel_is_under_way else None
    if cancelling is not None:
        await pause.arrival()
    await cluster.start(agent)
    assert await cluster.result(run_id) == "hello"
    receipt = await proven(cluster, run_id)
    if cancelling is None:
        cancelling = asyncio.create_task(client.service.cancel(run_id))
        await pause.arrival()
    pause.resume()
    admission = await within(cancelling)
    assert (admission.verdict, admission.receipt, admission.reached) == (CancelVerdict.ALREADY_TERMINAL, receipt, ())
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("G-36")
async def test_of_completion_and_cancel_at_once_exactly_one_wins(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> str:
        await gate.wait()
        return "done"

    agent = declare_agent(waits)
    await cluster.start(agent)
    run_ids = [await cluster.submit(agent) for _ in range(12)]
    for run_id in run_ids:
        await cluster.reaches(run_id, RunStatus.RUNNING)
    gate.open()
    admissions = await asyncio.gather(*(cancel(cluster, run_id) for run_id in run_ids))
    for run_id, admission in zip(run_ids, admissions, strict=True):
        receipt = await proven(cluster, run_id)
        won = admission.verdict is CancelVerdict.ACCEPTED
        assert receipt.status is (RunStatus.CANCELLED if won else RunStatus.COMPLETED)
        assert await cluster.service.result(run_id) == (None if won else "done")


# -- cancel ‖ others -------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-05", "C20", "G-36")
async def test_of_two_cancels_at_once_one_is_the_cause_and_the_other_is_told_so(cluster: Cluster) -> None:
    gate = Gate()

    agent = waits_at(gate)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    both = await asyncio.gather(cancel(cluster, run_id, key="one"), cancel(cluster, run_id, key="two"))
    assert sorted(a.verdict for a in both) == [CancelVerdict.ACCEPTED, CancelVerdict.ALREADY_ACCEPTED]
    occurrences = [a.occurrence for a in both if a.occurrence is not None]
    assert occurrences[0] == occurrences[1]
    receipt = await proven(cluster, run_id)
    assert receipt.occurrence_id == occurrences[0].id


@pytest.mark.req("RR-30", "C52")
@pytest.mark.parametrize("parent_is_first", [True, False])
async def test_a_child_that_is_being_started_is_either_reached_by_the_cancel_or_not_there(
    cluster: Cluster, parent_is_first: bool
) -> None:
    gate = Gate()

    below = waits_at(gate)
    agent = awaits(below)
    host = cluster.host(agent, crash_at="spawn.after" if parent_is_first else "spawn.before")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    admission = await cancel(cluster, run_id)
    pause.resume()
    assert (await proven(cluster, run_id)).status is RunStatus.CANCELLED
    children = [c.id for c in (await cluster.service.inspect(run_id)).children]
    assert admission.reached == (run_id, *children)
    assert len(children) == (1 if parent_is_first else 0)
    assert {(await proven(cluster, c)).status for c in children} <= {RunStatus.CANCELLED}


@pytest.mark.req("RR-31", "C09", "G-34")
@pytest.mark.parametrize("order", ["result first", "cancel first", "boundary first"])
async def test_a_result_beside_a_cancel_is_a_step_evidence_or_too_late_by_its_order(cluster: Cluster, order: str) -> None:
    async def act() -> str:
        return "acted"

    tool = declare_tool(act)

    async def acts(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(acts)
    host = cluster.host(agent, crash_at="result.after" if order == "result first" else "effect.after")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    if order == "boundary first":
        await cancel_impatiently(cluster, run_id)
        assert (await cluster.receipt(run_id)).unresolved
    else:
        await cancel(cluster, run_id)
    pause.resume()
    receipt = await proven(cluster, run_id)
    operation = (await cluster.journal(run_id))["1"]
    if order == "boundary first":
        assert operation.status is OperationStatus.UNKNOWN
        assert receipt.unresolved[0]["operation"] == "1"
        await eventually(lambda: has_evidence(cluster, run_id))
        (evidence,) = (await cluster.service.inspect(run_id)).evidence
        assert (evidence.kind, evidence.verdict) == (EvidenceKind.LATE_RESULT, Verdict.HAPPENED)
        assert (await cluster.receipt(run_id), await cluster.journal(run_id)) == (receipt, {"1": operation})
    else:
        assert (operation.status, receipt.unresolved) == (OperationStatus.COMMITTED, ())
        assert parse(operation.result or b"") == "acted"


@pytest.mark.req("TR-32", "C22", "ST-04")
async def test_rows_whose_writer_is_interrupted_go_with_the_next_write(cluster: Cluster) -> None:
    async def keeps(run: Run) -> str:
        await run.checkpoint(1)
        host.line.hold()
        saving = asyncio.ensure_future(run.checkpoint(2))
        for _ in range(5):
            await asyncio.sleep(0)  # on its way to the store by now
        saving.cancel()
        await asyncio.wait({saving})
        host.line.release()
        await run.checkpoint(3)
        return "kept"

    agent = declare_agent(keeps)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "kept"
    await proven(cluster, run_id)
    checkpoints = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert [parse(c.state) for c in checkpoints[:-1]] == [1, 2, 3]


@pytest.mark.req("TR-59", "TR-16")
async def test_of_many_who_finish_a_settlement_at_once_one_publishes_and_all_get_that_receipt(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> None:
        await run.emit("seen")
        await run.step(gate.wait)

    agent = declare_agent(waits)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await host.kill(lease_ends=False)
    await cancel_impatiently(cluster, run_id)
    assert await stage(cluster, run_id) == "settling C"
    elsewhere: list[RunId] = [run_id] * 6
    receipts = await asyncio.gather(*(within(cluster.host().service.wait(r)) for r in elsewhere))
    assert {r.id for r in receipts} == {(await proven(cluster, run_id)).id}
    announced = await cluster.store.read(lambda tx: [m for m in tx.outbox.pending(limit=100) if m.run_id == run_id])
    assert len(announced) == 1
