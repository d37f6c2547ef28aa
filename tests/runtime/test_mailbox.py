"""What reaches a run from outside, each once: wakes that it waits for by name, corrections that it takes at a boundary."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from quiesce.adapters.models.scripted import Turn
from quiesce.domain.canonical import parse
from quiesce.domain.errors import (
    CapacityExhausted,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    Refused,
    RunEnded,
    WaitTimedOut,
)
from quiesce.domain.ids import RunId
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.mailbox import EntryKind, EntryStatus, MailboxEntry
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.runtime.agent_loop import loop
from quiesce.runtime.context import Run
from quiesce.runtime.mailbox import Arrival, arrive_tx
from quiesce.runtime.registry import declare_agent, declare_tool
from quiesce.runtime.service import Caller, ControlService
from tests.runtime.cancel_kit import Pause
from tests.runtime.kit import FAST, Cluster, Gate, eventually, within
from tests.runtime.loop_kit import Recording, call, conversation_now

AT_ONCE = replace(FAST, linger_ms=0)


async def waits(run: Run) -> object:
    return await run.wait_for("order-7")


async def waits_twice(run: Run) -> list[object]:
    first = await run.wait_for("order-7")
    try:
        return [first, await run.wait_for("order-7", timeout=0)]
    except WaitTimedOut:
        return [first, "nothing"]


WAITS = declare_agent(waits)
WAITS_TWICE = declare_agent(waits_twice)


async def mailbox(cluster: Cluster, run_id: RunId) -> list[MailboxEntry]:
    return await cluster.service.mailbox(run_id)


def texts(entries: list[MailboxEntry], status: EntryStatus) -> list[object]:
    return [parse(entry.body) for entry in entries if entry.status is status]


# -- wakes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("C13", "CC-68")
async def test_a_wake_that_comes_before_the_wait_resolves_it_at_once_and_only_the_first_waiter(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS_TWICE)
    await cluster.service.wake(run_id, "order-7", {"paid": True})
    await cluster.start(WAITS_TWICE)
    assert await cluster.result(run_id) == [{"paid": True}, "nothing"]
    (entry,) = await mailbox(cluster, run_id)
    assert (entry.status, entry.position, entry.receipt_id) == (EntryStatus.APPLIED, "1", None)


@pytest.mark.req("C13", "C61", "NO-16", "CC-68")
async def test_a_run_that_waits_for_a_wake_holds_no_process_and_goes_on_with_its_value(cluster: Cluster) -> None:
    first = await cluster.start(WAITS, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(WAITS)
    await first.death()
    parked = await cluster.run(run_id)
    assert (parked.status, parked.worker_id) == (RunStatus.WAITING, None)
    assert [(w.kind, w.subject) for w in parked.waits] == [(WaitKind.WAKE, "order-7")]
    await cluster.service.wake(run_id, "another", 1)
    assert (await cluster.run(run_id)).status is RunStatus.WAITING
    await cluster.service.wake(run_id, "order-7", 2)
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    await cluster.start(WAITS)
    assert await cluster.result(run_id) == 2
    one, two = await mailbox(cluster, run_id)
    receipt = await cluster.receipt(run_id)
    assert (one.status, one.receipt_id) == (EntryStatus.RETURNED, receipt.id)
    assert two.status is EntryStatus.APPLIED


@pytest.mark.req("C13")
async def test_a_wake_between_the_last_look_and_the_parking_is_not_lost(cluster: Cluster) -> None:
    host = await cluster.start(WAITS, crash_at="park.before", settings=AT_ONCE)
    pause = Pause(host)
    run_id = await cluster.submit(WAITS)
    await pause.arrival()
    await cluster.service.wake(run_id, "order-7", "just in time")
    assert (await cluster.run(run_id)).status is RunStatus.RUNNING
    pause.resume()
    assert await cluster.result(run_id) == "just in time"


@pytest.mark.req("C13", "RR-10")
@pytest.mark.parametrize("point", ["intake.before", "intake.after"])
async def test_a_wake_is_taken_once_wherever_its_holder_dies(cluster: Cluster, point: str) -> None:
    first = await cluster.start(WAITS_TWICE, crash_at=point)
    run_id = await cluster.submit(WAITS_TWICE)
    await cluster.service.wake(run_id, "order-7", "x")
    await first.death()
    await cluster.start(WAITS_TWICE)
    assert await cluster.result(run_id) == ["x", "nothing"]
    assert [entry.status for entry in await mailbox(cluster, run_id)] == [EntryStatus.APPLIED]


@pytest.mark.req("C13")
async def test_of_two_branches_that_wait_for_one_name_each_gets_a_wake_of_its_own(cluster: Cluster) -> None:
    async def both(run: Run) -> list[object]:
        return sorted(await asyncio.gather(run.wait_for("a"), run.wait_for("a")), key=str)

    agent = declare_agent(both)
    await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    await cluster.service.wake(run_id, "a", "first")
    await cluster.service.wake(run_id, "a", "second")
    assert await cluster.result(run_id) == ["first", "second"]
    assert {e.position for e in await mailbox(cluster, run_id)} == {"1", "2"}


@pytest.mark.req("C13", "C69")
async def test_a_wait_that_times_out_stays_so_though_the_wake_comes_later(cluster: Cluster) -> None:
    async def impatient(run: Run) -> str:
        try:
            return str(await run.wait_for("late", timeout=0.01))
        except WaitTimedOut as error:
            return f"{error.code}: {await run.wait_for('late')}"

    agent = declare_agent(impatient)
    await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)

    async def waits_without_bound() -> bool:
        return [w.due_at for w in (await cluster.run(run_id)).waits] == [None]

    await eventually(waits_without_bound)
    await cluster.service.wake(run_id, "late", "sorry")
    assert await cluster.result(run_id) == "WAIT_TIMED_OUT: sorry"


@pytest.mark.req("C13")
@pytest.mark.parametrize("seconds", [-1, 400 * 86_400])
async def test_a_wait_has_a_bound_that_makes_sense(cluster: Cluster, seconds: float) -> None:
    async def wrong(run: Run) -> str:
        try:
            await run.wait_for("a", timeout=seconds)
        except InvalidInput as error:
            return str(error.details["field"])
        return ""

    agent = declare_agent(wrong)
    await cluster.start(agent)
    assert await cluster.result(await cluster.submit(agent)) == "timeout"


@pytest.mark.req("C07", "C01")
async def test_a_run_that_has_ended_takes_nothing_and_names_its_receipt(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS)
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    for reach in (cluster.service.wake(run_id, "order-7"), cluster.service.correct(run_id, "no")):
        with pytest.raises(RunEnded) as ended:
            await reach
        assert ended.value.details["receipt_id"] == receipt.id
    assert await mailbox(cluster, run_id) == []


@pytest.mark.req("C01", "CC-36")
async def test_a_run_that_does_not_exist_for_a_tenant_takes_nothing(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS)
    stranger = ControlService(cluster.env, Caller(tenant="other"))
    entry = await cluster.service.correct(run_id, "mine")
    for reach in (stranger.wake(run_id, "order-7"), stranger.correct(run_id, "no"), stranger.withdraw_entry(entry.id)):
        with pytest.raises(NotFound):
            await reach
    with pytest.raises(NotFound):
        await stranger.mailbox(run_id)
    assert await mailbox(cluster, run_id) == [entry]


@pytest.mark.req("CC-12", "CC-13", "C06")
async def test_the_same_key_is_the_same_entry_and_other_content_a_conflict(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS)
    first = await cluster.service.wake(run_id, "order-7", {"a": 1, "b": 2}, key="k")
    assert await cluster.service.wake(run_id, "order-7", {"b": 2, "a": 1}, key="k") == first
    with pytest.raises(IdempotencyConflict):
        await cluster.service.wake(run_id, "order-8", {"a": 1, "b": 2}, key="k")
    with pytest.raises(IdempotencyConflict):
        await cluster.service.wake(run_id, "order-7", 3, key="k")
    await cluster.service.cancel(run_id)
    await cluster.receipt(run_id)
    again = await cluster.service.wake(run_id, "order-7", {"a": 1, "b": 2}, key="k")
    assert (again.id, again.status) == (first.id, EntryStatus.RETURNED)


@pytest.mark.req("CC-24")
async def test_an_mailbox_that_nobody_reads_is_bounded(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS)
    few = replace(cluster.env, limits=replace(DEFAULT_LIMITS, mailbox_queued_max=2, correction_chars_max=5))
    service = ControlService(few)
    await service.correct(run_id, "one")
    await service.wake(run_id, "order-7")
    with pytest.raises(CapacityExhausted):
        await service.correct(run_id, "three")
    for empty in ("", "too long"):
        with pytest.raises(InvalidInput):
            await service.correct(run_id, empty)
    assert len(await mailbox(cluster, run_id)) == 2


async def test_explain_names_the_wake_and_the_command_that_sends_it(cluster: Cluster) -> None:
    first = await cluster.start(WAITS, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(WAITS)
    await first.death()
    words = (await cluster.service.inspect(run_id)).explain()
    assert f"a wake 'order-7' (quiesce wake {run_id} order-7)" in words


# -- corrections -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("CC-68", "C04", "NO-11")
async def test_corrections_are_applied_once_in_their_order_behind_a_named_checkpoint(cluster: Cluster) -> None:
    gate = Gate()

    async def listens(run: Run) -> list[list[str]]:
        before = [c.text for c in await run.corrections()]
        await run.checkpoint({"step": 1})
        await run.step(gate.wait)
        return [before, [f"{c.subject}: {c.text}" for c in await run.corrections()], [c.text for c in await run.corrections()]]

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    await cluster.service.correct(run_id, "early")
    await cluster.start(agent)
    await gate.arrival()
    await cluster.service.correct(run_id, "shorter")
    await cluster.service.correct(run_id, "and in French")
    gate.open()
    assert await cluster.result(run_id) == [["early"], ["local: shorter", "local: and in French"], []]
    early, *later = await mailbox(cluster, run_id)
    checkpoint = await cluster.store.read(lambda tx: tx.checkpoints.last(run_id))
    assert checkpoint is not None
    assert (early.position, early.checkpoint_id) == ("1", None)
    (named,) = {(e.position, e.checkpoint_id) for e in later}
    assert named == ("4", checkpoint.parent_id)


@pytest.mark.req("C06", "RR-10")
@pytest.mark.parametrize("point", ["intake.before", "intake.after", "end.before"])
async def test_a_correction_is_applied_once_wherever_its_holder_dies(cluster: Cluster, point: str) -> None:
    async def listens(run: Run) -> list[list[str]]:
        return [[c.text for c in await run.corrections()], [c.text for c in await run.corrections()]]

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    await cluster.service.correct(run_id, "no")
    first = await cluster.start(agent, crash_at=point)
    await first.death()
    await cluster.start(agent)
    assert await cluster.result(run_id) == [["no"], []]
    assert [e.status for e in await mailbox(cluster, run_id)] == [EntryStatus.APPLIED]


@pytest.mark.req("C04")
async def test_a_child_inherits_no_correction_and_no_wake_of_its_parent(cluster: Cluster) -> None:
    gate = Gate()

    async def child(run: Run) -> list[str]:
        heard = [c.text for c in await run.corrections()]
        try:
            heard.append(str(await run.wait_for("w", timeout=0)))
        except WaitTimedOut:
            heard.append("no wake")
        return heard

    below = declare_agent(child)

    async def parent(run: Run) -> list[object]:
        first = [c.text for c in await run.corrections()]
        outcome = await (await run.spawn(below)).outcome()
        await run.step(gate.wait)
        return [first, outcome.result, [c.text for c in await run.corrections()]]

    agent = declare_agent(parent)
    run_id = await cluster.submit(agent)
    await cluster.service.correct(run_id, "K1")
    await cluster.service.correct(run_id, "K2")
    await cluster.service.wake(run_id, "w")
    await cluster.start(agent, below)
    await gate.arrival()
    await cluster.service.correct(run_id, "K3")
    gate.open()
    assert await cluster.result(run_id) == [["K1", "K2"], ["no wake"], ["K3"]]
    (only,) = (await cluster.service.inspect(run_id)).children
    assert await mailbox(cluster, only.id) == []


@pytest.mark.req("C07")
@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.CANCELLED])
async def test_a_correction_that_its_run_never_took_comes_back_with_the_receipt(cluster: Cluster, status: RunStatus) -> None:
    gate = Gate()

    async def deaf(run: Run) -> str:
        await run.step(gate.wait)
        return "done"

    agent = declare_agent(deaf)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.service.correct(run_id, "stop that")
    if status is RunStatus.CANCELLED:
        await cluster.service.cancel(run_id)
    gate.open()
    receipt = await cluster.receipt(run_id)
    assert receipt.status is status
    (entry,) = await mailbox(cluster, run_id)
    assert (entry.status, entry.receipt_id, entry.ended_at) == (EntryStatus.RETURNED, receipt.id, receipt.published_at)


@pytest.mark.req("C07")
async def test_a_correction_that_comes_between_the_last_act_and_the_end_is_returned_by_that_end(cluster: Cluster) -> None:
    async def deaf(run: Run) -> str:
        return "done"

    agent = declare_agent(deaf)
    pause = Pause(await cluster.start(agent, crash_at="end.before"))
    run_id = await cluster.submit(agent)
    await pause.arrival()
    accepted = await cluster.service.correct(run_id, "wait")
    pause.resume()
    receipt = await cluster.receipt(run_id)
    (entry,) = await mailbox(cluster, run_id)
    assert (entry.id, entry.status, entry.receipt_id) == (accepted.id, EntryStatus.RETURNED, receipt.id)


@pytest.mark.req("C07")
async def test_a_correction_of_a_run_that_settles_is_returned_by_the_receipt_that_is_being_made(cluster: Cluster) -> None:
    gate = Gate()

    async def held(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(held)
    host = await cluster.start(agent, crash_at="freeze.after")
    pause = Pause(host)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.service.cancel(run_id)
    await pause.arrival()
    assert (await cluster.run(run_id)).status is RunStatus.SETTLING
    await cluster.service.correct(run_id, "too late")
    pause.resume()
    receipt = await cluster.receipt(run_id)
    (entry,) = await mailbox(cluster, run_id)
    assert (entry.status, entry.receipt_id) == (EntryStatus.RETURNED, receipt.id)


@pytest.mark.req("C07")
async def test_of_many_corrections_to_a_run_that_closes_each_is_applied_or_comes_back_and_none_is_lost(cluster: Cluster) -> None:
    async def listens(run: Run) -> list[str]:
        heard: list[str] = []
        for _ in range(5):
            heard += [c.text for c in await run.corrections()]
            await run.checkpoint({"heard": len(heard)})
        return heard

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    answers: Counter[str] = Counter()
    named: set[object] = set()

    async def say(text: str) -> None:
        try:
            await cluster.service.correct(run_id, text)
        except RunEnded as ended:
            answers["ended"] += 1
            named.add(ended.details["receipt_id"])
        else:
            answers["kept"] += 1

    await say("first")
    await cluster.start(agent)
    await asyncio.gather(*(say(f"{n}") for n in range(30)))
    receipt = await cluster.receipt(run_id)
    await say("last")
    entries = await mailbox(cluster, run_id)
    applied, returned = texts(entries, EntryStatus.APPLIED), texts(entries, EntryStatus.RETURNED)
    assert await cluster.service.result(run_id) == applied
    assert applied[0] == "first"
    assert len(applied) + len(returned) == answers["kept"]
    assert answers["kept"] + answers["ended"] == 32
    assert answers["ended"] >= 1
    assert named | {e.receipt_id for e in entries if e.status is EntryStatus.RETURNED} == {receipt.id}


@pytest.mark.req("C07", "RR-04", "RR-29")
async def test_a_holder_whose_run_was_stopped_takes_nothing_any_more(cluster: Cluster) -> None:
    async def listens(run: Run) -> list[str]:
        return [c.text for c in await run.corrections()]

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    await cluster.service.correct(run_id, "no")
    host = cluster.host(agent, crash_at="intake.before")
    pause = Pause(host)
    await host.start()
    await pause.arrival()
    await cluster.service.cancel(run_id)
    pause.resume()
    receipt = await cluster.receipt(run_id)
    assert receipt.status is RunStatus.CANCELLED
    (only,) = await mailbox(cluster, run_id)
    assert (only.status, only.receipt_id) == (EntryStatus.RETURNED, receipt.id)


async def test_a_correction_wakes_no_run_that_waits_for_something_else(cluster: Cluster) -> None:
    async def listens(run: Run) -> list[str]:
        await run.wait_for("go")
        return [c.text for c in await run.corrections()]

    agent = declare_agent(listens)
    first = await cluster.start(agent, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    await first.death()
    await cluster.service.correct(run_id, "by the way")
    assert (await cluster.run(run_id)).status is RunStatus.WAITING
    await cluster.service.wake(run_id, "go")
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["by the way"]


@pytest.mark.req("C07")
async def test_what_is_withdrawn_is_not_applied_and_what_is_applied_cannot_be_withdrawn(cluster: Cluster) -> None:
    async def listens(run: Run) -> list[str]:
        return [c.text for c in await run.corrections()]

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    wrong = await cluster.service.correct(run_id, "in German")
    right = await cluster.service.correct(run_id, "in French")
    withdrawn = await cluster.service.withdraw_entry(wrong.id)
    assert withdrawn.status is EntryStatus.WITHDRAWN
    assert await cluster.service.withdraw_entry(wrong.id) == withdrawn
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["in French"]
    with pytest.raises(Refused, match="applied at operation 1"):
        await cluster.service.withdraw_entry(right.id)
    with pytest.raises(NotFound):
        await cluster.service.withdraw_entry(type(right.id)("nobody"))


@pytest.mark.req("CC-68", "C21")
async def test_the_ready_made_loop_takes_corrections_before_its_next_request(cluster: Cluster) -> None:
    gate = Gate()

    async def look(what: str) -> str:
        await gate.wait()
        return f"saw {what}"

    model = Recording(Turn(text="Looking.", calls=(call("look", what="a"),)), Turn(text="Bien."))
    agent = loop(model, [declare_tool(look)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    await gate.arrival()
    await cluster.service.correct(run_id, "answer in French")
    gate.open()
    await cluster.result(run_id)
    said = [(m["role"], m["content"]) for m in model.requests[-1].messages]
    assert said[-2:] == [("tool", "saw a"), ("user", "answer in French")]
    assert (await conversation_now(cluster, run_id))[:-1] == list(model.requests[-1].messages)


@pytest.mark.req("C13", "NO-16")
async def test_only_what_is_waited_for_by_name_wakes_whatever_arrives(cluster: Cluster) -> None:
    async def both(run: Run) -> list[object]:
        return list(await asyncio.gather(run.wait_for("a"), run.wait_for("b")))

    agent = declare_agent(both)
    first = await cluster.start(agent, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    await first.death()
    wake = Arrival(run_id=run_id, kind=EntryKind.WAKE, name="b", value="B", key="1", subject="ada")
    await cluster.store.transact(lambda tx: arrive_tx(tx, cluster.env, wake))
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    await cluster.start(agent, settings=AT_ONCE)
    await within(cluster.reaches(run_id, RunStatus.WAITING))
    await cluster.service.wake(run_id, "a", "A")
    assert await cluster.result(run_id) == ["A", "B"]
