"""Each guarded race ends well with its guard, and otherwise without it: what a test of a guard is worth.

A race here is one order of decisions on the memory store, the worst one, so no clock and no luck is in it. Each is played
twice: as the code is, and with its guard taken out. A guard that could go without anything ending differently guards nothing,
or its test does not look.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.errors import LeaseBusy, Refused
from quiesce.domain.ids import Position
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Admission, Run, RunStatus, Wait, WaitKind
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime import claims
from quiesce.runtime.cancel import CancelRequest, cancel_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.settlement import freeze_tx
from quiesce.stores import apply
from quiesce.stores.memory import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples

Race = Callable[["World"], object]


class World:
    """An empty store, two live workers, and a run that the first of them holds."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.store = MemoryStore(clock)
        self.env = Environment(store=self.store, clock=clock, entropy=SystemEntropy())
        self.make = Samples()
        self.first, self.second = self.make.worker(), self.make.worker()
        self.held = self.make.running(self.first, limits={"calls": 1})

        def begin(tx: Transaction) -> None:
            tx.workers.insert(self.first)
            tx.workers.insert(self.second)
            self.add(tx, self.held)

        self.store.transact_blocking(begin)

    def add(self, tx: Transaction, run: Run) -> None:
        """Store a run with its ledger."""
        tx.runs.insert(run)
        tx.streams.open(run.id)

    def write(self, *writes: RunWrite) -> list[WriteOutcome]:
        """Hand in writes of holders, in this order."""
        return [self.store.transact_blocking(lambda tx, w=write: tx.apply(w)) for write in writes]  # type: ignore[misc]

    def cancel(self, run: Run) -> None:
        """Admit a cancel: C and X."""
        request = CancelRequest(run_id=run.id, actor=Actor(kind=ActorKind.USER, name="ada"), key="k", tenant=run.tenant)
        self.store.transact_blocking(lambda tx: cancel_tx(tx, self.env, request))


def a_holder_that_was_passed_by_writes(world: World) -> object:
    run = world.held
    world.store.transact_blocking(lambda tx: tx.runs.save_many([r.claimed(world.second.id) for r in locked(tx, run)]))
    return world.write(RunWrite(run_id=run.id, fence=run.fence, events=world.make.texts(run, "late")))


def two_workers_claim_one_run(world: World) -> object:
    try:
        world.store.transact_blocking(lambda tx: claims.claim_tx(tx, world.held.id, world.second))
    except LeaseBusy:
        return "told that it is busy"
    return "both hold it"


def what_a_run_waits_for_comes_about_before_it_parks(world: World) -> object:
    run, due = world.held, world.env.clock.now()
    wait = Wait(kind=WaitKind.TIMER, subject="timer", position=Position("1"), due_at=due)
    world.store.transact_blocking(lambda tx: claims.park_tx(tx, run.id, run.fence, (wait,)))
    return world.store.transact_blocking(lambda tx: status(tx, run))


def a_worker_claims_a_run_whose_cancel_was_first(world: World) -> object:
    run = world.make.run()
    world.store.transact_blocking(lambda tx: world.add(tx, run))
    world.cancel(run)
    try:
        world.store.transact_blocking(lambda tx: claims.claim_tx(tx, run.id, world.first))
    except Refused:
        return "refused"
    return "claimed"


def a_word_leaves_while_the_frontier_is_frozen(world: World) -> object:
    run = world.held
    world.cancel(run)
    world.store.transact_blocking(lambda tx: freeze_tx(tx, run.id, emitted_seq=0, fence=run.fence))
    return world.write(RunWrite(run_id=run.id, fence=run.fence, events=world.make.texts(run, "late")))


def two_calls_reach_for_the_last_unit(world: World) -> object:
    run = world.held
    calls = [
        world.make.operation(run, position, status=OperationStatus.DISPATCHED, reserved={"calls": 1}) for position in ("1", "2")
    ]
    return world.write(*(RunWrite(run_id=run.id, fence=run.fence, operations=(call,)) for call in calls))


def locked(tx: Transaction, run: Run) -> list[Run]:
    return list(tx.runs.lock_many([run.id]).values())


def status(tx: Transaction, run: Run) -> RunStatus:
    return replace(locked(tx, run)[0]).status


GUARDS: Final[dict[Race, tuple[object, str, object, object]]] = {
    a_holder_that_was_passed_by_writes: (Run, "admits", lambda *_: Admission.HOLDER, [WriteOutcome.STALE]),
    two_workers_claim_one_run: (claims, "is_held", lambda *_: False, "told that it is busy"),
    what_a_run_waits_for_comes_about_before_it_parks: (claims, "is_over", lambda *_: False, RunStatus.PENDING),
    a_worker_claims_a_run_whose_cancel_was_first: (Run, "is_claimable", lambda *_, **__: True, "refused"),
    a_word_leaves_while_the_frontier_is_frozen: (apply, "_frozen", lambda *_: {}, [WriteOutcome.STALE]),
    two_calls_reach_for_the_last_unit: (
        *(apply, "_move_budgets", lambda *_: True),
        [WriteOutcome.APPLIED, WriteOutcome.OVER_BUDGET],
    ),
}
"""Race → where its guard is, what stands there without it, and how the race ends with it."""


@pytest.mark.req("QA-07", "RR-05", "C13", "ST-13", "RR-06", "RR-29")
@pytest.mark.parametrize("race", GUARDS, ids=lambda race: race.__name__)
def test_a_race_ends_well_with_its_guard_and_otherwise_without_it(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    module, guard, without, ends_well = GUARDS[race]
    assert race(World()) == ends_well
    monkeypatch.setattr(module, guard, without)
    assert race(World()) != ends_well
