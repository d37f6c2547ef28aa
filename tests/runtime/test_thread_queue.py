"""What a new message does while the thread is busy: it is refused, waits, interrupts, or rolls back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.continuations import Carry, Choice, OnGap, Scope
from quiesce.domain.errors import CapacityExhausted, ContinuationRefused, ThreadBusy
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.limits import Limits
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.domain.threads import OnBusy
from quiesce.runtime.context import Run
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.kit import BlockingGate, Cluster, Gate, eventually, submission
from tests.runtime.talk import Talk, accept, busy

THREAD = ThreadId("t-1")


async def _waits(cluster: Cluster, run_id: RunId) -> list[tuple[WaitKind, str]]:
    run = await cluster.run(run_id)
    assert run.status is RunStatus.WAITING
    return [(wait.kind, wait.subject) for wait in run.waits]


@pytest.mark.req("C98")
async def test_by_default_a_busy_thread_refuses_and_says_what_else_could_be_done(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    run_id = await talk.say("stop")
    with pytest.raises(ThreadBusy, match="enqueue, interrupt, rollback"):
        await talk.say("next")
    assert [turn.run_id for turn in await cluster.threads.history(THREAD)] == [run_id]


@pytest.mark.req("C26", "C98")
async def test_queued_messages_take_their_turns_one_by_one_in_the_order_of_submission(cluster: Cluster) -> None:
    talk = Talk(cluster)
    first = await talk.say("one")
    queued = [await talk.say(f"more {n}", busy(OnBusy.ENQUEUE)) for n in range(4)]
    assert await _waits(cluster, queued[0]) == [(WaitKind.TURN, THREAD)]
    assert (await cluster.threads.view(THREAD)).queued == tuple(queued)
    await talk.start()
    for run_id in (first, *queued):
        await cluster.result(run_id)
    assert talk.words("more 3") == ["one", "more 0", "more 1", "more 2"]
    runs = [await cluster.run(run_id) for run_id in (first, *queued)]
    for before, after in pairwise(runs):
        (attempt,) = await cluster.store.read(lambda tx, run_id=after.id: tx.runs.attempts(run_id))  # type: ignore[misc]
        assert before.ended_at is not None
        assert attempt.opened_at >= before.ended_at
    assert (await cluster.threads.view(THREAD)).queued == ()


@pytest.mark.req("TR-30", "TR-54")
async def test_a_queued_message_waits_for_a_choice_where_the_head_leaves_a_gap(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    queued = await talk.say("next", busy(OnBusy.ENQUEUE))
    await cluster.service.cancel(head)
    receipt = await cluster.receipt(head)
    assert await _waits(cluster, queued) == [(WaitKind.CHOICE, receipt.id)]
    assert "quiesce continue" in (await cluster.service.inspect(queued)).explain()
    with pytest.raises(ThreadBusy, match="waits for a choice"):
        await talk.say("another")
    with pytest.raises(ContinuationRefused):
        await cluster.threads.choose(THREAD, Choice(receipt_id=receipt.id))
    chosen = await cluster.threads.choose(THREAD, Choice(receipt_id=receipt.id, policy=OnGap.RECONCILE), actor="ada")
    assert (chosen.run_id, chosen.actor.name) == (queued, "ada")
    assert await cluster.result(queued) == "answer to next"
    assert talk.words("next") == ["stop [seen stop]"]


@pytest.mark.req("TR-30", "C88")
async def test_a_choice_whose_answer_was_lost_may_be_made_again(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    await talk.say("next", busy(OnBusy.ENQUEUE))
    await cluster.service.cancel(head)
    choice = Choice(receipt_id=(await cluster.receipt(head)).id, policy=OnGap.RESTART)
    first = await cluster.threads.choose(THREAD, choice)
    assert await cluster.threads.choose(THREAD, choice) == first


@pytest.mark.req("TR-30", "TR-37")
@pytest.mark.parametrize(
    ("on_gap", "carry", "words"),
    [
        (OnGap.RECONCILE, Carry.KEEP_PARTIAL, ["stop [seen stop]"]),
        (OnGap.RECONCILE, Carry.ROLLBACK, []),
        (OnGap.RESTART, Carry.KEEP_PARTIAL, ["stop"]),
    ],
)
async def test_a_choice_said_with_a_queued_message_is_used_at_its_turn_and_named_in_the_record(
    cluster: Cluster, on_gap: OnGap, carry: Carry, words: list[str]
) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    queued = await talk.say("next", busy(OnBusy.ENQUEUE, on_gap, carry))
    await cluster.service.cancel(head)
    assert await cluster.result(queued) == "answer to next"
    assert talk.words("next") == words
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(queued))
    assert record is not None
    assert record.standing is not None
    assert (record.standing["scope"], record.standing["on_gap"]) == (str(Scope.MESSAGE), str(on_gap))


@pytest.mark.req("C20", "C16", "RR-29")
async def test_an_interrupt_cancels_what_runs_and_goes_on_behind_its_boundary(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    new = await talk.say("next", busy(OnBusy.INTERRUPT, OnGap.RECONCILE))
    assert await cluster.result(new) == "answer to next"
    receipt = await cluster.receipt(head)
    assert (receipt.reason, receipt.status) == (Reason.SUPERSEDED, RunStatus.CANCELLED)
    assert new in receipt.reason_text
    assert talk.words("next") == ["stop [seen stop]"]


@pytest.mark.req("TR-30")
async def test_an_interrupt_alone_chooses_nothing(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    new = await talk.say("next", busy(OnBusy.INTERRUPT))
    receipt = await cluster.receipt(head)
    assert await _waits(cluster, new) == [(WaitKind.CHOICE, receipt.id)]


@pytest.mark.req("C20")
async def test_an_interrupt_supersedes_the_queue_too_and_each_run_has_its_receipt(cluster: Cluster) -> None:
    talk = Talk(cluster)
    head = await talk.say("one")
    queued = [await talk.say(f"more {n}", busy(OnBusy.ENQUEUE)) for n in range(3)]
    new = await talk.say("last", busy(OnBusy.INTERRUPT))
    await talk.start()
    assert await cluster.result(new) == "answer to last"
    for run_id in (head, *queued):
        receipt = await cluster.receipt(run_id)
        assert (receipt.reason, receipt.never_started) == (Reason.SUPERSEDED, True)
    assert talk.words("last") == ["one"]  # queued runs never had their turn: nothing builds on them
    turns = await cluster.threads.history(THREAD)
    assert [turn.is_built_on for turn in turns] == [True, False, False, False, True]


@pytest.mark.req("TR-29", "G-26")
async def test_a_rollback_moves_the_head_by_a_record_and_deletes_nothing(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    first = await talk.answered("first")
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    new = await talk.say("next", busy(OnBusy.ROLLBACK))
    assert await cluster.result(new) == "answer to next"
    assert talk.words("next") == ["first"]
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(new))
    assert record is not None
    assert (record.base_run_id, record.carry, record.head_run_id) == (first, Carry.ROLLBACK, head)
    receipt = await cluster.receipt(head)
    assert (receipt.reason, receipt.previous_digest) == (Reason.SUPERSEDED, (await cluster.receipt(first)).digest)
    assert len(await cluster.events(head)) >= 2


@pytest.mark.req("TR-29")
@pytest.mark.parametrize("on_busy", [OnBusy.ENQUEUE, OnBusy.INTERRUPT, OnBusy.ROLLBACK])
async def test_an_idle_thread_takes_the_message_at_once(cluster: Cluster, on_busy: OnBusy) -> None:
    talk = Talk(cluster)
    await talk.start()
    await talk.answered("first")
    await talk.answered("next", busy(on_busy))
    assert talk.words("next") == ([] if on_busy is OnBusy.ROLLBACK else ["first"])


@pytest.mark.req("TR-38", "C28")
async def test_no_interrupt_and_no_rollback_passes_an_unknown_effect(cluster: Cluster) -> None:
    gate = Gate()

    async def spend(amount: int) -> str:
        await gate.wait()
        return "spent"

    tool = declare_tool(spend, effect="once")

    async def spender(run: Run) -> None:
        await run.call(tool, 5)

    agent = declare_agent(spender)
    host = await cluster.start(agent)
    head = await cluster.submit(agent, thread="t-1")
    await gate.arrival()
    await host.kill()
    talk = Talk(cluster)
    new = await talk.say("next", busy(OnBusy.ROLLBACK))
    receipt = await cluster.receipt(head)
    assert await _waits(cluster, new) == [(WaitKind.CHOICE, receipt.id)]
    await cluster.service.reconcile(
        Decision(
            run_id=head,
            position=Position("1"),
            verdict=Verdict.GIVE_UP,
            actor=Actor(kind=ActorKind.USER, name="ada"),
            grounds="the bank does not answer",
        )
    )
    await talk.start()
    assert await cluster.result(new) == "answer to next"


@pytest.mark.req("C46")
async def test_a_queued_run_is_cancelled_like_any_other_and_leaves_the_queue(cluster: Cluster) -> None:
    talk = Talk(cluster)
    first = await talk.say("one")
    second, third = [await talk.say(f"more {n}", busy(OnBusy.ENQUEUE)) for n in range(2)]
    await cluster.service.cancel(second)
    receipt = await cluster.receipt(second)
    assert (receipt.reason, receipt.never_started) == (Reason.USER_CANCEL, True)
    assert (await cluster.threads.view(THREAD)).queued == (third,)
    await talk.start()
    await cluster.result(first)
    await cluster.result(third)
    assert talk.words("more 1") == ["one"]


@pytest.mark.req("C46", "TR-30")
async def test_where_the_first_in_line_is_cancelled_the_next_waits_for_the_same_choice(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    second, third, fourth = [await talk.say(f"more {n}", busy(OnBusy.ENQUEUE)) for n in range(3)]
    await cluster.service.cancel(head)
    receipt = await cluster.receipt(head)
    assert await _waits(cluster, second) == [(WaitKind.CHOICE, receipt.id)]
    assert await _waits(cluster, third) == [(WaitKind.TURN, THREAD)]
    await cluster.service.cancel(second)
    await cluster.receipt(second)
    assert await _waits(cluster, third) == [(WaitKind.CHOICE, receipt.id)]
    await cluster.threads.choose(THREAD, Choice(receipt_id=receipt.id, policy=OnGap.RESTART))
    await cluster.result(third)
    await cluster.result(fourth)


@pytest.mark.req("C46")
async def test_a_queued_run_keeps_its_own_deadline(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    wanted = submission(talk.agent, "late", thread="t-1", timeout_ms=1, turn=busy(OnBusy.ENQUEUE))
    queued = await cluster.service.submit(wanted)
    receipt = await cluster.receipt(queued.id)
    assert (receipt.reason, receipt.never_started) == (Reason.DEADLINE, True)
    assert (await cluster.threads.view(THREAD)).queued == ()


@pytest.mark.req("C01")
async def test_a_queue_has_a_bound(cluster: Cluster) -> None:
    talk = Talk(cluster)
    host = cluster.host(talk.agent, limits=Limits(thread_queue_max=2))
    await talk.say("one")
    for n in range(2):
        await talk.say(f"more {n}", busy(OnBusy.ENQUEUE))
    wanted = submission(talk.agent, "too much", thread="t-1", turn=busy(OnBusy.ENQUEUE))
    with pytest.raises(CapacityExhausted, match="2 queued"):
        await host.service.submit(wanted)
    assert len(await cluster.threads.history(THREAD)) == 3


@pytest.mark.req("TR-30")
async def test_a_message_that_interrupts_a_thread_which_waits_for_a_choice_may_make_it(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    head = await talk.say("stop")
    await cluster.stored(head, 2)
    queued = await talk.say("next", busy(OnBusy.ENQUEUE))
    await cluster.service.cancel(head)
    receipt = await cluster.receipt(head)
    choice = accept(receipt, OnGap.RECONCILE).choice
    new = await talk.say("rather this", TurnRequest(on_busy=OnBusy.INTERRUPT, choice=choice))
    assert await cluster.result(new) == "answer to rather this"
    assert (await cluster.receipt(queued)).reason is Reason.SUPERSEDED
    assert talk.words("rather this") == ["stop [seen stop]"]


@pytest.mark.req("TR-30", "NO-08")
async def test_a_late_answer_lets_the_queue_go_on(cluster: Cluster) -> None:
    """What was unknown at T becomes known by the call's own answer: the policy at use changes, and somebody waits for it."""
    gate = BlockingGate()

    def spend(amount: int) -> str:
        gate.wait()
        return "spent"

    async def spender(run: Run) -> None:
        await run.call(declare_tool(spend, effect="once"), 5)

    agent = declare_agent(spender)
    host = await cluster.start(agent)
    head = await cluster.submit(agent, thread="t-1")
    await gate.arrival()
    talk = Talk(cluster)
    queued = await talk.say("next", busy(OnBusy.ENQUEUE))
    await cluster.service.cancel(head, grace_ms=0)
    receipt = await cluster.receipt(head)
    assert receipt.policy.rule == "R2"
    assert await _waits(cluster, queued) == [(WaitKind.CHOICE, receipt.id)]
    gate.open()
    await talk.start()
    assert await cluster.result(queued) == "answer to next"
    await host.close()
    await eventually(lambda: _is_idle(cluster))


async def _is_idle(cluster: Cluster) -> bool:
    return (await cluster.threads.view(THREAD)).status == "idle"
