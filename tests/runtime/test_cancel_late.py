"""Answers that come after a cancel: kept as evidence, without force, and never a step (C19, G-34, RR-32 to RR-34)."""

from __future__ import annotations

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import ContinuationRefused
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.operations import OperationStatus
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.cancel_kit import (
    Stubborn,
    cancel,
    cancelled,
    has_evidence,
    is_at,
    proven,
)
from tests.runtime.kit import BlockingGate, Cluster, eventually


@pytest.mark.req("RR-32", "RR-33", "RR-34", "G-34", "C09")
@pytest.mark.parametrize("model", ["blocks a thread", "swallows the cancellation"])
async def test_a_proposal_that_comes_after_the_cancel_is_kept_and_dispatches_nothing(cluster: Cluster, model: str) -> None:
    blocking, stubborn = BlockingGate(), Stubborn()
    calls = 0

    def propose_in_thread() -> str:
        blocking.wait()
        return "call the tool"

    async def propose_stubbornly() -> str:
        await stubborn.hold()
        return "call the tool"

    async def act() -> None:
        nonlocal calls
        calls += 1

    tool = declare_tool(act)

    async def asks(run: Run) -> None:
        await (run.step(propose_in_thread) if model == "blocks a thread" else run.step(propose_stubbornly))
        await run.call(tool)

    agent = declare_agent(asks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await (blocking if model == "blocks a thread" else stubborn).arrival()
    receipt = await cancelled(cluster, run_id, grace_ms=40)
    assert (receipt.cleanup_completed, receipt.escalated) == (False, True)
    before = await cluster.journal(run_id)
    blocking.open()
    stubborn.let_go()
    await eventually(lambda: has_evidence(cluster, run_id))
    (evidence,) = (await cluster.service.inspect(run_id)).evidence
    assert (evidence.kind, evidence.position, parse(evidence.body)) == (EvidenceKind.LATE_PROPOSAL, "1", "call the tool")
    assert (calls, await cluster.journal(run_id), await cluster.receipt(run_id)) == (0, before, receipt)
    elsewhere = cluster.host().service
    assert (await elsewhere.get(run_id)).status is RunStatus.CANCELLED


@pytest.mark.req("RR-33", "RR-32")
async def test_a_proposal_that_arrives_while_the_cancel_drains_is_kept_without_force(cluster: Cluster) -> None:
    calls = 0
    stubborn = Stubborn()

    async def propose() -> str:
        await stubborn.hold()
        return "call the tool"

    async def act() -> None:
        nonlocal calls
        calls += 1

    tool = declare_tool(act)

    async def asks(run: Run) -> None:
        await run.step(propose)
        await run.call(tool)

    agent = declare_agent(asks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await stubborn.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: _is_swallowed(stubborn))
    stubborn.let_go()
    receipt = await proven(cluster, run_id)
    assert (receipt.cleanup_completed, receipt.escalated, calls) == (True, False, 0)
    (evidence,) = (await cluster.service.inspect(run_id)).evidence
    assert evidence.kind is EvidenceKind.LATE_PROPOSAL
    assert await cluster.journal(run_id) == {}


async def _is_swallowed(stubborn: Stubborn) -> bool:
    return stubborn.swallowed > 0


@pytest.mark.req("C19", "G-34", "G-35", "TR-38", "TR-44", "RR-31", "RR-38")
async def test_a_tool_that_will_not_die_is_unknown_and_its_late_answer_changes_neither_state_nor_receipt(
    cluster: Cluster,
) -> None:
    gate = BlockingGate()
    ledger: list[str] = []

    def pay() -> str:
        gate.wait()
        ledger.append("paid")
        return "paid"

    tool = declare_tool(pay)

    async def buys(run: Run) -> None:
        await run.call(tool)

    async def fine(run: Run) -> str:
        return "fine"

    agent, other = declare_agent(buys), declare_agent(fine)
    await cluster.start(agent, other)
    run_id = await cluster.submit(agent, thread="t-1")
    await gate.arrival()
    receipt = await cancelled(cluster, run_id, grace_ms=40)
    assert (receipt.status, receipt.cleanup_attempted, receipt.cleanup_completed) == (RunStatus.CANCELLED, True, False)
    assert receipt.escalated
    assert [(o["operation"], o["name"], o["status"]) for o in receipt.unresolved] == [("1", "pay", "unknown")]
    assert (receipt.policy.policy, receipt.policy.rule) == (Policy.BLOCK, "R2")
    with pytest.raises(ContinuationRefused, match="block"):
        await cluster.submit(other, thread="t-1")
    before = (await cluster.run(run_id), await cluster.journal(run_id))
    gate.open()
    await eventually(lambda: has_evidence(cluster, run_id))
    (evidence,) = (await cluster.service.inspect(run_id)).evidence
    assert (evidence.kind, evidence.verdict) == (EvidenceKind.LATE_RESULT, Verdict.HAPPENED)
    assert parse(evidence.body) == {"result_kind": "ok", "result": "paid"}
    assert (await cluster.run(run_id), await cluster.journal(run_id)) == before
    assert await cluster.receipt(run_id) == receipt
    assert await cluster.result(await cluster.submit(other, thread="t-1")) == "fine"
    assert ledger == ["paid"]


@pytest.mark.req("C19", "RR-31", "TR-21")
async def test_a_tool_that_answers_within_the_grace_has_its_result_stored_and_listed(cluster: Cluster) -> None:
    gate = BlockingGate()

    def pay() -> str:
        gate.wait()
        return "paid"

    tool = declare_tool(pay)

    async def buys(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(buys)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: is_at(cluster, run_id, "settling CF"))
    gate.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.cleanup_completed, receipt.escalated, receipt.unresolved) == (True, False, ())
    assert [(o["operation"], o["status"]) for o in receipt.unconsumed] == [("1", "committed")]
    operation = (await cluster.journal(run_id))["1"]
    assert (operation.status, parse(operation.result or b"")) == (OperationStatus.COMMITTED, "paid")
    assert receipt.policy.policy is Policy.ALLOW
    assert not host.died.is_set()
