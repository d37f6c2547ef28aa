"""The terminal boundary: measured durability and gap, the receipt and its digest, causes and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.boundary import (
    CAUSE_OF,
    STATUS_OF,
    WORDS_OF_CANCELLED,
    Actor,
    ActorKind,
    CancelScope,
    Cause,
    Frontier,
    Gap,
    GapKind,
    Reason,
    TerminalDurability,
    measure,
)
from quiesce.domain.ids import CheckpointId, OccurrenceId, OutcomeId, ReceiptId, RunId, ThreadId
from quiesce.domain.resume import Policy, ToolState, resume_policy, tool_state
from quiesce.domain.runs import TERMINAL, RunStatus
from quiesce.domain.terminal import TerminalReceipt, digest_of_body
from quiesce.testing.samples import Samples, make_frontier

DURABLE, PARTIAL, ABANDONED = TerminalDurability

CONSISTENT = {
    (DURABLE, GapKind.NONE),
    (PARTIAL, GapKind.RECOVERABLE),
    (PARTIAL, GapKind.PART_LOST),
    (ABANDONED, GapKind.LOST),
}
"""What the resume table holds for possible, but for contradictions, which no count can show."""


@st.composite
def frontiers(draw: st.DrawFn) -> Frontier:
    """Frontiers as a store can hold them: covered ≤ stored, and no more state-bearing events than there are beyond D."""
    stored = draw(st.integers(0, 50))
    covered = draw(st.integers(0, stored))
    return make_frontier(
        covered=covered,
        stored=stored,
        emitted=draw(st.integers(0, 100)),
        exact=draw(st.booleans()),
        state_bearing_stored=draw(st.integers(0, stored - covered)),
        pending_writes=draw(st.integers(0, 3)),
    )


@pytest.mark.req("TR-06", "TR-08")
@given(frontiers())
def test_durability_and_gap_are_always_consistent(frontier: Frontier) -> None:
    durability, gap = measure(frontier)
    assert (durability, gap.kind) in CONSISTENT


@pytest.mark.req("TR-09", "TR-35")
@given(frontiers())
def test_durable_means_that_all_that_may_have_been_seen_is_stored_and_covered(frontier: Frontier) -> None:
    durability, _ = measure(frontier)
    is_all_stored = frontier.emitted_seq <= frontier.stored_seq
    assert (durability is DURABLE) is (is_all_stored and frontier.state_bearing_stored == 0)


@pytest.mark.req("TR-17", "TR-53")
@given(frontiers())
def test_a_gap_has_bounds_and_counts_and_no_gap_has_none(frontier: Frontier) -> None:
    _, gap = measure(frontier)
    if gap.kind is GapKind.NONE:
        assert gap == Gap(kind=GapKind.NONE)
        return
    assert gap.first_seq == frontier.covered_seq + 1
    assert gap.last_seq == max(frontier.emitted_seq, frontier.stored_seq)
    assert gap.first_seq <= gap.last_seq
    assert gap.stored_through == frontier.stored_seq
    assert 1 <= gap.state_bearing <= gap.last_seq - frontier.covered_seq


@pytest.mark.req("TR-36")
@given(frontiers())
def test_a_gap_is_recoverable_exactly_if_nothing_of_it_is_missing(frontier: Frontier) -> None:
    _, gap = measure(frontier)
    is_missing = frontier.emitted_seq > frontier.stored_seq
    assert (gap.kind in (GapKind.PART_LOST, GapKind.LOST)) is is_missing


@pytest.mark.parametrize(
    ("frontier", "durability", "gap"),
    [
        (make_frontier(), DURABLE, GapKind.NONE),
        (make_frontier(covered=5, stored=5, emitted=5), DURABLE, GapKind.NONE),
        (make_frontier(covered=5, stored=9, emitted=9), DURABLE, GapKind.NONE),
        (make_frontier(covered=5, stored=9, emitted=9, state_bearing_stored=2), PARTIAL, GapKind.RECOVERABLE),
        (make_frontier(covered=5, stored=9, emitted=12, state_bearing_stored=2), PARTIAL, GapKind.PART_LOST),
        (make_frontier(covered=5, stored=5, emitted=12, pending_writes=1), PARTIAL, GapKind.PART_LOST),
        (make_frontier(covered=5, stored=5, emitted=12), ABANDONED, GapKind.LOST),
        (make_frontier(covered=5, stored=5, emitted=5, pending_writes=1), DURABLE, GapKind.NONE),
    ],
)
def test_examples_of_measuring(frontier: Frontier, durability: TerminalDurability, gap: GapKind) -> None:
    measured = measure(frontier)
    assert (measured[0], measured[1].kind) == (durability, gap)


@pytest.mark.req("TR-05")
def test_every_reason_has_one_cause_and_every_cause_one_status() -> None:
    assert set(CAUSE_OF) == set(Reason)
    assert set(CAUSE_OF.values()) == set(Cause) == set(STATUS_OF)
    assert set(STATUS_OF.values()) == TERMINAL


@pytest.mark.req("TR-24", "ST-09")
def test_a_client_that_left_is_no_explicit_cancel() -> None:
    assert CAUSE_OF[Reason.CLIENT_LEFT] is Cause.TRANSPORT_INTERRUPTED
    assert WORDS_OF_CANCELLED["run"] == RunStatus.CANCELLED
    assert WORDS_OF_CANCELLED["cause"] == Cause.EXPLICIT_CANCEL
    assert WORDS_OF_CANCELLED["agent_server"] == "interrupted"


STATUSES = ("sealed", "dispatched", "unknown", "committed", "consumed")


@pytest.mark.req("TR-43")
@pytest.mark.parametrize("statuses", list(product(STATUSES, repeat=2)))
def test_the_gravest_operation_decides_the_tool_state(statuses: tuple[str, str]) -> None:
    unknown = any(status == "unknown" for status in statuses)
    answer = tool_state([(status == "unknown", status) for status in statuses])
    if unknown:
        assert answer is ToolState.OUTCOME_UNKNOWN
    elif "committed" in statuses:
        assert answer is ToolState.COMMITTED_UNCONSUMED
    elif "sealed" in statuses or "dispatched" in statuses:
        assert answer is ToolState.SEALED
    else:
        assert answer is ToolState.IDLE


def test_no_operations_are_idle() -> None:
    assert tool_state([]) is ToolState.IDLE


def sample_receipt() -> TerminalReceipt:
    make = Samples()
    run = make.running(limits={"calls": 2})
    occurrence = make.occurrence(run, text="enough")
    frontier = make_frontier(covered=1, stored=4, emitted=6, state_bearing_stored=2)
    return make.receipt(run, occurrence, make.outcome(occurrence, frontier))


def changed_receipts() -> Iterator[tuple[str, TerminalReceipt]]:
    """Yield the sample receipt with one field changed, for every field but the digest."""
    receipt = sample_receipt()
    other = resume_policy(Cause.COMPLETED, DURABLE, GapKind.NONE, ToolState.IDLE)
    yield "id", replace(receipt, id=ReceiptId("other"))
    yield "run_id", replace(receipt, run_id=RunId("other"))
    yield "thread_id", replace(receipt, thread_id=ThreadId("other"))
    yield "attempt", replace(receipt, attempt=receipt.attempt + 1)
    yield "occurrence_id", replace(receipt, occurrence_id=OccurrenceId("other"))
    yield "outcome_id", replace(receipt, outcome_id=OutcomeId("other"))
    yield "cause", replace(receipt, cause=Cause.FAILED)
    yield "reason", replace(receipt, reason=Reason.DEADLINE)
    yield "reason_text", replace(receipt, reason_text="enough!")
    yield "actor", replace(receipt, actor=Actor(kind=ActorKind.SERVICE, name=receipt.actor.name))
    yield "actor", replace(receipt, actor=replace(receipt.actor, name="eve"))
    yield "status", replace(receipt, status=RunStatus.FAILED)
    yield "checkpoint_id", replace(receipt, checkpoint_id=CheckpointId("other"))
    yield "durability", replace(receipt, durability=DURABLE)
    yield "cleanup_attempted", replace(receipt, cleanup_attempted=False)
    yield "cleanup_completed", replace(receipt, cleanup_completed=False)
    yield "escalated", replace(receipt, escalated=True)
    yield "scope", replace(receipt, scope=CancelScope.TREE)
    yield "never_started", replace(receipt, never_started=True)
    yield "unresolved", replace(receipt, unresolved=({"operation": "1"},))
    yield "unconsumed", replace(receipt, unconsumed=({"operation": "1"},))
    yield "artifacts", replace(receipt, artifacts=({"name": "report.md"},))
    yield "usage", replace(receipt, usage={"calls": {"limit": 2, "used": 1, "reserved": 0}})
    yield "policy", replace(receipt, policy=replace(receipt.policy, policy=Policy.ALLOW))
    yield "policy", replace(receipt, policy=replace(receipt.policy, rule="R99"))
    yield "policy", replace(receipt, policy=replace(receipt.policy, admissible="anything"))
    yield "policy", replace(receipt, policy=other)
    yield "h1", replace(receipt, h1="sha256:other")
    yield "h2", replace(receipt, h2="sha256:other")
    yield "h2_exact", replace(receipt, h2_exact=False)
    yield "store_durability", replace(receipt, store_durability="weaker")
    yield "previous_digest", replace(receipt, previous_digest="sha256:other")
    yield "published_at", replace(receipt, published_at=type(receipt.published_at)(receipt.published_at + 1))
    for field, gap in (
        ("kind", replace(receipt.gap, kind=GapKind.NONE)),
        ("first_seq", replace(receipt.gap, first_seq=1)),
        ("last_seq", replace(receipt.gap, last_seq=7)),
        ("state_bearing", replace(receipt.gap, state_bearing=0)),
        ("stored_through", replace(receipt.gap, stored_through=5)),
    ):
        yield f"gap.{field}", replace(receipt, gap=gap)
    for field, frontier in (
        ("covered_seq", replace(receipt.frontier, covered_seq=0)),
        ("stored_seq", replace(receipt.frontier, stored_seq=5)),
        ("emitted_seq", replace(receipt.frontier, emitted_seq=7)),
        ("emitted_exact", replace(receipt.frontier, emitted_exact=False)),
    ):
        yield f"frontier.{field}", replace(receipt, frontier=frontier)


@pytest.mark.req("TR-14", "TR-48")
@pytest.mark.parametrize(("name", "changed"), list(changed_receipts()))
def test_changing_any_field_of_a_receipt_changes_its_digest(name: str, changed: TerminalReceipt) -> None:
    receipt = sample_receipt()
    assert changed != receipt
    assert changed.digest == receipt.digest
    assert changed.h3() != receipt.digest


@pytest.mark.req("TR-14")
def test_no_field_of_a_receipt_was_forgotten_above() -> None:
    varied = {name.split(".")[0] for name, _ in changed_receipts()}
    assert varied == {field.name for field in fields(TerminalReceipt)} - {"digest"}


@pytest.mark.req("TR-14")
def test_the_digest_can_be_recomputed_from_what_is_shown() -> None:
    receipt = sample_receipt()
    assert receipt.h3() == receipt.digest == digest_of_body(receipt.to_json()) == digest_of_body(receipt.body())
    assert receipt.to_json()["terminal_receipt_digest"] == receipt.digest


@pytest.mark.req("TR-16")
def test_a_receipt_is_chained_to_the_one_before_it() -> None:
    make = Samples()
    run = make.running()
    occurrence = make.occurrence(run)
    first = make.receipt(run, occurrence, make.outcome(occurrence))
    second = make.receipt(run, occurrence, make.outcome(occurrence), previous=first)
    assert second.previous_digest == first.digest
    assert replace(second, previous_digest=sample_receipt().digest).h3() != second.digest


@pytest.mark.req("TR-02", "TR-04", "TR-48")
def test_a_receipt_says_in_named_fields_why_how_far_what_was_seen_and_what_may_follow() -> None:
    shown = sample_receipt().to_json()
    for name in [
        "run_id",
        "terminal_cause",
        "terminal_status",
        "last_checkpoint_id",
        "last_stream_seq_emitted",
        "last_stream_seq_durable",
        "terminal_durability",
        "cleanup_attempted",
        "cleanup_completed",
        "resume_policy",
        "gap",
        "unresolved_operations",
        "digest_algorithm",
        "durable_state_digest",
        "visible_state_digest_at_abort",
        "terminal_receipt_digest",
    ]:
        assert name in shown
    assert (shown["last_stream_seq_emitted"], shown["last_stream_seq_durable"]) == (6, 4)
