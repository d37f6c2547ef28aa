"""Batches of write values: what one write of a batch has changed counts for the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.stores.apply import apply_writes
from quiesce.stores.memory import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples

APPLIED, EVIDENCE, STALE, OVER_BUDGET = WriteOutcome


@pytest.fixture
def make() -> Samples:
    return Samples()


def store_with(*runs: Run) -> MemoryStore:
    def fn(tx: Transaction) -> None:
        for run in runs:
            tx.runs.insert(run)
            tx.streams.open(run.id)

    store = MemoryStore(ManualClock())
    store.transact_blocking(fn)
    return store


def applied(store: MemoryStore, *writes: RunWrite) -> list[WriteOutcome]:
    return store.transact_blocking(lambda tx: apply_writes(tx, writes))


def calls(store: MemoryStore, run: Run) -> tuple[int, int]:
    stored = store.transact_blocking(lambda tx: tx.runs.get(run.id))
    assert stored is not None
    return stored.budget.of("calls").used, stored.budget.of("calls").reserved


def write_of(make: Samples, run: Run, position: str = "1", **amounts: int) -> RunWrite:
    """Make a write that reserves or, if it has `used`, settles."""
    used = {"calls": amounts["used"]} if "used" in amounts else {}
    reserved = {"calls": amounts["reserved"]} if "reserved" in amounts else {}
    status = OperationStatus.COMMITTED if used else OperationStatus.SEALED
    row = make.operation(run, position, status=status, used=used, reserved=reserved)
    return RunWrite(run_id=run.id, fence=run.fence, operations=(row,))


def test_an_empty_batch_answers_nothing() -> None:
    assert applied(store_with()) == []


@pytest.mark.req("RR-19")
def test_the_same_reservation_twice_in_one_batch_is_drawn_once(make: Samples) -> None:
    run = make.running(limits={"calls": 3})
    store = store_with(run)
    write = write_of(make, run, reserved=2)
    assert applied(store, write, write) == [APPLIED, APPLIED]
    assert calls(store, run) == (0, 2)


@pytest.mark.req("RR-19")
def test_a_reservation_and_its_settlement_may_share_a_batch(make: Samples) -> None:
    run = make.running(limits={"calls": 3})
    store = store_with(run)
    assert applied(store, write_of(make, run, reserved=3), write_of(make, run, used=1)) == [APPLIED, APPLIED]
    assert calls(store, run) == (1, 0)


@pytest.mark.req("RR-31")
def test_nothing_is_drawn_for_a_row_whose_result_came_earlier_in_the_batch(make: Samples) -> None:
    run = make.running(limits={"calls": 3})
    store = store_with(run)
    settled = make.operation(run, status=OperationStatus.COMMITTED)
    result = RunWrite(run_id=run.id, fence=run.fence, operations=(settled,))
    assert applied(store, result, write_of(make, run, reserved=2)) == [APPLIED, APPLIED]
    assert calls(store, run) == (0, 0)


@pytest.mark.req("RR-06")
def test_reservations_of_one_batch_see_each_other(make: Samples) -> None:
    run = make.running(limits={"calls": 3})
    store = store_with(run)
    writes = [write_of(make, run, str(n), reserved=2) for n in range(3)]
    assert applied(store, *writes, write_of(make, run, "small", reserved=1)) == [APPLIED, OVER_BUDGET, OVER_BUDGET, APPLIED]
    assert calls(store, run) == (0, 3)


@pytest.mark.req("RR-06")
def test_siblings_of_one_batch_draw_on_the_same_parent(make: Samples) -> None:
    parent = make.running(limits={"calls": 3})
    children = [make.running(parent=parent) for _ in range(3)]
    store = store_with(parent, *children)
    writes = [replace(write_of(make, child, reserved=2), ancestors=(parent.id,)) for child in reversed(children)]
    assert applied(store, *writes) == [APPLIED, OVER_BUDGET, OVER_BUDGET]
    assert calls(store, parent) == (0, 2)
    assert [calls(store, child) for child in children] == [(0, 0), (0, 0), (0, 2)]


@pytest.mark.req("RR-19", "TR-21")
def test_evidence_settles_its_reservation_and_may_not_draw_more_than_is_left(make: Samples) -> None:
    run = make.running(make.worker(), limits={"calls": 3})
    store = store_with(run)
    assert applied(store, write_of(make, run, reserved=2)) == [APPLIED]

    def fence(tx: Transaction) -> None:
        held = tx.runs.lock(run.id)
        assert held is not None
        tx.runs.save(held.fenced_for_settlement(settle_at=make.now))

    store.transact_blocking(fence)
    unknown = make.operation(run, "2", status=OperationStatus.UNKNOWN, reserved={"calls": 2})
    late = RunWrite(run_id=run.id, fence=run.fence, operations=(unknown,))
    assert applied(store, late, write_of(make, run, used=2)) == [OVER_BUDGET, EVIDENCE]
    assert calls(store, run) == (2, 0)


@pytest.mark.req("RR-05")
def test_a_refused_write_takes_nothing_of_its_batch_with_it(make: Samples) -> None:
    held, lost = make.running(), make.running()
    store = store_with(held, lost.claimed(make.worker().id))
    outcomes = applied(
        store,
        RunWrite(run_id=lost.id, fence=lost.fence, events=make.texts(lost, "late")),
        RunWrite(run_id=held.id, fence=held.fence, events=make.texts(held, "a", "b")),
    )
    assert outcomes == [STALE, APPLIED]
    states = store.transact_blocking(lambda tx: tx.streams.states([held.id, lost.id]))
    assert {run_id: state.stored_seq for run_id, state in states.items()} == {held.id: 2, lost.id: 0}
