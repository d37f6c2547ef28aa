"""Answers of calls that come when their holder can no longer store them: what they are worth, and to whom (G-34, TR-45).

A call on a thread outlives its worker's shutdown, its run's cancel, and a pause of its process. What it answers then is
proof. A run that goes on takes it; a run that has ended keeps it beside the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.evidence import Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import Fence, RunId
from quiesce.domain.operations import EffectPolicy, Operation, OperationStatus, ResultKind, Try
from quiesce.domain.runs import RunStatus, Wait, WaitKind
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.context import Run
from quiesce.runtime.reconciliation import answer_tx
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from quiesce.testing.samples import Samples
from tests.runtime.cancel_kit import Pause, cancel, cancel_impatiently
from tests.runtime.kit import FAST, BlockingGate, Cluster, Host, eventually, within

T = TypeVar("T")

AT_ONCE = replace(FAST, shutdown_ms=0)
"""Of a worker that lets nothing in flight end before it leaves."""


class Purchase:
    """An agent with one call of policy `once`, on a thread, which the test lets answer."""

    def __init__(self) -> None:
        self.gate = BlockingGate()
        self.ledger: list[str] = []

        def pay() -> str:
            self.gate.wait()
            self.ledger.append("paid")
            return "paid"

        tool = declare_tool(pay)

        async def buys(run: Run) -> str:
            return str(await run.call(tool))

        self.agent: Agent = declare_agent(buys)


async def _left(cluster: Cluster, purchase: Purchase) -> RunId:
    """Start a run and have its worker leave while the call is under way; return the run, handed back."""
    host = await cluster.start(purchase.agent, settings=AT_ONCE)
    run_id = await cluster.submit(purchase.agent, budget={"tool_calls": 3})
    await purchase.gate.arrival()
    await within(host.worker.close())
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    return run_id


async def _evidence(cluster: Cluster, run_id: RunId, kind: EvidenceKind = EvidenceKind.LATE_RESULT) -> list[Evidence]:
    return [e for e in (await cluster.service.inspect(run_id)).evidence if e.kind is kind]


async def _has_evidence(cluster: Cluster, run_id: RunId) -> bool:
    return bool(await _evidence(cluster, run_id))


@pytest.mark.req("TR-45", "RR-12", "C56", "G-34")
async def test_a_run_that_waits_to_learn_what_became_of_a_call_is_woken_by_its_late_answer(cluster: Cluster) -> None:
    purchase = Purchase()
    run_id = await _left(cluster, purchase)
    await cluster.start(purchase.agent)
    run = await cluster.reaches(run_id, RunStatus.WAITING)
    assert [w.kind for w in run.waits] == [WaitKind.UNKNOWN]
    purchase.gate.open()
    assert await cluster.result(run_id) == "paid"
    (evidence,) = await _evidence(cluster, run_id)
    assert (evidence.verdict, parse(evidence.body)) == (Verdict.HAPPENED, {"result_kind": "ok", "result": "paid"})
    units = (await cluster.run(run_id)).budget.of("tool_calls")
    assert (units.used, units.reserved, purchase.ledger) == (1, 0, ["paid"])
    assert not (await cluster.receipt(run_id)).unresolved


@pytest.mark.req("TR-45", "C56", "RR-31")
async def test_an_answer_that_comes_before_the_next_worker_is_simply_read_by_it(cluster: Cluster) -> None:
    purchase = Purchase()
    run_id = await _left(cluster, purchase)
    purchase.gate.open()
    await eventually(lambda: _has_evidence(cluster, run_id))
    assert (await cluster.journal(run_id))["1"].status is OperationStatus.COMMITTED
    await cluster.start(purchase.agent)
    assert await cluster.result(run_id) == "paid"
    assert ((await cluster.run(run_id)).attempt, purchase.ledger) == (2, ["paid"])


@pytest.mark.req("TR-45", "RR-31", "C12")
async def test_an_answer_that_comes_while_the_run_is_being_handed_back_is_not_lost(cluster: Cluster) -> None:
    purchase = Purchase()
    host = await cluster.start(purchase.agent, settings=AT_ONCE, crash_at="effect.after")
    answered = asyncio.Event()
    host.env.crash._die = lambda _: answered.set()
    _meets_the_answer(host, "Execution._hand_back", purchase, answered)
    run_id = await cluster.submit(purchase.agent)
    await purchase.gate.arrival()
    await within(host.worker.close())
    assert answered.is_set()
    assert (await cluster.journal(run_id))["1"].status is OperationStatus.COMMITTED
    await cluster.start(purchase.agent)
    assert await cluster.result(run_id) == "paid"
    assert purchase.ledger == ["paid"]


def _meets_the_answer(host: Host, where: str, purchase: Purchase, answered: asyncio.Event) -> None:
    """Have the call answer just before the host's decision that is made at `where` is handed to the store."""
    transact = host.line.transact

    async def transact_later(fn: Callable[[Transaction], T]) -> T:
        if fn.__qualname__.startswith(where):
            purchase.gate.open()
            await within(answered.wait())
        return await transact(fn)

    host.line.transact = transact_later  # type: ignore[method-assign]


@pytest.mark.req("G-34", "G-35", "C19", "RR-31", "CC-35")
async def test_what_a_frozen_holder_had_been_told_is_on_record_though_others_have_settled_its_run(cluster: Cluster) -> None:
    """The answer came behind the freeze, for the drain; by the time that the holder could store it the drain was closed."""
    purchase = Purchase()
    host = cluster.host(purchase.agent, crash_at="freeze.after")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(purchase.agent, thread="t-1")
    await purchase.gate.arrival()
    await cancel(cluster, run_id)
    await pause.arrival()
    await cancel_impatiently(cluster, run_id)
    receipt = await cluster.receipt(run_id)
    assert [o["operation"] for o in receipt.unresolved] == ["1"]
    before = (await cluster.run(run_id), await cluster.journal(run_id))
    purchase.gate.open()
    pause.resume()
    await eventually(lambda: _has_evidence(cluster, run_id))
    (evidence,) = await _evidence(cluster, run_id)
    assert parse(evidence.body) == {"result_kind": "ok", "result": "paid"}
    assert (await cluster.run(run_id), await cluster.journal(run_id)) == before
    assert await cluster.receipt(run_id) == receipt
    await cluster.submit(purchase.agent, thread="t-1")  # nothing blocks it any more: the effect is accounted for


# -- by the table ------------------------------------------------------------------------------------------------------

WHO = Actor(kind=ActorKind.RUN, name="itself")
UNKNOWN, DISPATCHED = OperationStatus.UNKNOWN, OperationStatus.DISPATCHED


class Call:
    """A stored run with a parent, and one call of it that left: as it stands, and as its late answer would leave it."""

    def __init__(self, policy: EffectPolicy, status: OperationStatus) -> None:
        make = Samples()
        self.make = make
        self.parent = make.running(limits={"tool_calls": 5}, tenant="local")
        wait = Wait(kind=WaitKind.UNKNOWN, subject="1", position=make.operation(self.parent).position)
        self.run = make.running(parent=self.parent, tenant="local").parked((wait,))
        begun = (Try(number=1, fence=self.run.fence, started_at=make.now),)
        stored = make.operation(self.run, policy=policy, status=status, reserved={"tool_calls": 1})
        self.stored = replace(stored, tries=begun)
        settled = make.operation(self.run, policy=policy, status=OperationStatus.COMMITTED, used={"tool_calls": 1})
        self.late = replace(settled, tries=(replace(begun[0], ended_at=make.now),))

    def evidence(self) -> Evidence:
        return Evidence(
            run_id=self.run.id,
            position=self.late.position,
            number=0,
            kind=EvidenceKind.LATE_RESULT,
            verdict=Verdict.HAPPENED,
            actor=WHO,
            body=canonical({"result": "done"}),
            at=self.make.now,
        )

    async def store(self, cluster: Cluster) -> None:
        def fn(tx: Transaction) -> None:
            for run in (self.parent, self.run):
                tx.threads.insert(Thread(id=run.thread_id, tenant=run.tenant, created_at=run.created_at))
                tx.runs.insert(replace(run, budget=run.budget.moved(used={}, reserved={"tool_calls": 1})))
                tx.streams.open(run.id)
            tx.operations.put_many([self.stored])

        await cluster.store.transact(fn)

    async def answer(self, cluster: Cluster) -> Operation:
        await cluster.store.transact(lambda tx: answer_tx(tx, self.late, self.evidence()))
        return (await cluster.journal(self.run.id))["1"]


@pytest.mark.req("TR-45", "RR-13", "RR-19", "RR-31", "CC-54")
@pytest.mark.parametrize(
    ("policy", "status"),
    [(policy, UNKNOWN) for policy in EffectPolicy if policy is not EffectPolicy.PURE] + [(EffectPolicy.ONCE, DISPATCHED)],
)
async def test_a_late_answer_ends_the_doubt_where_nobody_will_make_the_call_again(
    cluster: Cluster, policy: EffectPolicy, status: OperationStatus
) -> None:
    call = Call(policy, status)
    await call.store(cluster)
    assert await call.answer(cluster) == call.late
    for run_id in (call.run.id, call.parent.id):
        units = (await cluster.run(run_id)).budget.of("tool_calls")
        assert (units.used, units.reserved) == (1, 0)
    assert (await cluster.run(call.run.id)).status is RunStatus.PENDING
    again = await call.answer(cluster)  # its first answer was lost on the way
    assert (again, len(await _evidence(cluster, call.run.id))) == (call.late, 1)


OTHERS: dict[str, Callable[[Operation], Operation]] = {
    "a later try is under way": lambda o: replace(o, tries=(*o.tries, replace(o.tries[0], number=2))),
    "another holder has made it": lambda o: replace(o, fence=Fence(o.fence + 1)),
    "it is to be made again": lambda o: replace(o, status=OperationStatus.SEALED),
    "it may be made again at any time": lambda o: replace(o, status=DISPATCHED, policy=EffectPolicy.IDEMPOTENT),
    "its destination is being asked": lambda o: replace(o, status=DISPATCHED, policy=EffectPolicy.PROBE),
    "somebody has decided": lambda o: replace(
        o, status=OperationStatus.COMMITTED, result_kind=ResultKind.GIVEN_UP, result=b"null", settled_at=o.sealed_at
    ),
}


@pytest.mark.req("TR-45", "RR-31", "RR-13", "G-34")
@pytest.mark.parametrize("what", OTHERS)
async def test_a_late_answer_is_only_a_record_where_the_call_has_gone_on_without_it(cluster: Cluster, what: str) -> None:
    call = Call(EffectPolicy.ONCE, UNKNOWN)
    call.stored = OTHERS[what](call.stored)
    await call.store(cluster)
    assert await call.answer(cluster) == call.stored
    await call.answer(cluster)
    assert len(await _evidence(cluster, call.run.id)) == 1
    assert (await cluster.run(call.run.id)).status is RunStatus.WAITING


@pytest.mark.req("RR-31")
async def test_an_answer_whose_own_write_had_reached_the_store_is_not_late(cluster: Cluster) -> None:
    call = Call(EffectPolicy.ONCE, UNKNOWN)
    call.stored = call.late
    await call.store(cluster)
    assert await call.answer(cluster) == call.late
    assert await _evidence(cluster, call.run.id) == []


@pytest.mark.req("G-34", "G-35", "C19")
async def test_a_run_that_settles_takes_no_late_answer(cluster: Cluster) -> None:
    call = Call(EffectPolicy.ONCE, UNKNOWN)
    call.run = call.run.fenced_for_settlement(settle_at=call.make.now)
    await call.store(cluster)
    assert await call.answer(cluster) == call.stored
    assert len(await _evidence(cluster, call.run.id)) == 1
