"""Effects that may have happened: how they become unknown, and the only ways by which that ends (RR-12, TR-45, CC-54)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import Json, parse
from quiesce.domain.errors import InvalidInput, NotFound, OutcomeUnknown, Refused
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import OperationStatus, RetryPolicy
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import Agent, Registry, declare_agent, declare_tool
from quiesce.runtime.service import Caller, ControlService
from tests.runtime.kit import Cluster, Gate, Host, eventually

ADA = Actor(kind=ActorKind.USER, name="ada")


def decision(run_id: RunId, verdict: Verdict, *, result: str | None = None, position: str = "1") -> Decision:
    return Decision(
        run_id=run_id, position=Position(position), verdict=verdict, actor=ADA, grounds="the bank's statement", result=result
    )


class Payment:
    """An agent whose one tool call cannot tell what became of it, the first time."""

    def __init__(self, *, doubts: int = 1) -> None:
        self.calls = 0

        async def pay() -> str:
            self.calls += 1
            if self.calls <= doubts:
                raise OutcomeUnknown("the connection broke after sending")
            return "paid at the second call"

        tool = declare_tool(pay)

        async def buys(run: Run) -> str:
            try:
                return str(await run.call(tool))
            except OutcomeUnknown as error:
                return f"gave up: {error}"

        self.agent: Agent = declare_agent(buys)


async def _parked(cluster: Cluster, payment: Payment, **fields: dict[str, int]) -> tuple[RunId, Host]:
    host = await cluster.start(payment.agent)
    run_id = await cluster.submit(payment.agent, thread="t-1", budget=fields.get("budget", {}))
    await cluster.reaches(run_id, RunStatus.WAITING)
    return run_id, host


@pytest.mark.req("RR-12", "C56")
@pytest.mark.parametrize("effect", ["once", "probe"])
async def test_a_call_that_does_not_answer_in_time_is_unknown_and_parks_the_run(cluster: Cluster, effect: str) -> None:
    calls = 0
    forever = Gate()

    async def pay() -> None:
        nonlocal calls
        calls += 1
        await forever.wait()

    async def ask(key: str) -> None:
        """Never tell."""

    tool = declare_tool(pay, effect=effect, timeout_ms=30, probe=ask if effect == "probe" else None)

    async def buys(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(buys)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    run = await cluster.reaches(run_id, RunStatus.WAITING)
    operation = (await cluster.journal(run_id))["1"]
    assert operation.status is OperationStatus.UNKNOWN
    assert operation.tries[0].error == "no answer: no answer in time"
    assert (calls, run.worker_id) == (1, None)


@pytest.mark.req("C56")
async def test_a_repeatable_call_that_does_not_answer_is_made_again_under_its_key(cluster: Cluster) -> None:
    calls = 0
    forever = Gate()

    async def fetch() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            await forever.wait()
        return calls

    tool = declare_tool(fetch, effect="idempotent", timeout_ms=30, retry=RetryPolicy(tries=2, first_delay_ms=1))

    async def fetches(run: Run) -> object:
        return await run.call(tool)

    agent = declare_agent(fetches)
    await cluster.start(agent)
    assert await cluster.result(await cluster.submit(agent)) == 2


@pytest.mark.req("TR-45", "CC-54", "RR-14")
async def test_a_decision_that_it_happened_gives_the_result_without_a_call(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment, budget={"tool_calls": 1})
    evidence = await cluster.service.reconcile(decision(run_id, Verdict.HAPPENED, result="paid"))
    assert await cluster.result(run_id) == "paid"
    assert payment.calls == 1
    assert (evidence.actor, evidence.kind, evidence.verdict) == (ADA, EvidenceKind.DECISION, Verdict.HAPPENED)
    grounds = parse(evidence.body)
    assert isinstance(grounds, dict)
    assert grounds["grounds"] == "the bank's statement"
    usage = (await cluster.receipt(run_id)).usage
    assert usage["tool_calls"] == {"limit": 1, "used": 1, "reserved": 0}


@pytest.mark.req("TR-45", "CC-54")
async def test_a_decision_that_it_did_not_happen_has_the_call_made_again(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment, budget={"tool_calls": 1})
    await cluster.service.reconcile(decision(run_id, Verdict.DID_NOT_HAPPEN))
    assert await cluster.result(run_id) == "paid at the second call"
    assert payment.calls == 2
    assert (await cluster.receipt(run_id)).usage["tool_calls"] == {"limit": 1, "used": 1, "reserved": 0}


@pytest.mark.req("TR-45", "RR-19")
async def test_a_decision_to_go_on_without_knowing_is_an_error_to_the_agent_and_frees_nothing(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment, budget={"tool_calls": 1})
    await cluster.service.reconcile(decision(run_id, Verdict.GIVE_UP))
    result = await cluster.result(run_id)
    assert isinstance(result, str)
    assert result.startswith("gave up: pay: nobody could tell")
    assert payment.calls == 1
    assert (await cluster.receipt(run_id)).usage["tool_calls"] == {"limit": 1, "used": 0, "reserved": 1}


@pytest.mark.req("CC-54", "RR-12")
async def test_a_record_that_nobody_can_tell_ends_nothing(cluster: Cluster) -> None:
    payment = Payment()
    run_id, host = await _parked(cluster, payment)
    await cluster.service.reconcile(decision(run_id, Verdict.CANNOT_TELL))
    await host.kill()
    await cluster.start(payment.agent)
    assert (await cluster.run(run_id)).status is RunStatus.WAITING
    assert payment.calls == 1
    assert len((await cluster.service.inspect(run_id)).evidence) == 1


@pytest.mark.req("TR-45", "C76")
async def test_of_two_decisions_the_second_is_refused(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment)
    await cluster.service.reconcile(decision(run_id, Verdict.HAPPENED, result="paid"))
    with pytest.raises(Refused, match="its outcome is known"):
        await cluster.service.reconcile(decision(run_id, Verdict.DID_NOT_HAPPEN))
    assert await cluster.result(run_id) == "paid"
    assert len((await cluster.service.inspect(run_id)).evidence) == 1


@pytest.mark.req("CC-54", "C94")
async def test_a_decision_names_an_operation_that_exists_and_is_one_s_own(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment)
    with pytest.raises(NotFound, match="operation"):
        await cluster.service.reconcile(decision(run_id, Verdict.HAPPENED, position="9"))
    other = cluster.host(caller=Caller(tenant="other"))
    with pytest.raises(NotFound, match="run"):
        await other.service.reconcile(decision(run_id, Verdict.HAPPENED))
    assert (await cluster.run(run_id)).status is RunStatus.WAITING


@pytest.mark.req("RR-12", "CC-52")
async def test_a_call_under_way_is_not_yet_unknown_and_cannot_be_decided(cluster: Cluster) -> None:
    gate = Gate()

    async def pay() -> None:
        await gate.wait()

    tool = declare_tool(pay)

    async def buys(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(buys)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    with pytest.raises(Refused, match="under way"):
        await cluster.service.reconcile(decision(run_id, Verdict.HAPPENED))
    gate.open()
    await cluster.result(run_id)


@pytest.mark.req("RR-13", "C56")
async def test_the_worker_s_death_in_the_moment_of_the_decision_loses_nothing(cluster: Cluster) -> None:
    payment = Payment()
    run_id, host = await _parked(cluster, payment)
    await host.kill()
    await cluster.service.reconcile(decision(run_id, Verdict.HAPPENED, result="paid"))
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    await cluster.start(payment.agent)
    assert await cluster.result(run_id) == "paid"


@pytest.mark.req("TR-16", "TR-38", "G-35", "RR-36")
@pytest.mark.parametrize(
    ("verdict", "policy"), [(Verdict.HAPPENED, Policy.ALLOW), (Verdict.DID_NOT_HAPPEN, Policy.ALLOW), (None, Policy.BLOCK)]
)
async def test_a_decision_after_the_end_changes_what_may_follow_but_not_the_receipt(
    cluster: Cluster, verdict: Verdict | None, policy: Policy
) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment)
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert receipt.policy.policy is Policy.BLOCK
    assert [o["operation"] for o in receipt.unresolved] == ["1"]
    journal = await cluster.journal(run_id)
    if verdict is not None:
        await cluster.service.reconcile(decision(run_id, verdict, result="paid"))
    assert await cluster.journal(run_id) == journal
    again = await cluster.receipt(run_id)
    assert again == receipt
    assert again.h3() == again.digest
    run = await cluster.run(run_id)
    assert run.status is RunStatus.CANCELLED
    assert payment.calls == 1
    if policy is Policy.ALLOW:
        assert await cluster.submit(payment.agent, thread="t-1") != run_id
    else:
        with pytest.raises(Refused, match="block"):
            await cluster.submit(payment.agent, thread="t-1")


@pytest.mark.req("G-35", "TR-38", "TR-45")
async def test_a_decision_about_an_earlier_try_says_nothing_of_what_became_unknown_since(cluster: Cluster) -> None:
    payment = Payment(doubts=2)
    run_id, _ = await _parked(cluster, payment)
    await cluster.service.reconcile(decision(run_id, Verdict.DID_NOT_HAPPEN))

    async def is_parked_again() -> bool:
        return payment.calls == 2 and (await cluster.run(run_id)).status is RunStatus.WAITING

    await eventually(is_parked_again)
    await cluster.service.cancel(run_id)
    assert (await cluster.receipt(run_id)).policy.policy is Policy.BLOCK
    with pytest.raises(Refused, match="block"):
        await cluster.submit(payment.agent, thread="t-1")


@pytest.mark.req("C19", "TR-21", "RR-36")
async def test_clean_up_after_a_cancel_is_not_cut_short_and_its_answer_is_kept(cluster: Cluster) -> None:
    begun = Gate()
    cleaned = 0

    async def transfer() -> str:
        nonlocal cleaned
        try:
            await begun.wait()
        except asyncio.CancelledError:
            for _ in range(5):  # to take the money back takes a while
                await asyncio.sleep(0.005)
                cleaned += 1
            return "taken back"
        return "transferred"

    tool = declare_tool(transfer)

    async def buys(run: Run) -> None:
        await run.call(tool)

    agent = declare_agent(buys)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await begun.arrival()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert cleaned == 5
    assert (receipt.cleanup_completed, receipt.escalated, receipt.unresolved) == (True, False, ())
    call = (await cluster.journal(run_id))["1"]
    assert (call.status, parse(call.result or b"")) == (OperationStatus.COMMITTED, "taken back")
    assert [o["operation"] for o in receipt.unconsumed] == ["1"]


@pytest.mark.req("TR-45", "CC-54", "CC-10")
@pytest.mark.parametrize("result", [7, None, {"id": 7}], ids=str)
async def test_a_result_that_the_tool_does_not_return_is_refused_before_anything_changes(cluster: Cluster, result: Json) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment)
    knowing = ControlService(cluster.env, known=Registry([payment.agent]))
    wrong = replace(decision(run_id, Verdict.HAPPENED), result=result)
    before = (await cluster.run(run_id), await cluster.journal(run_id))
    with pytest.raises(InvalidInput, match="does not fit str") as refused:
        await knowing.reconcile(wrong)
    assert (refused.value.details["field"], refused.value.details["value"]) == ("result", str(result))
    assert (await cluster.run(run_id), await cluster.journal(run_id)) == before
    assert (await cluster.service.inspect(run_id)).evidence == []
    evidence = await knowing.reconcile(decision(run_id, Verdict.HAPPENED, result="paid"))
    assert b'"result_checked":true' in evidence.body
    assert await cluster.result(run_id) == "paid"


@pytest.mark.req("TR-45", "CC-54")
async def test_where_the_tool_is_not_known_the_record_says_that_the_result_was_not_checked(cluster: Cluster) -> None:
    payment = Payment()
    run_id, _ = await _parked(cluster, payment)

    async def pays(run: Run) -> None:
        """Of the run's agent this process has another version, which has no such tool."""

    other = ControlService(cluster.env, known=Registry([declare_agent(pays, name=payment.agent.name)]))
    evidence = await other.reconcile(decision(run_id, Verdict.HAPPENED, result="paid"))
    assert b'"result_checked":false' in evidence.body
    assert await cluster.result(run_id) == "paid"
