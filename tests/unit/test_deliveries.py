"""The decision about a delivery: the five situations, and every other one, against a table written down by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.commands import Kind
from quiesce.domain.deliveries import (
    TERMINAL,
    TRANSITIONS,
    Absent,
    Admission,
    AdmissionId,
    AdmissionReceipt,
    Command,
    CommandKey,
    CommandStatus,
    EventId,
    Reading,
    Step,
    Unreadable,
    next_step,
)
from quiesce.domain.errors import InvariantBroken
from quiesce.domain.ids import Fence, WorkerId
from quiesce.domain.instant import Instant
from tests.unit.test_commands import NOW, an_intent

EVENT = EventId("00000000-0000-7000-8000-00000000000a")
WORKER = WorkerId("w")
LATER = Instant(NOW + 1_000)


def a_command(**changes: object) -> Command:
    command = Command(
        event_id=EVENT,
        intent=an_intent(),
        number=1,
        accepted_at=NOW,
        status=CommandStatus.PENDING,
        claimable_at=NOW,
        fence=Fence(0),
    )
    return replace(command, **changes)  # type: ignore[arg-type]


def a_receipt(verdict: Admission = Admission.ACCEPTED) -> AdmissionReceipt:
    key = CommandKey(f"control:{EVENT}")
    return AdmissionReceipt(id=AdmissionId("a"), command_key=key, verdict=verdict, reason="", effect_ref="e", at=NOW)


ABSENT = Absent(excludes_in_flight=False)
FENCED_OUT = Absent(excludes_in_flight=True)
UNREADABLE = Unreadable(why="locked")


@pytest.mark.req("CC-61", "CC-41", "CC-42", "CC-45", "CC-46", "CC-49", "CC-33")
def test_the_five_observable_situations() -> None:
    claimed = a_command().taken(WORKER, LATER)
    taken_over = claimed.started().taken(WORKER, LATER)

    def step(command: Command, reading: Reading | None, revision: int = 0) -> Step:
        return next_step(command, revision=revision, now=NOW, reading=reading)

    # The owner has accepted (or refused); the delivery has no acknowledgement.
    assert step(taken_over, a_receipt()) is Step.SETTLE
    assert step(taken_over, a_receipt(Admission.REJECTED)) is Step.SETTLE
    # Absence is proven, and no uncertain effect existed.
    assert step(claimed, ABSENT) is Step.ADMIT
    # The receipt is unreadable for now, before any admission.
    assert step(claimed, UNREADABLE) is Step.DEFER
    # An admission began, and how it ended is open.
    assert step(taken_over, ABSENT) is Step.KEEP_UNKNOWN
    assert step(taken_over, UNREADABLE) is Step.KEEP_UNKNOWN
    # The target was superseded.
    assert step(claimed, None, revision=1) is Step.DISCARD


def expected(superseded: bool, begun: str, reading: Reading | None, late: bool) -> Step:
    """The table once more, in the words of the requirements and not of the code."""
    if isinstance(reading, AdmissionReceipt):
        return Step.SETTLE
    if begun == "never":
        if superseded:
            return Step.DISCARD
        if reading is None:
            return Step.READ
        if isinstance(reading, Unreadable):
            return Step.DEFER
        return Step.EXPIRE if late else Step.ADMIT
    if reading is None:
        return Step.READ
    is_rolled_back = reading == FENCED_OUT and begun in ("under an older fence", "lost under an older fence")
    if not is_rolled_back:
        return Step.KEEP_UNKNOWN
    if superseded:
        return Step.DISCARD
    return Step.EXPIRE if late else Step.ADMIT


BEGUN: dict[str, dict[str, object]] = {
    "never": {"started_fence": None, "is_uncertain": False},
    "under this fence": {"started_fence": Fence(3), "is_uncertain": False},
    "under an older fence": {"started_fence": Fence(2), "is_uncertain": False},
    "lost under this fence": {"started_fence": Fence(3), "is_uncertain": True},
    "lost under an older fence": {"started_fence": Fence(2), "is_uncertain": True},
}
READINGS: list[Reading | None] = [None, a_receipt(), a_receipt(Admission.REJECTED), ABSENT, FENCED_OUT, UNREADABLE]


@pytest.mark.req("CC-39", "CC-40", "CC-44", "CC-50", "CC-51", "CC-52", "CC-53", "CC-54")
@pytest.mark.parametrize(
    ("superseded", "begun", "reading", "late"), list(itertools.product([False, True], BEGUN, READINGS, [False, True]))
)
def test_every_situation(superseded: bool, begun: str, reading: Reading | None, late: bool) -> None:
    intent = an_intent(not_after=LATER)
    claimed = a_command(intent=intent, fence=Fence(2), **BEGUN[begun]).taken(WORKER, Instant(LATER + 5))
    now = LATER if late else NOW
    step = next_step(claimed, revision=int(superseded), now=now, reading=reading)
    assert step is expected(superseded, begun, reading, late)


@pytest.mark.req("CC-46", "CC-50")
def test_an_admission_follows_only_from_proven_absence() -> None:
    for begun, reading, superseded in itertools.product(BEGUN, READINGS, [0, 1]):
        claimed = a_command(fence=Fence(2), **BEGUN[begun]).taken(WORKER, LATER)
        if next_step(claimed, revision=superseded, now=NOW, reading=reading) is Step.ADMIT:
            assert isinstance(reading, Absent)
            assert not superseded
            assert not claimed.may_have_begun or reading.excludes_in_flight


@pytest.mark.req("CC-17", "G-09", "G-10", "G-11", "CC-18")
@pytest.mark.parametrize("status", list(CommandStatus))
@pytest.mark.parametrize("is_barrier", [True, False])
@pytest.mark.parametrize("overtakes", [True, False])
@pytest.mark.parametrize("is_superseded", [True, False])
def test_who_waits_for_whom(status: CommandStatus, is_barrier: bool, overtakes: bool, is_superseded: bool) -> None:
    earlier = a_command(intent=an_intent(kind=Kind(name="k", is_barrier=is_barrier)), status=status)
    later = a_command(intent=an_intent(kind=Kind(name="k", overtakes=overtakes)), number=2)
    stuck = status in (CommandStatus.UNKNOWN, CommandStatus.QUARANTINED)
    holds_up = (is_barrier and not is_superseded) or not stuck
    waits = not overtakes and status not in TERMINAL and holds_up
    assert earlier.blocks(later, revision=int(is_superseded)) == waits


@pytest.mark.req("CC-34", "CC-38")
def test_a_claim_is_held_by_its_worker_under_its_fence_until_it_expires() -> None:
    claimed = a_command().taken(WORKER, LATER)
    claim = claimed.claim
    assert claim is not None
    assert claimed.holds(claim, NOW)
    assert not claimed.holds(claim, LATER)
    assert not claimed.holds(replace(claim, worker_id=WorkerId("other")), NOW)
    assert not claimed.holds(replace(claim, fence=Fence(2)), NOW)
    assert not claimed.taken(WORKER, LATER).holds(claim, NOW)
    assert not claimed.unknown(LATER, "lost").holds(claim, NOW)


def _only(status: CommandStatus, move: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Make a move that whoever claims or holds would not even try otherwise."""

    def moved(command: Command) -> Command:
        allowed = status in TRANSITIONS[command.status] if status is CommandStatus.CLAIMED else command.claim is not None
        if not allowed:
            raise InvariantBroken("not offered")
        return move(command)

    return moved


MOVES: dict[str, Callable[[Command], Command]] = {
    "claim": _only(CommandStatus.CLAIMED, lambda c: c.taken(WORKER, LATER)),
    "renew": _only(CommandStatus.PENDING, lambda c: c.renewed(LATER)),
    "start": _only(CommandStatus.PENDING, lambda c: c.started()),
    "defer": lambda c: c.deferred(LATER, "unreadable"),
    "lose": lambda c: c.unknown(LATER, "answer lost"),
    "quarantine": lambda c: c.quarantined("used up"),
    "requeue": lambda c: c.requeued(NOW, "supported now"),
    "settle": lambda c: c.closed(CommandStatus.SETTLED, NOW),
    "discard": lambda c: c.closed(CommandStatus.DISCARDED, NOW),
    "expire": lambda c: c.closed(CommandStatus.EXPIRED, NOW),
}


@pytest.mark.req("CC-30", "CC-50", "CC-25", "CC-59", "CC-15")
@given(moves=st.lists(st.sampled_from(sorted(MOVES)), max_size=25))
def test_whatever_happens_fences_grow_uncertainty_stays_and_an_end_is_the_end(moves: list[str]) -> None:
    command = a_command()
    for move in moves:
        before = command
        try:
            command = MOVES[move](command)
        except InvariantBroken:
            assert command is before
            continue
        assert command.status in TRANSITIONS[before.status] or command.status is before.status
        assert command.fence == before.fence + (move == "claim")
        assert command.is_uncertain or not before.is_uncertain
        assert command.key == before.key == "control:" + EVENT
        assert before.status not in TERMINAL
        assert (command.claim is None) == (command.status is not CommandStatus.CLAIMED)
        if before.is_uncertain:
            assert command.status in (
                CommandStatus.CLAIMED,
                CommandStatus.UNKNOWN,
                CommandStatus.QUARANTINED,
                CommandStatus.SETTLED,
                CommandStatus.DISCARDED,
                CommandStatus.EXPIRED,
            )


@pytest.mark.req("CC-55")
def test_readings_of_what_became_unknown_are_counted_by_themselves() -> None:
    command = a_command(attempts=7).taken(WORKER, LATER).started().unknown(LATER, "lost")
    assert command.attempts == 0
    again = command.taken(WORKER, LATER).unknown(LATER, "still")
    assert (again.attempts, again.failures) == (1, 2)
