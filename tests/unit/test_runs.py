"""Runs: who may write, who may claim, and that every transition is in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product

import pytest

from quiesce.domain.ids import Fence, Position, WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import TERMINAL, TRANSITIONS, Admission, Run, RunStatus, Wait, WaitKind
from quiesce.testing.samples import Samples

PENDING, RUNNING, WAITING, SETTLING, COMPLETED, CANCELLED, FAILED = RunStatus
NOW = Instant(5_000_000)
WAIT = Wait(kind=WaitKind.TIMER, subject="1", position=Position("1"), due_at=NOW)

MOVES: dict[str, tuple[tuple[RunStatus, ...], Callable[[Run], Run]]] = {
    "claimed": ((PENDING, RUNNING, WAITING), lambda run: run.claimed(WorkerId("w2"))),
    "released": ((RUNNING,), lambda run: run.released()),
    "parked": ((RUNNING,), lambda run: run.parked((WAIT,))),
    "woken": ((WAITING,), lambda run: run.woken()),
    "fenced": ((PENDING, RUNNING, WAITING), lambda run: run.fenced_for_settlement(settle_at=NOW)),
    "completed": ((SETTLING,), lambda run: run.ended(COMPLETED, NOW)),
    "cancelled": ((SETTLING,), lambda run: run.ended(CANCELLED, NOW)),
    "failed": ((SETTLING,), lambda run: run.ended(FAILED, NOW)),
}
"""The transitions that the domain offers, each with the states it is meant for."""

NEVER_CHANGES = [
    "id",
    "thread_id",
    "number",
    "tenant",
    "subject",
    "key",
    "fingerprint",
    "agent",
    "input",
    "bindings",
    "parent_id",
    "root_id",
    "deadline_at",
    "durability",
    "visibility",
    "budget",
    "created_at",
]


def run_in(status: RunStatus) -> Run:
    """Make a run in a state, by transitions only."""
    pending = Samples().run(limits={"calls": 3}, deadline_at=NOW)
    running = pending.claimed(WorkerId("w1"))
    settling = running.fenced_for_settlement(settle_at=NOW)
    return {
        PENDING: pending,
        RUNNING: running,
        WAITING: running.parked((WAIT,)),
        SETTLING: settling,
        **{status: settling.ended(status, NOW) for status in TERMINAL},
    }[status]


@pytest.mark.req("RR-29", "RR-31")
def test_every_pair_of_statuses_is_allowed_or_not_as_written_here() -> None:
    allowed = {
        (PENDING, RUNNING),
        (PENDING, SETTLING),
        (RUNNING, PENDING),
        (RUNNING, RUNNING),
        (RUNNING, WAITING),
        (RUNNING, SETTLING),
        (WAITING, PENDING),
        (WAITING, RUNNING),
        (WAITING, SETTLING),
        (SETTLING, COMPLETED),
        (SETTLING, CANCELLED),
        (SETTLING, FAILED),
    }
    assert {(a, b) for a, b in product(RunStatus, RunStatus) if b in TRANSITIONS[a]} == allowed
    assert set(TRANSITIONS) == set(RunStatus)


def test_the_moves_of_a_run_make_exactly_the_transitions_of_the_table() -> None:
    made = {(before, move(run_in(before)).status) for states, move in MOVES.values() for before in states}
    assert made == {(a, b) for a, b in product(RunStatus, RunStatus) if b in TRANSITIONS[a]}


@pytest.mark.req("TR-19")
def test_no_run_ends_without_settling_first() -> None:
    assert all(status is SETTLING for status in RunStatus if TRANSITIONS[status] & TERMINAL)
    assert not any(TRANSITIONS[status] for status in TERMINAL)


@pytest.mark.req("RR-15", "RR-16", "RR-17", "RR-18", "RR-19")
@pytest.mark.parametrize(("name", "before"), [(name, state) for name, (states, _) in MOVES.items() for state in states])
def test_no_move_changes_what_a_run_was_submitted_with(name: str, before: RunStatus) -> None:
    run = run_in(before)
    moved = MOVES[name][1](run)
    assert {field: getattr(moved, field) for field in NEVER_CHANGES} == {f: getattr(run, f) for f in NEVER_CHANGES}
    assert set(NEVER_CHANGES) < {field.name for field in fields(Run)}


@pytest.mark.req("RR-04", "CC-30")
@pytest.mark.parametrize(("name", "before"), [(name, state) for name, (states, _) in MOVES.items() for state in states])
def test_the_fence_rises_with_every_claim_and_every_cancel_and_never_falls(name: str, before: RunStatus) -> None:
    run = run_in(before)
    rises = name in ("claimed", "fenced")
    assert MOVES[name][1](run).fence == run.fence + rises


def test_a_claim_opens_the_next_attempt_and_ends_the_waiting() -> None:
    taken = run_in(WAITING).claimed(WorkerId("w2"))
    assert (taken.worker_id, taken.attempt, taken.waits, taken.due_at) == ("w2", 2, (), None)


def test_a_parked_run_is_due_at_its_earliest_timer() -> None:
    later = replace(WAIT, due_at=after_ms(NOW, 5))
    child = Wait(kind=WaitKind.CHILD, subject="c", position=Position("2"))
    running = run_in(RUNNING)
    assert running.parked((later, child, WAIT)).due_at == NOW
    assert running.parked((child,)).due_at is None
    assert running.parked((child,)).worker_id is None


def test_an_ended_run_is_held_by_nobody() -> None:
    ended = run_in(SETTLING).ended(CANCELLED, NOW)
    assert (ended.worker_id, ended.drain_fence, ended.settle_at, ended.ended_at) == (None, None, None, NOW)
    assert ended.is_terminal
    assert not ended.is_active


@pytest.mark.req("RR-05", "RR-06")
@pytest.mark.parametrize(("status", "distance"), list(product(RunStatus, [-2, -1, 0, 1])))
def test_what_a_fence_entitles_to(status: RunStatus, distance: int) -> None:
    run = run_in(status)
    admission = run.admits(Fence(run.fence + distance))
    if status is RUNNING and distance == 0:
        assert admission is Admission.HOLDER
    elif status is SETTLING and distance == -1:
        assert admission is Admission.EVIDENCE
    else:
        assert admission is Admission.STALE


@pytest.mark.req("TR-47")
@pytest.mark.parametrize("status", [PENDING, WAITING])
def test_a_run_that_nobody_holds_leaves_no_drain_open(status: RunStatus) -> None:
    run = run_in(status).fenced_for_settlement(settle_at=NOW)
    assert all(run.admits(Fence(fence)) is Admission.STALE for fence in range(run.fence + 2))


@pytest.mark.req("RR-03", "RR-04", "RR-29")
@pytest.mark.parametrize(("status", "holder_is_live"), list(product(RunStatus, [True, False])))
def test_who_may_be_claimed(status: RunStatus, holder_is_live: bool) -> None:
    claimable = status in (PENDING, WAITING) or (status is RUNNING and not holder_is_live)
    assert run_in(status).is_claimable(NOW, holder_is_live=holder_is_live) is claimable


@pytest.mark.parametrize(("due_at", "claimable"), [(None, False), (NOW - 1, True), (NOW, True), (NOW + 1, False)])
def test_a_waiting_run_is_claimable_from_the_instant_it_is_due(due_at: Instant | None, claimable: bool) -> None:
    run = replace(run_in(WAITING), due_at=due_at)
    assert run.is_claimable(NOW, holder_is_live=False) is claimable


@pytest.mark.parametrize("wait", [WAIT, Wait(kind=WaitKind.CHILD, subject="c", position=Position("2.1"))])
def test_a_wait_is_read_back_from_its_json(wait: Wait) -> None:
    assert Wait.from_json(wait.to_json()) == wait
