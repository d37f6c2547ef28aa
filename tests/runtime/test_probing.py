"""The destination of an unknown effect is asked again: of a run that waits, and of one that has ended (G-35, CC-54)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.errors import NotFound, Refused
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.operations import OperationStatus
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.threads import OnBusy
from quiesce.runtime.context import Run
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.registry import Agent, Registry, declare_agent, declare_tool
from quiesce.runtime.service import Caller, ControlService
from tests.runtime.kit import Cluster, Gate

ADA = Actor(kind=ActorKind.USER, name="ada")
FIRST = Position("1")


@dataclass(slots=True)
class Bank:
    """A destination that answers its probe as the test says, and counts payments."""

    answer: object = None
    gate: Gate = field(default_factory=Gate)
    payments: int = 0
    probes: list[str] = field(default_factory=list)

    @property
    def payer(self) -> Agent:
        async def look(key: str) -> object:
            self.probes.append(key)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        async def pay(amount: int) -> str:
            self.payments += 1
            await self.gate.wait()
            return f"paid {amount}"

        tool = declare_tool(pay, effect="probe", probe=look)

        async def payer(run: Run) -> str:
            return str(await run.call(tool, 5))

        return declare_agent(payer)


async def _parked(cluster: Cluster, bank: Bank) -> RunId:
    """A run whose worker died in the call; its destination could not tell the next worker anything."""
    first = await cluster.start(bank.payer)
    run_id = await cluster.submit(bank.payer, thread="t-1")
    await bank.gate.arrival()
    await first.kill()
    await cluster.start(bank.payer)
    await cluster.reaches(run_id, RunStatus.WAITING)
    return run_id


def _service(cluster: Cluster, bank: Bank, *, caller: Caller | None = None) -> ControlService:
    return ControlService(cluster.env, caller, Registry([bank.payer]))


@pytest.mark.req("CC-54", "TR-45", "RR-13")
async def test_a_run_that_waits_goes_on_with_what_its_destination_says_now(cluster: Cluster) -> None:
    bank = Bank()
    run_id = await _parked(cluster, bank)
    bank.answer = Happened("paid 5 on Monday")
    evidence = await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)
    assert (evidence.kind, evidence.verdict, evidence.actor.name) == (EvidenceKind.PROBE, Verdict.HAPPENED, "ada")
    assert await cluster.result(run_id) == "paid 5 on Monday"
    assert bank.payments == 1
    assert set(bank.probes) == {(await cluster.journal(run_id))["1"].key}


@pytest.mark.req("CC-44", "CC-54", "TR-45")
@pytest.mark.parametrize("answer", [None, "perhaps", ConnectionError("no route"), Happened(object()), Happened(7)])
async def test_no_answer_a_failed_read_and_a_result_of_another_form_end_nothing(cluster: Cluster, answer: object) -> None:
    bank = Bank()
    run_id = await _parked(cluster, bank)
    bank.answer = answer
    evidence = await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)
    assert evidence.verdict is Verdict.CANNOT_TELL
    assert b"no route" not in evidence.body
    run = await cluster.run(run_id)
    assert run.status is RunStatus.WAITING
    assert (await cluster.journal(run_id))["1"].status is OperationStatus.UNKNOWN
    assert bank.payments == 1


@pytest.mark.req("G-35", "TR-45", "TR-38", "CC-54")
@pytest.mark.parametrize("answer", [Happened("paid 5"), Absent()])
async def test_of_a_run_that_has_ended_the_answer_is_kept_beside_it_and_the_policy_at_use_is_another(
    cluster: Cluster, answer: object
) -> None:
    bank = Bank()
    run_id = await _parked(cluster, bank)
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert receipt.policy.policy is Policy.BLOCK
    view = await cluster.threads.view(ThreadId("t-1"))
    assert view.unresolved == ((run_id, FIRST),)
    bank.answer = answer
    await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)
    after = await cluster.threads.view(ThreadId("t-1"))
    assert after.policy is not None
    assert (after.status, after.policy.policy, after.unresolved) == ("idle", Policy.ALLOW, ())
    assert await cluster.receipt(run_id) == receipt
    assert (await cluster.journal(run_id))["1"].status is OperationStatus.UNKNOWN
    assert bank.payments == 1


@pytest.mark.req("G-35", "TR-30")
async def test_what_the_destination_says_lets_the_queue_of_the_thread_go_on(cluster: Cluster) -> None:
    bank = Bank()
    run_id = await _parked(cluster, bank)
    await cluster.service.cancel(run_id)
    await cluster.receipt(run_id)

    async def echo(run: Run, text: str) -> str:
        return text

    agent = declare_agent(echo)
    bank.answer = Happened("paid 5")
    await cluster.start(agent)
    other = await cluster.submit(agent, "free", thread="t-2", turn=TurnRequest(on_busy=OnBusy.ENQUEUE))
    assert await cluster.result(other) == "free"
    await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)
    assert await cluster.result(await cluster.submit(agent, "next", thread="t-1")) == "next"


@pytest.mark.req("CC-54", "CC-58")
async def test_where_nobody_can_be_asked_it_is_said_and_nothing_is_recorded(cluster: Cluster) -> None:
    bank = Bank()
    run_id = await _parked(cluster, bank)
    probes = len(bank.probes)
    with pytest.raises(Refused, match="not known here"):
        await cluster.service.read_again(run_id, FIRST, actor=ADA)
    with pytest.raises(NotFound):
        await _service(cluster, bank).read_again(run_id, Position("9"), actor=ADA)
    with pytest.raises(NotFound):
        await _service(cluster, bank, caller=Caller(tenant="other")).read_again(run_id, FIRST, actor=ADA)
    assert len(bank.probes) == probes
    assert [e.kind for e in (await cluster.service.inspect(run_id)).evidence] == []
    bank.answer = Happened("paid 5")
    await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)
    await cluster.result(run_id)
    with pytest.raises(Refused, match="outcome is known"):
        await _service(cluster, bank).read_again(run_id, FIRST, actor=ADA)


@pytest.mark.req("CC-54", "RR-13")
async def test_a_tool_that_is_declared_once_has_no_destination_to_ask(cluster: Cluster) -> None:
    gate = Gate()

    async def order(what: str) -> str:
        await gate.wait()
        return what

    tool = declare_tool(order, effect="once")

    async def buyer(run: Run) -> str:
        return str(await run.call(tool, "tea"))

    agent = declare_agent(buyer)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await host.kill()
    await cluster.start(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    with pytest.raises(Refused, match="has no probe"):
        await ControlService(cluster.env, known=Registry([agent])).read_again(run_id, FIRST, actor=ADA)
