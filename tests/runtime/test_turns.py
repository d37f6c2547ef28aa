"""Turns: a run builds on the boundary before it under a record, or it does not begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import canonical
from quiesce.domain.continuations import Carry, OnGap
from quiesce.domain.errors import ContinuationRefused, IdempotencyConflict, InvalidInput, NotFound, Refused
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position, ThreadId
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.context import Run
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate, eventually
from tests.runtime.talk import Talk, accept

THREAD = ThreadId("t-1")


@pytest.mark.req("TR-30", "TR-54", "C16")
async def test_the_next_message_is_refused_and_told_what_would_do(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    receipt = await talk.stopped("stop")
    with pytest.raises(ContinuationRefused, match="policy=reconcile or restart") as refused:
        await talk.say("next")
    details = refused.value.details
    assert (details["receipt_id"], details["policy"], details["choices"]) == (receipt.id, "reconcile", ["reconcile", "restart"])
    assert details["gap"] == receipt.gap.to_json()
    assert [turn.run_id for turn in await cluster.threads.history(THREAD)] == [receipt.run_id]


@pytest.mark.req("TR-36", "C16", "C24")
async def test_kept_partial_output_comes_with_the_turn_and_is_no_state(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    receipt = await talk.stopped("stop")
    run_id = await talk.answered("next", accept(receipt, OnGap.RECONCILE))
    (turn,) = talk.pasts["next"]
    assert turn.partial is not None
    assert (turn.partial.text, turn.state, turn.is_behind) == ("seen stop", {"kept": "stop"}, True)
    assert (turn.partial.first_seq, turn.partial.last_seq) == (receipt.gap.first_seq, receipt.frontier.emitted_seq)
    assert turn.partial.digest == receipt.h2
    checkpoints = await cluster.store.read(lambda tx: tx.checkpoints.of_run(receipt.run_id))
    assert [c.state for c in checkpoints] == [canonical({"kept": "stop"})]
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(run_id))
    assert record is not None
    assert (record.policy, record.carry, record.gave_up) == (Policy.RECONCILE, Carry.KEEP_PARTIAL, None)
    assert (record.actor.kind, record.actor.name) == (ActorKind.USER, "local")


@pytest.mark.req("TR-29", "TR-37", "C24")
async def test_a_rollback_builds_on_what_the_stopped_run_was_built_on_and_deletes_nothing(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    first = await talk.answered("first")
    receipt = await talk.stopped("stop")
    run_id = await talk.answered("next", accept(receipt, OnGap.RECONCILE, Carry.ROLLBACK))
    assert talk.words("next") == ["first"]
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(run_id))
    assert record is not None
    assert (record.base_run_id, record.head_run_id) == (first, receipt.run_id)
    assert record.gave_up is not None
    assert (record.gave_up.first_seq, record.gave_up.last_seq) == (1, receipt.frontier.emitted_seq)
    assert record.gave_up.digest == receipt.h2
    turns = await cluster.threads.history(THREAD)
    assert [(turn.run_id, turn.is_built_on) for turn in turns] == [(first, True), (receipt.run_id, False), (run_id, True)]
    assert turns[1].partial is not None
    assert turns[1].partial.text == "seen stop"


@pytest.mark.req("TR-37")
async def test_a_restart_goes_on_from_the_checkpoint_and_names_what_is_given_up(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    receipt = await talk.stopped("stop")
    run_id = await talk.answered("next", accept(receipt, OnGap.RESTART))
    (turn,) = talk.pasts["next"]
    assert (turn.state, turn.partial, turn.is_behind) == ({"kept": "stop"}, None, True)
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(run_id))
    assert record is not None
    assert record.gave_up is not None
    assert (record.gave_up.first_seq, record.gave_up.last_seq) == (receipt.gap.first_seq, receipt.gap.last_seq)


@pytest.mark.req("TR-35")
async def test_without_a_gap_the_thread_goes_on_unasked_and_still_leaves_a_record(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    first = await talk.answered("first")
    second = await talk.answered("second")
    assert talk.words("second") == ["first"]
    assert talk.pasts["second"][0].result == "answer to first"
    record = await cluster.store.read(lambda tx: tx.continuations.of_run(second))
    assert record is not None
    assert (record.base_run_id, record.policy, record.rule, record.carry) == (first, Policy.ALLOW, "R3", Carry.CHECKPOINT)
    assert await cluster.store.read(lambda tx: tx.continuations.of_run(first)) is None


@pytest.mark.req("TR-29")
async def test_rollbacks_in_a_row_go_back_over_what_each_was_built_on(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    await talk.answered("first")
    kept = await talk.stopped("stop one")
    second = await talk.stopped("stop two", accept(kept, OnGap.RECONCILE))
    third = await talk.stopped("stop three", accept(second, OnGap.RECONCILE, Carry.ROLLBACK))
    await talk.answered("next", accept(third, OnGap.RECONCILE, Carry.ROLLBACK))
    assert talk.words("stop two") == ["first", "stop one [seen stop one]"]
    assert talk.words("stop three") == ["first", "stop one [seen stop one]"]
    assert talk.words("next") == ["first", "stop one [seen stop one]"]


@pytest.mark.req("TR-29")
async def test_a_rollback_of_the_first_run_leaves_nothing_to_build_on(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    receipt = await talk.stopped("stop")
    await talk.answered("next", accept(receipt, OnGap.RECONCILE, Carry.ROLLBACK))
    assert talk.pasts["next"] == []


@pytest.mark.req("TR-30", "TR-40", "G-27")
async def test_a_choice_is_about_one_receipt_and_no_later_one(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    first = await talk.stopped("stop one")
    second = await talk.stopped("stop two", accept(first, OnGap.RECONCILE))
    with pytest.raises(ContinuationRefused, match=second.id):
        await talk.say("next", accept(first, OnGap.RESTART))
    with pytest.raises(ContinuationRefused):
        await talk.say("next", TurnRequest())
    assert await talk.head() == second.run_id


@pytest.mark.req("TR-30", "G-27", "G-35")
async def test_a_choice_that_names_its_facts_is_refused_once_they_are_others(cluster: Cluster) -> None:
    async def spend(amount: int) -> str:
        await Gate().wait()
        return "spent"

    tool = declare_tool(spend, effect="once")

    async def spender(run: Run) -> None:
        await run.call(tool, 5)

    agent = declare_agent(spender)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, thread="t-1")
    await cluster.reaches(run_id, RunStatus.RUNNING)

    async def is_dispatched() -> bool:
        return any(o.may_have_acted for o in (await cluster.journal(run_id)).values())

    await eventually(is_dispatched)
    await host.kill()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    before = await cluster.threads.view(THREAD)
    assert (before.status, before.choices, before.unresolved) == ("choice", (), ((run_id, Position("1")),))
    with pytest.raises(ContinuationRefused, match="quiesce reconcile"):
        await cluster.submit(agent, thread="t-1", turn=accept(receipt, OnGap.RESTART))
    await cluster.service.reconcile(
        Decision(
            run_id=run_id,
            position=Position("1"),
            verdict=Verdict.DID_NOT_HAPPEN,
            actor=Actor(kind=ActorKind.USER, name="ada"),
            grounds="asked the bank",
        )
    )
    after = await cluster.threads.view(THREAD)
    assert (after.status, after.unresolved) == ("idle", ())
    assert after.basis != before.basis
    assert after.version != before.version
    stale = accept(receipt)
    assert stale.choice is not None
    with pytest.raises(ContinuationRefused, match="rests on facts"):
        await cluster.submit(agent, thread="t-1", turn=TurnRequest(choice=replace(stale.choice, basis=before.basis)))
    await cluster.submit(agent, thread="t-1", turn=TurnRequest(choice=replace(stale.choice, basis=after.basis)))


@pytest.mark.req("CC-12", "C06", "TR-30")
async def test_a_repeated_continuation_is_the_same_run_and_another_is_a_conflict(cluster: Cluster) -> None:
    talk = Talk(cluster)
    await talk.start()
    receipt = await talk.stopped("stop")
    wanted = accept(receipt, OnGap.RECONCILE)
    run_id = await talk.say("next", wanted, key="k")
    assert await talk.say("next", wanted, key="k") == run_id
    await cluster.receipt(run_id)
    assert await talk.say("next", wanted, key="k") == run_id
    with pytest.raises(IdempotencyConflict):
        await talk.say("next", accept(receipt, OnGap.RESTART), key="k")
    assert len(await cluster.store.read(lambda tx: tx.continuations.of_thread(THREAD))) == 1


@pytest.mark.req("TR-30")
async def test_a_choice_where_there_is_nothing_to_choose_is_an_error(cluster: Cluster) -> None:
    talk = Talk(cluster)
    receipt = await _somewhere_else(talk)
    with pytest.raises(InvalidInput, match="no run yet"):
        await talk.say("next", accept(receipt, OnGap.RESTART), thread="t-2")
    running = await talk.say("stop", thread="t-3")
    with pytest.raises(InvalidInput, match=running):
        await talk.say("next", accept(receipt, OnGap.RESTART), thread="t-3")
    choice = accept(receipt, OnGap.RESTART).choice
    assert choice is not None
    with pytest.raises(Refused, match="waits for a choice"):
        await cluster.threads.choose(THREAD, choice)
    with pytest.raises(NotFound):
        await cluster.threads.choose(ThreadId("nowhere"), choice)


async def _somewhere_else(talk: Talk) -> TerminalReceipt:
    await talk.start()
    return await talk.stopped("stop")
