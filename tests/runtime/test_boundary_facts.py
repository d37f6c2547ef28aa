"""What a receipt says and rests on: facts that belong together, are whole, and are written once (TR-02 to TR-16, TR-58)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from quiesce.domain.boundary import (
    STATUS_OF,
    CancelMode,
    GapKind,
    TerminalDurability,
)
from quiesce.domain.canonical import canonical, digest, parse
from quiesce.domain.errors import InvariantBroken, StoreError
from quiesce.domain.ids import OutcomeId, ReceiptId, RunId
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.store import Transaction
from quiesce.runtime.bundle import Bundle, gather_tx
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.settlement import publish_tx
from quiesce.runtime.verification import verify
from tests.runtime.cancel_kit import (
    Stubborn,
    cancel,
    cancelled,
    dies,
    facts_of,
    proven,
    stage,
)
from tests.runtime.kit import Cluster, Gate

# -- C, P and T belong together ----------------------------------------------------------------------------------------------


async def _bundle(cluster: Cluster, run_id: RunId) -> Bundle:
    return await cluster.store.read(lambda tx: gather_tx(tx, run_id))


def _failed(bundle: Bundle) -> set[str]:
    return {check.name for check in verify(bundle) if not check.ok}


@pytest.mark.req("TR-58")
async def test_a_receipt_that_cites_another_run_s_c_or_p_does_not_verify(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    agent = declare_agent(ends)
    one, two = await cluster.submit(agent), await cluster.submit(agent)
    await cancelled(cluster, one)
    await cancelled(cluster, two)
    mine, other = await _bundle(cluster, one), await _bundle(cluster, two)
    assert _failed(mine) == set()
    assert _failed(replace(mine, outcome=other.outcome)) == {"outcome"}
    assert _failed(replace(mine, occurrence=other.occurrence)) == {"occurrence"}
    forged = {**mine.receipt, "outcome_id": other.outcome.id}
    assert _failed(replace(mine, receipt=forged)) == {"outcome", "receipt_digest"}


@pytest.mark.req("TR-58")
async def test_an_outcome_of_another_run_is_not_taken_for_this_one_s(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    agent = declare_agent(ends)
    other = await cluster.submit(agent)
    await cancelled(cluster, other)
    settling = await cluster.submit(agent)
    await dies(cluster.host(crash_at="freeze.after"), settling)
    mine, theirs = await facts_of(cluster, settling), await facts_of(cluster, other)
    assert theirs.outcome is not None
    assert mine.occurrence is not None
    stranger = replace(theirs.outcome, id=OutcomeId("p"), run_id=RunId("stranger"), occurrence_id=mine.occurrence.id)

    def plant(tx: Transaction) -> None:
        tx.terminal.add_outcome(stranger)  # the SQL schemas refuse this already
        publish_tx(tx, settling, ReceiptId("t"), store_durability="none")

    with pytest.raises((InvariantBroken, StoreError)):
        await cluster.store.transact(plant)
    assert (await stage(cluster, settling)).startswith("settling CF")
    assert (await cluster.run(settling)).is_terminal is False


# -- the receipt's facts -----------------------------------------------------------------------------------------------------

FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "receipt_id": str,
    "run_id": str,
    "thread_id": str,
    "attempt": int,
    "occurrence_id": str,
    "outcome_id": str,
    "terminal_cause": str,
    "terminal_reason": str,
    "reason_text": str,
    "actor": dict,
    "terminal_status": str,
    "last_checkpoint_id": (str, type(None)),
    "last_stream_seq_emitted": int,
    "last_stream_seq_durable": int,
    "covered_seq": int,
    "stored_seq": int,
    "emitted_exact": bool,
    "terminal_durability": str,
    "gap": dict,
    "cleanup_attempted": bool,
    "cleanup_completed": bool,
    "escalated": bool,
    "cancel_scope": str,
    "never_started": bool,
    "unresolved_operations": list,
    "unconsumed_results": list,
    "artifacts": list,
    "usage": dict,
    "resume_policy": str,
    "resume_rule": str,
    "same_run_may_continue": str,
    "admissible": str,
    "durable_state_digest": str,
    "visible_state_digest_at_abort": str,
    "visible_state_digest_exact": bool,
    "store_durability": str,
    "previous_receipt_digest": (str, type(None)),
    "digest_algorithm": str,
    "published_at": int,
    "terminal_receipt_digest": str,
}
CLOSED_SETS: Final[dict[str, set[str]]] = {
    "terminal_cause": {"completed", "explicit_cancel", "transport_interrupted", "failed"},
    "terminal_status": {"completed", "cancelled", "failed"},
    "terminal_durability": {"durable", "partial", "abandoned"},
    "resume_policy": {"allow", "reconcile", "restart", "block"},
}


@pytest.mark.req("TR-02", "TR-05", "TR-06", "TR-11", "TR-48", "TR-62", "G-30")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "never started"])
async def test_every_end_has_one_receipt_with_every_field_present_and_typed(cluster: Cluster, end: str) -> None:
    async def ends(run: Run) -> str:
        await run.emit("seen")
        if end == "failed":
            raise ValueError("broken")
        if end == "cancelled":
            await run.sleep(3600)
        return "done"

    agent = declare_agent(ends)
    if end != "never started":
        await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tokens": 5})
    if end == "cancelled":
        await cluster.reaches(run_id, RunStatus.WAITING)
    receipt = await (cancelled(cluster, run_id) if end in ("cancelled", "never started") else proven(cluster, run_id))
    body = receipt.to_json()
    assert set(body) == set(FIELDS)
    assert {name: value for name, value in body.items() if not isinstance(value, FIELDS[name])} == {}
    assert all(body[name] in allowed for name, allowed in CLOSED_SETS.items())
    assert (body["terminal_status"], body["run_id"]) == (STATUS_OF[receipt.cause], run_id)
    digests = ("durable_state_digest", "visible_state_digest_at_abort", "terminal_receipt_digest")
    assert all(str(body[name]).startswith("sha256:") for name in digests)
    assert parse(canonical(body)) == body
    assert body["admissible"]
    assert body["usage"] == {"tokens": {"limit": 5, "used": 0, "reserved": 0}}


@pytest.mark.req("TR-03", "TR-12", "TR-32", "TR-33", "TR-34", "TR-27", "TR-31")
async def test_the_checkpoint_of_a_receipt_is_the_last_complete_one_and_the_visible_tail_leaves_a_record(
    cluster: Cluster,
) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        async def text() -> None:
            for n in range(40):
                await run.emit(f"token {n}")
            await gate.wait()

        await run.emit("first")
        await run.checkpoint({"step": 1})
        await run.step(text)
        await run.checkpoint({"step": 2})

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    before = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    receipt = await cancelled(cluster, run_id)
    after = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert after == before
    (only,) = after
    assert (only.id, parse(only.state), only.is_final) == (receipt.checkpoint_id, {"step": 1}, False)
    assert receipt.h1 == only.h1()
    assert (receipt.gap.kind, receipt.gap.first_seq, receipt.gap.last_seq) == (GapKind.RECOVERABLE, 2, 41)
    assert receipt.gap.state_bearing == 40
    assert [parse(e.payload) for e in await cluster.events(run_id)] == ["first", *(f"token {n}" for n in range(40))]


@pytest.mark.req("TR-04", "TR-09", "TR-35")
@pytest.mark.parametrize(
    ("tail", "durability", "kind"),
    [
        ("nothing", TerminalDurability.DURABLE, GapKind.NONE),
        ("observational", TerminalDurability.DURABLE, GapKind.NONE),
        ("state bearing", TerminalDurability.PARTIAL, GapKind.RECOVERABLE),
    ],
)
async def test_durable_is_said_only_of_what_a_checkpoint_covers(
    cluster: Cluster, tail: str, durability: TerminalDurability, kind: GapKind
) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        await run.emit("covered")
        await run.checkpoint("state")
        if tail != "nothing":
            await run.emit("beyond", state_bearing=tail == "state bearing")
        await run.step(gate.wait)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    receipt = await cancelled(cluster, run_id)
    frontier = receipt.frontier
    assert (receipt.durability, receipt.gap.kind) == (durability, kind)
    assert (frontier.covered_seq, frontier.stored_seq) == (1, 1 if tail == "nothing" else 2)
    assert frontier.emitted_seq >= frontier.stored_seq >= frontier.covered_seq
    assert frontier.emitted_exact
    policies = {GapKind.NONE: Policy.ALLOW, GapKind.RECOVERABLE: Policy.RECONCILE}
    assert receipt.policy.policy is policies[kind]


@pytest.mark.req("TR-10")
async def test_clean_up_attempted_and_clean_up_completed_are_facts_of_their_own(cluster: Cluster) -> None:
    seen = set()
    for how in ("clean", "left behind", "nobody there"):
        stubborn, gate = Stubborn(), Gate()

        async def holds(run: Run, how: str, stubborn: Stubborn = stubborn, gate: Gate = gate) -> None:
            await (stubborn.hold() if how == "left behind" else run.step(gate.wait))

        agent = declare_agent(holds, name=how)
        host = await cluster.start(agent)
        run_id = await cluster.submit(agent, how)
        await (stubborn if how == "left behind" else gate).arrival()
        if how == "nobody there":
            await host.kill()
        receipt = await cancelled(cluster, run_id, grace_ms=40)
        seen.add((receipt.cleanup_attempted, receipt.cleanup_completed))
        stubborn.let_go()
    assert seen == {(True, True), (True, False), (False, False)}


@pytest.mark.req("TR-14", "G-30", "TR-16")
async def test_receipts_are_chained_through_the_thread_whatever_the_ends(cluster: Cluster) -> None:
    async def ends(run: Run, how: str) -> str:
        if how == "failed":
            raise ValueError("broken")
        if how == "cancelled":
            await run.sleep(3600)
        return how

    agent = declare_agent(ends)
    await cluster.start(agent)
    previous: TerminalReceipt | None = None
    for how in ("completed", "failed", "cancelled", "completed"):
        run_id = await cluster.submit(agent, how, thread="t-1")
        if how == "cancelled":
            await cluster.reaches(run_id, RunStatus.WAITING)
            await cancel(cluster, run_id)
        receipt = await proven(cluster, run_id)
        assert receipt.status == how
        assert receipt.previous_digest == (None if previous is None else previous.digest)
        previous = receipt
    assert previous is not None
    bundle = await _bundle(cluster, previous.run_id)
    assert len(bundle.thread_receipts) == 3
    altered = [{**bundle.thread_receipts[0], "reason_text": "another"}, *bundle.thread_receipts[1:]]
    assert _failed(replace(bundle, thread_receipts=altered)) == {"thread_chain"}
    assert _failed(replace(bundle, thread_receipts=bundle.thread_receipts[:-1])) == {"thread_chain"}


@pytest.mark.req("TR-14", "TR-11", "TR-62")
async def test_a_change_of_any_field_of_a_receipt_breaks_its_digest(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    await cancelled(cluster, run_id)
    bundle = await _bundle(cluster, run_id)
    for name in bundle.receipt:
        altered = {**bundle.receipt, name: "altered"}
        assert "receipt_digest" in _failed(replace(bundle, receipt=altered)), name


# -- append-only ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-16", "TR-58")
async def test_the_three_facts_are_written_once_and_a_second_writing_changes_nothing(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    receipt = await cancelled(cluster, run_id)
    before = await facts_of(cluster, run_id)
    occurrence, outcome = before.occurrence, before.outcome
    assert occurrence is not None
    assert outcome is not None
    again = (
        await cluster.store.transact(lambda tx: tx.terminal.add_occurrence(replace(occurrence, text="other"))),
        await cluster.store.transact(lambda tx: tx.terminal.add_outcome(replace(outcome, escalated=True))),
        await cluster.store.transact(lambda tx: tx.terminal.add_receipt(replace(receipt, reason_text="other"))),
    )
    assert again == (False, False, False)
    assert await facts_of(cluster, run_id) == before
    assert receipt.h3() == receipt.digest == digest(canonical(receipt.body()))


@pytest.mark.req("TR-32", "TR-26", "C09")
async def test_after_step_adds_the_checkpoint_of_its_step_and_alters_none_before_it(cluster: Cluster) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        await run.checkpoint(1)
        await run.step(gate.wait)
        await run.checkpoint(2)
        await run.checkpoint(3)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    (first,) = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=60_000)
    gate.open()
    receipt = await proven(cluster, run_id)
    kept = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert kept[0] == first
    assert [parse(c.state) for c in kept] == [1, 2]
    assert receipt.checkpoint_id == kept[-1].id
