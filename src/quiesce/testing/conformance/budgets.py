"""Budgets: reserved with the row that needs them, by the run and all its ancestors or by none; moved once per row."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.budgets import Allowance, Amounts
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class BudgetsContract(StoreContract):
    """`RunWrite.operations` with `reserved` and `used`: `Applied | OverBudget`."""

    @proves("RR-19")
    def test_a_reservation_is_stored_with_its_row(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 2})
        store.add(run)
        assert store.write(_write(make, run, reserved={"calls": 1})) == [WriteOutcome.APPLIED]
        assert _calls(store, run) == Allowance(unit="calls", limit=2, used=0, reserved=1)

    @proves("RR-19")
    def test_a_write_applied_twice_moves_a_budget_once(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 5})
        store.add(run)
        sealed = _write(make, run, reserved={"calls": 2})
        settled = _write(make, run, status=OperationStatus.COMMITTED, used={"calls": 1})
        for write in (sealed, sealed):
            assert store.write(write, write) == [WriteOutcome.APPLIED] * 2
        assert _calls(store, run) == Allowance(unit="calls", limit=5, used=0, reserved=2)
        for write in (settled, settled):
            assert store.write(write, write) == [WriteOutcome.APPLIED] * 2
        assert _calls(store, run) == Allowance(unit="calls", limit=5, used=1, reserved=0)

    @proves("RR-19")
    def test_a_reservation_stays_until_its_result_is_known(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 1})
        store.add(run)
        for status in (OperationStatus.SEALED, OperationStatus.DISPATCHED, OperationStatus.UNKNOWN):
            store.write(_write(make, run, status=status, reserved={"calls": 1}))
            assert _calls(store, run) == Allowance(unit="calls", limit=1, used=0, reserved=1)

    @proves("RR-06")
    def test_a_reservation_that_does_not_fit_stores_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 1, "tokens": 100})
        store.add(run)
        store.write(_write(make, run, reserved={"calls": 1}))
        before = store.everything_of(run)
        too_much = replace(
            _write(make, run, "2", reserved={"calls": 1, "tokens": 5}),
            events=make.texts(run, "a"),
            checkpoints=(make.checkpoint(run),),
            artifacts=(make.artifact(run),),
            reserve_seq=9,
        )
        assert store.write(too_much) == [WriteOutcome.OVER_BUDGET]
        assert store.everything_of(run) == before

    def test_exactly_what_is_left_may_be_reserved(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 3})
        store.add(run)
        assert store.write(_write(make, run, reserved={"calls": 4})) == [WriteOutcome.OVER_BUDGET]
        assert store.write(_write(make, run, reserved={"calls": 3})) == [WriteOutcome.APPLIED]
        assert store.write(_write(make, run, "2", reserved={"calls": 1})) == [WriteOutcome.OVER_BUDGET]

    @proves("RR-06")
    def test_of_two_reservations_in_one_batch_only_what_fits_is_granted(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 1})
        store.add(run)
        writes = [_write(make, run, position, reserved={"calls": 1}) for position in ("1", "2", "3")]
        outcomes = store.write(*writes)
        assert sorted(outcomes) == [WriteOutcome.APPLIED, WriteOutcome.OVER_BUDGET, WriteOutcome.OVER_BUDGET]
        assert len(store.read(lambda tx: tx.operations.of_run(run.id))) == 1
        assert _calls(store, run).reserved == 1

    def test_a_unit_without_an_allowance_is_counted_and_not_limited(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        settled = _write(make, run, status=OperationStatus.COMMITTED, used={"tokens": 10**9})
        assert store.write(settled) == [WriteOutcome.APPLIED]
        assert store.run(run.id).budget.of("tokens") == Allowance(unit="tokens", used=10**9)

    def test_use_beyond_the_reservation_is_counted_in_full(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 5})
        store.add(run)
        store.write(_write(make, run, reserved={"calls": 1}))
        settled = _write(make, run, status=OperationStatus.COMMITTED, used={"calls": 9})
        assert store.write(settled) == [WriteOutcome.APPLIED]
        assert _calls(store, run) == Allowance(unit="calls", limit=5, used=9, reserved=0)

    def test_giving_back_a_reservation_makes_room(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 2})
        store.add(run)
        store.write(_write(make, run, reserved={"calls": 2}))
        store.write(_write(make, run, status=OperationStatus.COMMITTED, used={"calls": 1}))
        assert store.write(_write(make, run, "2", reserved={"calls": 1})) == [WriteOutcome.APPLIED]
        assert _calls(store, run) == Allowance(unit="calls", limit=2, used=1, reserved=1)

    def test_a_result_that_used_nothing_gives_its_reservation_back(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 1})
        store.add(run)
        store.write(_write(make, run, reserved={"calls": 1}))
        assert store.write(_write(make, run, status=OperationStatus.COMMITTED)) == [WriteOutcome.APPLIED]
        assert _calls(store, run) == Allowance(unit="calls", limit=1, used=0, reserved=0)

    @proves("RR-19", "RR-31")
    def test_a_row_that_is_passed_over_moves_no_budget(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 5})
        store.add(run)
        sealed = _write(make, run, reserved={"calls": 2})
        settled = _write(make, run, status=OperationStatus.COMMITTED, used={"calls": 1})
        store.write(sealed)
        store.write(settled)
        assert store.write(sealed) == [WriteOutcome.APPLIED]
        assert _calls(store, run) == Allowance(unit="calls", limit=5, used=1, reserved=0)

    def test_of_two_rows_of_one_position_in_one_write_the_last_moves_the_budget(
        self, store: StoreUnderTest, make: Samples
    ) -> None:
        run = make.running(limits={"calls": 5})
        store.add(run)
        sealed = make.operation(run, reserved={"calls": 2})
        settled = make.operation(run, status=OperationStatus.COMMITTED, used={"calls": 1})
        write = RunWrite(run_id=run.id, fence=run.fence, operations=(sealed, settled))
        assert store.write(write, write) == [WriteOutcome.APPLIED] * 2
        assert _calls(store, run) == Allowance(unit="calls", limit=5, used=1, reserved=0)

    @proves("RR-19")
    def test_a_child_draws_on_each_of_its_ancestors(self, store: StoreUnderTest, make: Samples) -> None:
        root, child, grandchild = _family(store, make, root=10, child=10, grandchild=10)
        write = replace(_write(make, grandchild, reserved={"calls": 2}), ancestors=(root.id, child.id))
        assert store.write(write, write) == [WriteOutcome.APPLIED] * 2
        assert [_calls(store, run).reserved for run in (root, child, grandchild)] == [2, 2, 2]
        settled = _write(make, grandchild, status=OperationStatus.COMMITTED, used={"calls": 1})
        store.write(replace(settled, ancestors=(root.id, child.id)))
        assert [(_calls(store, run).used, _calls(store, run).reserved) for run in (root, child, grandchild)] == [(1, 0)] * 3

    @proves("RR-19")
    @pytest.mark.parametrize("short", ["root", "child", "grandchild"])
    def test_all_ancestors_grant_a_reservation_or_none(self, store: StoreUnderTest, make: Samples, short: str) -> None:
        family = _family(store, make, **{"root": 9, "child": 9, "grandchild": 9, short: 1})
        root, child, grandchild = family
        before = store.everything_of(*family)
        write = replace(_write(make, grandchild, reserved={"calls": 2}), ancestors=(root.id, child.id))
        assert store.write(write) == [WriteOutcome.OVER_BUDGET]
        assert store.everything_of(*family) == before

    def test_siblings_in_one_batch_share_what_their_parent_has_left(self, store: StoreUnderTest, make: Samples) -> None:
        root = make.running(limits={"calls": 3})
        children = [make.running(parent=root) for _ in range(3)]
        store.add(root, *children)
        writes = [replace(_write(make, child, reserved={"calls": 2}), ancestors=(root.id,)) for child in children]
        assert sorted(store.write(*writes)) == [
            WriteOutcome.APPLIED,
            WriteOutcome.OVER_BUDGET,
            WriteOutcome.OVER_BUDGET,
        ]
        assert _calls(store, root).reserved == 2

    @proves("RR-06")
    def test_a_stale_holder_moves_no_budget(self, store: StoreUnderTest, make: Samples) -> None:
        root = make.running(limits={"calls": 3})
        child = make.running(parent=root, limits={"calls": 3})
        store.add(root, child)
        store.save(child.claimed(make.worker().id))
        before = store.everything_of(root, child)
        write = replace(_write(make, child, reserved={"calls": 1}), ancestors=(root.id,))
        assert store.write(write) == [WriteOutcome.STALE]
        assert store.everything_of(root, child) == before


def _family(store: StoreUnderTest, make: Samples, *, root: int, child: int, grandchild: int) -> tuple[Run, Run, Run]:
    """Store a run, its child and its grandchild, with so many calls each."""
    first = make.running(limits={"calls": root})
    second = make.running(parent=first, limits={"calls": child})
    third = make.running(parent=second, limits={"calls": grandchild})
    store.add(first, second, third)
    return first, second, third


def _write(
    make: Samples,
    run: Run,
    position: str = "1",
    *,
    status: OperationStatus = OperationStatus.SEALED,
    reserved: Amounts | None = None,
    used: Amounts | None = None,
) -> RunWrite:
    operation = make.operation(run, position, status=status, reserved=reserved, used=used)
    return RunWrite(run_id=run.id, fence=run.fence, operations=(operation,))


def _calls(store: StoreUnderTest, run: Run) -> Allowance:
    return store.run(run.id).budget.of("calls")
