"""Commands to runs, end to end: staged, relayed, delivered, decided by the run's own owner, and proved by the run itself.

A delivery here is one pass of a deliverer that the test makes, so both orders of a race are had by barriers and none by luck.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from quiesce.domain.boundary import CancelMode, CancelScope
from quiesce.domain.commands import Intent, IntentStatus
from quiesce.domain.deliveries import Admission, AdmissionReceipt, Command, Settlement
from quiesce.domain.errors import Refused, required
from quiesce.domain.ids import RunId
from quiesce.domain.mailbox import EntryStatus
from quiesce.domain.runs import Run as RunRow
from quiesce.domain.runs import RunStatus
from quiesce.ports.store import Transaction
from quiesce.runtime import run_owner
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.context import Run
from quiesce.runtime.correction_owner import CorrectionOwner, correct_command, owners_of_runs, withdraw_command
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.owners import rejected
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.run_owner import RunOwner, cancel_command, wake_command
from tests.runtime.cancel_kit import Pause, proven, waits_at
from tests.runtime.kit import Cluster, Gate, within

PASSES_MAX = 1000


async def says_hello(run: Run) -> str:
    await run.step(lambda: None, name="greet")
    return "hello"


HELLO = declare_agent(says_hello)


@dataclass(slots=True)
class Desk:
    """Somebody who stages commands, and a deliverer that does a pass when told to."""

    cluster: Cluster
    deliverer: Deliverer = field(init=False)
    keys: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.deliverer = Deliverer(self.cluster.env, owners_of_runs(self.cluster.env))

    def who(self, key: str = "", subject: str = "ada") -> dict[str, str]:
        return {"producer": "desk", "producer_key": key or f"key-{next(self.keys)}", "subject": subject}

    def stop(self, run_id: RunId, key: str = "", subject: str = "ada", **more: object) -> CommandRequest:
        return cancel_command(run_id, reason="enough", **self.who(key, subject), **more)  # type: ignore[arg-type]

    async def stage(self, wanted: CommandRequest) -> Intent:
        return (await within(self.cluster.service.stage(wanted))).intent

    async def settled(self, intent: Intent, deliverer: Deliverer | None = None) -> AdmissionReceipt:
        """Deliver until this command is settled; return its owner's receipt."""
        for _ in range(PASSES_MAX):
            await within((deliverer or self.deliverer).pass_once())
            if (settlement := await self.cluster.store.read(lambda tx: _settlement(tx, intent))) is not None:
                return settlement.receipt
        raise AssertionError("the command is not settled")

    async def ask(self, wanted: CommandRequest, deliverer: Deliverer | None = None) -> AdmissionReceipt:
        return await self.settled(await self.stage(wanted), deliverer)


def _settlement(tx: Transaction, intent: Intent) -> Settlement | None:
    command = tx.commands.of_intent(intent.id)
    return None if command is None else tx.commands.settlement(command.event_id)


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    return Desk(cluster)


# -- cancel ----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("CC-68", "CC-69", "CC-05", "NO-08", "NO-09", "RR-29")
async def test_a_staged_cancel_is_proved_by_the_run_and_not_by_its_delivery(cluster: Cluster, desk: Desk) -> None:
    gate = Gate()
    agent = waits_at(gate)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    intent = await desk.stage(desk.stop(run_id))
    assert (await cluster.run(run_id)).is_active
    admission = await desk.settled(intent)
    receipt = await proven(cluster, run_id)
    assert admission.verdict is Admission.ACCEPTED
    assert admission.effect_ref == f"occurrence {receipt.occurrence_id}"
    assert (receipt.status, receipt.actor.name, receipt.reason_text) == (RunStatus.CANCELLED, "ada", "enough")
    occurrence = await cluster.store.read(lambda tx: tx.terminal.occurrence(run_id))
    assert required(occurrence, "it has ended").command_key == admission.command_key


@pytest.mark.req("RR-28", "C09", "CC-69")
async def test_a_stop_before_the_end_is_stored_stops_and_the_completion_completes_nothing(cluster: Cluster, desk: Desk) -> None:
    pause = Pause(await cluster.start(HELLO, crash_at="end.before"))
    run_id = await cluster.submit(HELLO)
    await pause.arrival()
    admission = await desk.ask(desk.stop(run_id))
    pause.resume()
    receipt = await proven(cluster, run_id)
    assert (admission.verdict, receipt.status) == (Admission.ACCEPTED, RunStatus.CANCELLED)
    assert admission.effect_ref == f"occurrence {receipt.occurrence_id}"


@pytest.mark.req("RR-28", "CC-69", "CC-42")
async def test_a_stop_behind_the_end_is_definitely_refused_and_changes_nothing(cluster: Cluster, desk: Desk) -> None:
    pause = Pause(await cluster.start(HELLO, crash_at="end.after"))
    run_id = await cluster.submit(HELLO)
    await pause.arrival()
    admission = await desk.ask(desk.stop(run_id))
    pause.resume()
    receipt = await proven(cluster, run_id)
    assert (admission.verdict, admission.reason) == (Admission.REJECTED, "already terminal: completed")
    assert admission.effect_ref == f"receipt {receipt.id}"
    assert await cluster.result(run_id) == "hello"


@pytest.mark.req("C11", "C09", "RR-28")
async def test_of_many_runs_that_are_started_and_stopped_at_once_each_has_exactly_one_story(cluster: Cluster, desk: Desk) -> None:
    run_ids = [await cluster.submit(HELLO) for _ in range(25)]
    intents = [await desk.stage(desk.stop(run_id)) for run_id in run_ids]
    await cluster.start(HELLO)
    for run_id, intent in zip(run_ids, intents, strict=True):
        admission = await desk.settled(intent)
        receipt = await proven(cluster, run_id)
        if admission.verdict is Admission.REJECTED:
            assert receipt.status is RunStatus.COMPLETED
            assert admission.effect_ref == f"receipt {receipt.id}"
            continue
        assert receipt.status is RunStatus.CANCELLED
        assert admission.effect_ref == f"occurrence {receipt.occurrence_id}"
        if receipt.never_started:
            assert await cluster.journal(run_id) == {}


@pytest.mark.req("C01", "C10")
async def test_a_run_that_is_stopped_before_any_worker_is_terminal_at_once_and_its_thread_free(
    cluster: Cluster, desk: Desk
) -> None:
    run_id = await cluster.submit(HELLO, thread="t")
    admission = await desk.ask(desk.stop(run_id))
    run = await cluster.run(run_id)
    assert (admission.verdict, run.status, run.attempt) == (Admission.ACCEPTED, RunStatus.CANCELLED, 0)
    receipt = await proven(cluster, run_id)
    assert receipt.never_started
    assert receipt.frontier.emitted_seq == 0
    again = await cluster.submit(HELLO, thread="t-2")
    await cluster.start(HELLO)
    assert await cluster.result(again) == "hello"
    assert await cluster.journal(run_id) == {}


@pytest.mark.req("C02", "CC-33")
async def test_a_stop_that_is_delivered_late_does_not_hit_the_next_run(cluster: Cluster, desk: Desk) -> None:
    await cluster.start(HELLO)
    first = await cluster.submit(HELLO)
    intent = await desk.stage(desk.stop(first))
    receipt = await cluster.receipt(first)
    second = await cluster.submit(HELLO)
    admission = await desk.settled(intent)
    assert admission.effect_ref == f"receipt {receipt.id}"
    assert await cluster.result(second) == "hello"


@pytest.mark.req("C05", "RR-30", "CC-12")
async def test_a_second_stop_widens_the_first_to_the_children_and_a_repetition_gets_the_first_answer(
    cluster: Cluster, desk: Desk
) -> None:
    gate, held = Gate(), Gate()
    child = waits_at(gate)

    async def spawns(run: Run) -> None:
        for _ in range(3):
            await run.spawn(child)
        await run.step(held.wait)

    parent = declare_agent(spawns)
    await cluster.start(parent, child)
    run_id = await cluster.submit(parent)
    await gate.arrival(3)
    await held.arrival()
    alone = await desk.ask(desk.stop(run_id, scope=CancelScope.RUN))
    children = (await cluster.service.inspect(run_id)).children
    assert alone.verdict is Admission.ACCEPTED
    assert all([(await cluster.run(c.id)).is_active for c in children])
    tree = await desk.ask(desk.stop(run_id, "tree"))
    repeated = await desk.ask(desk.stop(run_id, "tree"))
    assert tree.verdict is Admission.ACCEPTED
    assert repeated == tree
    receipts = [await cluster.receipt(c.id) for c in children]
    assert {r.status for r in receipts} == {RunStatus.CANCELLED}
    assert tree.effect_ref in {f"occurrence {r.occurrence_id}" for r in receipts}
    late = await desk.ask(desk.stop(run_id))
    assert (late.verdict, late.reason) == (Admission.REJECTED, "already terminal: cancelled")


@pytest.mark.req("C05")
async def test_a_second_stop_that_only_hastens_the_first_has_taken_effect_and_one_that_adds_nothing_has_not(
    cluster: Cluster, desk: Desk
) -> None:
    gate = Gate()
    agent = waits_at(gate)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    patient = await desk.ask(desk.stop(run_id, mode=CancelMode.AFTER_STEP, grace_ms=3_000_000))
    slower = await desk.ask(desk.stop(run_id, mode=CancelMode.AFTER_STEP))
    urgent = await desk.ask(desk.stop(run_id, grace_ms=100))
    receipt = await proven(cluster, run_id)
    occurrence = f"occurrence {receipt.occurrence_id}"
    assert (patient.verdict, patient.effect_ref) == (Admission.ACCEPTED, occurrence)
    assert (slower.verdict, slower.effect_ref) == (Admission.REJECTED, occurrence)
    assert (urgent.verdict, urgent.effect_ref) == (Admission.ACCEPTED, occurrence)


@pytest.mark.req("C14")
async def test_stopping_the_fourth_of_ten_stops_the_fourth(cluster: Cluster, desk: Desk) -> None:
    run_ids = [await cluster.submit(HELLO) for _ in range(10)]
    admission = await desk.ask(desk.stop(run_ids[3]))
    await cluster.start(HELLO)
    receipts = [await cluster.receipt(run_id) for run_id in run_ids]
    assert [n for n, r in enumerate(receipts) if r.status is RunStatus.CANCELLED] == [3]
    assert admission.effect_ref == f"occurrence {receipts[3].occurrence_id}"


@pytest.mark.req("CC-36")
@pytest.mark.parametrize(
    "make",
    [
        lambda desk, run_id: desk.stop(run_id, subject="eve"),
        lambda desk, run_id: wake_command(run_id, "a", **desk.who(subject="eve")),
        lambda desk, run_id: correct_command(run_id, "no", **desk.who(subject="eve")),
    ],
    ids=["cancel", "wake", "correct"],
)
async def test_a_subject_that_may_not_is_refused_by_the_owner_though_the_claim_is_live(
    cluster: Cluster, desk: Desk, make: Callable[[Desk, RunId], CommandRequest]
) -> None:
    def may(command: Command, run: RunRow) -> bool:
        return command.intent.subject != "eve"

    strict = Deliverer(cluster.env, [RunOwner(cluster.env, may), CorrectionOwner(cluster.env, may)])
    run_id = await cluster.submit(HELLO)
    admission = await desk.ask(make(desk, run_id), strict)
    assert admission.verdict is Admission.REJECTED
    assert admission.reason.startswith("subject 'eve' may not ")
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    assert await cluster.service.mailbox(run_id) == []
    assert (await desk.ask(desk.stop(run_id), strict)).verdict is Admission.ACCEPTED


@pytest.mark.req("CC-05", "NO-08", "NO-09")
async def test_without_the_owners_consent_no_row_of_a_run_changes(
    cluster: Cluster, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_owner.OwnerOfRuns, "decide", lambda self, tx, command: rejected("no"))
    run_id = await cluster.submit(HELLO)
    before = await cluster.service.inspect(run_id)
    for wanted in (desk.stop(run_id), wake_command(run_id, "a", **desk.who()), correct_command(run_id, "b", **desk.who())):
        assert (await desk.ask(wanted)).verdict is Admission.REJECTED
    after = await cluster.service.inspect(run_id)
    assert after.run == before.run
    assert await cluster.service.mailbox(run_id) == []


# -- wakes and corrections -------------------------------------------------------------------------------------------------


@pytest.mark.req("CC-68", "CC-69", "C13", "NO-16")
async def test_a_staged_wake_is_kept_for_its_run_and_proved_by_what_the_run_took(cluster: Cluster, desk: Desk) -> None:
    async def waits(run: Run) -> object:
        return await run.wait_for("order-7")

    agent = declare_agent(waits)
    run_id = await cluster.submit(agent)
    admission = await desk.ask(wake_command(run_id, "order-7", {"paid": 7}, **desk.who()))
    (kept,) = await cluster.service.mailbox(run_id)
    assert (admission.verdict, admission.effect_ref, kept.status) == (Admission.ACCEPTED, f"wake {kept.id}", EntryStatus.QUEUED)
    await cluster.start(agent)
    assert await cluster.result(run_id) == {"paid": 7}
    (taken,) = await cluster.service.mailbox(run_id)
    assert (taken.status, taken.key, taken.subject) == (EntryStatus.APPLIED, admission.command_key, "ada")


@pytest.mark.req("C07", "C13")
async def test_a_wake_or_correction_for_an_ended_run_is_refused_with_the_receipts_id(cluster: Cluster, desk: Desk) -> None:
    await cluster.start(HELLO)
    run_id = await cluster.submit(HELLO)
    receipt = await cluster.receipt(run_id)
    for wanted in (wake_command(run_id, "a", **desk.who()), correct_command(run_id, "b", **desk.who())):
        admission = await desk.ask(wanted)
        assert (admission.verdict, admission.effect_ref) == (Admission.REJECTED, f"receipt {receipt.id}")
        assert f"has ended (completed); receipt {receipt.id}" in admission.reason


@pytest.mark.req("CC-68", "CC-69", "C06", "CC-12")
async def test_a_staged_correction_is_applied_once_and_a_late_retry_reaches_no_later_run(cluster: Cluster, desk: Desk) -> None:
    async def listens(run: Run) -> list[str]:
        return [c.text for c in await run.corrections()]

    agent = declare_agent(listens)
    first = await cluster.submit(agent, thread="t")
    said = correct_command(first, "in French", **desk.who("K"))
    admission = await desk.ask(said)
    await cluster.start(agent)
    assert await cluster.result(first) == ["in French"]
    second = await cluster.submit(agent, thread="t-2")
    assert await desk.ask(said) == admission
    assert await cluster.result(second) == []
    (only,) = await cluster.service.mailbox(first)
    assert (only.status, f"correction {only.id}") == (EntryStatus.APPLIED, admission.effect_ref)


@pytest.mark.req("C07")
async def test_a_correction_is_withdrawn_by_command_until_it_is_applied(cluster: Cluster, desk: Desk) -> None:
    async def listens(run: Run) -> list[str]:
        return [c.text for c in await run.corrections()]

    agent = declare_agent(listens)
    run_id = await cluster.submit(agent)
    wrong = await desk.ask(correct_command(run_id, "wrong", **desk.who()))
    right = await desk.ask(correct_command(run_id, "right", **desk.who()))
    wake = await desk.ask(wake_command(run_id, "w", **desk.who()))

    async def take_back(receipt: AdmissionReceipt) -> AdmissionReceipt:
        return await desk.ask(withdraw_command(run_id, receipt.effect_ref.split()[1], **desk.who()))

    assert (await take_back(wrong)).effect_ref == wrong.effect_ref
    assert (await take_back(wake)).reason == "no such correction"
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["right"]
    late = await take_back(right)
    assert late.verdict is Admission.REJECTED
    assert "is applied at operation 1 already" in late.reason


@pytest.mark.req("CC-36", "CC-10")
async def test_what_cannot_be_read_is_refused_and_not_tried_for_ever(cluster: Cluster, desk: Desk) -> None:
    run_id = await cluster.submit(HELLO)
    for wanted in (
        wake_command(run_id, "", **desk.who()),
        correct_command(run_id, "", **desk.who()),
        desk.stop(run_id, grace_ms=-1),
    ):
        admission = await desk.ask(wanted)
        assert admission.verdict is Admission.REJECTED
        assert "cannot be read" in admission.reason


async def test_a_command_is_taken_back_until_it_is_relayed(cluster: Cluster, desk: Desk) -> None:
    run_id = await cluster.submit(HELLO)
    intent = await desk.stage(desk.stop(run_id))
    assert (await cluster.service.withdraw(intent.id)).status is IntentStatus.WITHDRAWN
    await desk.deliverer.pass_once()
    assert (await cluster.run(run_id)).status is RunStatus.PENDING
    relayed = await desk.stage(desk.stop(run_id))
    await desk.settled(relayed)
    with pytest.raises(Refused):
        await cluster.service.withdraw(relayed.id)
