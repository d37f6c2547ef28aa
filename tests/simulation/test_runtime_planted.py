"""Tests of the test: bugs planted into the runtime, each found by the simulation within a stated number of seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from quiesce.domain.boundary import Frontier
from quiesce.domain.budgets import Allowance, Amounts, Budget
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus, Recovery, recover
from quiesce.domain.runs import Admission, Run, Wait
from quiesce.domain.streams import Draft, StreamState
from quiesce.domain.workers import Worker
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime import cancel, claims, settlement, steps
from quiesce.runtime.journal import Journal
from quiesce.runtime.past import Past
from quiesce.runtime.settlement import freeze_tx
from quiesce.runtime.stream_gate import StreamGate
from quiesce.stores import apply
from quiesce.testing.faults import Fault
from quiesce.testing.sim.config import SETTINGS, Config, Deed, Trouble, Whim, Wish
from quiesce.testing.sim.world import Broken, simulate
from quiesce.testing.simloop import SimDeadlock, SimEndless

Plant = Callable[[pytest.MonkeyPatch], None]
Draw = Callable[[int], Config]


def watched_streams(seed: int) -> Config:
    """Worlds of talkers, with many readers, cancels and deaths: for what only a reader can notice."""
    return replace(
        Config.draw(seed),
        readers=3,
        clients=3,
        latency_ms=40,
        deeds=(Deed.STUBBORN, Deed.EMIT, Deed.TALK),
        wishes=(Wish.CANCEL,),
        troubles=(Trouble.KILL, Trouble.FREEZE),
        trouble_every_ms=400,
        hot=0.8,
    )


def trees(seed: int) -> Config:
    """Worlds of parents and children, cancelled."""
    deeds = (Deed.CHILD, Deed.CHILD, Deed.ONCE, Deed.IDEMPOTENT, Deed.STEP)
    return replace(Config.draw(seed), deeds=deeds, wishes=(Wish.CANCEL,), whims=(Whim.LOSES_ANSWER, Whim.IS_SLOW))


def stopped_steps(seed: int) -> Config:
    """Worlds of steps and calls, one behind the other, stopped while they run, far from the store."""
    return replace(
        Config.draw(seed),
        deeds=(Deed.STEP, Deed.PURE),
        wishes=(Wish.CANCEL, Wish.CANCEL_SOFTLY),
        whims=(),
        troubles=(),
        faults=(Fault.LOST_BELL, Fault.LATE_BELL),
        strike_probability=0.5,
        clients=6,
        runs_max=30,
        acts_max=12,
        latency_ms=40,
        hot=0.8,
    )


PLANTS: Final[dict[str, tuple[Plant, int, Draw]]] = {}


def planted(*, found_within: int, draw: Draw = Config.draw) -> Callable[[Plant], Plant]:
    """Declare a planted bug, and within how many seeds it must be found."""

    def declare(plant: Plant) -> Plant:
        PLANTS[plant.__name__] = (plant, found_within, draw)
        return plant

    return declare


@planted(found_within=40)
def the_fence_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "admits", lambda self, fence: Admission.HOLDER)


@planted(found_within=40)
def the_dispatch_mark_is_not_stored_before_the_call(patch: pytest.MonkeyPatch) -> None:
    put = Journal.put

    async def lazily(self: Journal, operation: Operation) -> None:
        if operation.kind is OperationKind.CALL and operation.status is OperationStatus.DISPATCHED:
            self.hold(operation)
        else:
            await put(self, operation)

    patch.setattr(Journal, "put", lazily)


@planted(found_within=200)
def an_unanswered_call_is_made_again_whatever_its_policy(patch: pytest.MonkeyPatch) -> None:
    def boldly(operation: Operation | None, *, now: Instant) -> Recovery:
        if operation is not None and operation.policy is EffectPolicy.ONCE:
            operation = replace(operation, policy=EffectPolicy.IDEMPOTENT)
        return recover(operation, now=now)

    patch.setattr(steps, "recover", boldly)


@planted(found_within=40)
def a_lease_ends_a_beat_early(patch: pytest.MonkeyPatch) -> None:
    early = (SETTINGS.lease_ms - SETTINGS.beat_ms // 2) * 1000
    patch.setattr(Worker, "is_live", lambda self, now: now < self.lease_expires_at - early)


@planted(found_within=200)
def a_claim_keeps_the_fence(patch: pytest.MonkeyPatch) -> None:
    claimed = Run.claimed
    patch.setattr(Run, "claimed", lambda self, worker_id: replace(claimed(self, worker_id), fence=max(self.fence, Fence(1))))


@planted(found_within=40)
def the_outcome_is_recorded_before_the_frontier_is_frozen(patch: pytest.MonkeyPatch) -> None:
    def too_late(tx: Transaction, run_id: RunId, *, emitted_seq: int | None = None, fence: Fence | None = None) -> bool:
        if tx.terminal.occurrence(run_id) is not None and tx.terminal.receipt(run_id) is not None:
            return freeze_tx(tx, run_id, emitted_seq=emitted_seq, fence=fence)
        return True

    def unfrozen(tx: Transaction, run_id: RunId) -> Frontier:
        state = tx.streams.state(run_id)
        assert state is not None
        return Frontier(
            covered_seq=0,
            stored_seq=state.stored_seq,
            emitted_seq=state.stored_seq,
            emitted_exact=True,
            state_bearing_stored=0,
            pending_writes=0,
        )

    patch.setattr(settlement, "freeze_tx", too_late)
    patch.setattr(settlement, "_frontier", unfrozen)


@planted(found_within=400, draw=watched_streams)
def what_may_have_been_shown_is_taken_for_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    def faked(tx: Transaction, run: Run, state: StreamState) -> tuple[int, bool]:
        return state.stored_seq, True

    patch.setattr(settlement, "_bound", faked)


@planted(found_within=150, draw=watched_streams)
def numbers_are_shown_without_being_reserved(patch: pytest.MonkeyPatch) -> None:
    async def in_mind(self: Journal, upto: int) -> None:
        pass

    patch.setattr(Journal, "reserve", in_mind)


@planted(found_within=150, draw=watched_streams)
def the_gate_of_a_stream_stays_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamGate, "shut", lambda self: None)


@planted(found_within=40)
def a_replay_shows_everything_again(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Past, draft: Draft) -> tuple[bool, tuple[int, int] | None]:
        return False, None

    patch.setattr(Past, "meet", forget)


@planted(found_within=200)
def a_wake_up_is_lost_between_looking_and_parking(patch: pytest.MonkeyPatch) -> None:
    def not_yet(tx: Transaction, run_id: RunId, wait: Wait) -> bool:
        return False

    patch.setattr(claims, "is_over", not_yet)
    patch.setattr(claims, "wake_tx", lambda tx, run, is_awaited: False)
    patch.setattr(settlement, "wake_tx", lambda tx, run, is_awaited: False)


@planted(found_within=200)
def a_budget_refuses_nothing(patch: pytest.MonkeyPatch) -> None:
    def none(self: Budget, amounts: Amounts) -> Allowance | None:
        return None

    patch.setattr(Budget, "shortfall", none)


@planted(found_within=100, draw=trees)
def a_cancel_of_a_tree_forgets_the_children(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cancel, "descendants", lambda tx, run_id: [])


@planted(found_within=100, draw=trees)
def a_receipt_forgets_what_its_children_left_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settlement, "descendants", lambda tx, run_id: [])


@planted(found_within=20, draw=stopped_steps)
def a_holder_goes_on_behind_a_stop_that_it_was_told_of(patch: pytest.MonkeyPatch) -> None:
    async def later(self: Journal) -> None:
        pass

    patch.setattr(Journal, "_when_settling", later)


@planted(found_within=20, draw=stopped_steps)
def a_holder_is_not_told_of_a_stop_where_its_rows_are_taken(patch: pytest.MonkeyPatch) -> None:
    judge = apply._judge

    def silently(write: RunWrite, runs: dict[RunId, Run], frozen: dict[RunId, int]) -> WriteOutcome:
        outcome = judge(write, runs, frozen)
        return WriteOutcome.APPLIED if outcome.is_applied else outcome

    patch.setattr(apply, "_judge", silently)


@planted(found_within=200)
def the_first_call_of_a_run_is_never_in_doubt(patch: pytest.MonkeyPatch) -> None:
    def only_unknown(self: Operation) -> bool:
        return self.kind is OperationKind.CALL and self.status is OperationStatus.UNKNOWN and self.position != Position("1")

    patch.setattr(Operation, "may_have_acted", property(only_unknown))


def first_found(seeds: int, draw: Draw) -> int | None:
    """Return the first seed in whose world something does not hold."""
    for seed in range(seeds):
        try:
            simulate(seed, config=draw(seed))
        except (Broken, SimDeadlock, SimEndless):
            return seed
    return None


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, found_within, draw = PLANTS[name]
    plant(monkeypatch)
    assert first_found(found_within, draw) is not None
