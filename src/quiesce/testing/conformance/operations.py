"""The journal: rows replaced until they hold a result, never after."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus, ResultKind, Try
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples

_RESULTS = (OperationStatus.COMMITTED, OperationStatus.CONSUMED)
_OPEN = (OperationStatus.SEALED, OperationStatus.DISPATCHED, OperationStatus.UNKNOWN)


class OperationsContract(StoreContract):
    """`Operations`."""

    @proves("RR-09")
    @pytest.mark.parametrize("status", list(OperationStatus))
    @pytest.mark.parametrize("kind", list(OperationKind))
    def test_an_operation_is_read_back_as_it_was_put(
        self, store: StoreUnderTest, make: Samples, kind: OperationKind, status: OperationStatus
    ) -> None:
        run = make.running()
        store.add(run)
        operation = make.operation(run, "1.2.3", kind=kind, status=status, policy=EffectPolicy.PROBE)
        _put(store, operation)
        assert store.read(lambda tx: tx.operations.get(run.id, Position("1.2.3"))) == operation

    def test_every_field_is_kept(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        tries = (
            Try(number=1, fence=run.fence, started_at=make.now, error="timed out", ended_at=after_ms(make.now, 5)),
            Try(number=2, fence=run.fence, started_at=after_ms(make.now, 9)),
        )
        operation = replace(
            make.operation(run, status=OperationStatus.COMMITTED, reserved={"calls": 1}, used={"calls": 1, "tokens": 7}),
            due_at=after_ms(make.now, 100),
            result_kind=ResultKind.GIVEN_UP,
            tries=tries,
        )
        _put(store, operation)
        assert store.read(lambda tx: tx.operations.get(run.id, operation.position)) == operation

    def test_an_operation_that_is_not_there_is_none(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        _put(store, make.operation(run, "1"))
        assert store.read(lambda tx: tx.operations.get(run.id, Position("2"))) is None
        assert store.read(lambda tx: tx.operations.get(RunId(make.id()), Position("1"))) is None

    @pytest.mark.parametrize("later", list(OperationStatus))
    @pytest.mark.parametrize("earlier", _OPEN)
    def test_a_row_without_a_result_is_replaced(
        self, store: StoreUnderTest, make: Samples, earlier: OperationStatus, later: OperationStatus
    ) -> None:
        run = make.running()
        store.add(run)
        _put(store, make.operation(run, status=earlier, reserved={"calls": 1}))
        new = make.operation(run, status=later, used={"calls": 1})
        _put(store, new)
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [new]

    @proves("RR-31", "RR-11")
    @pytest.mark.parametrize("later", list(OperationStatus))
    @pytest.mark.parametrize("earlier", _RESULTS)
    def test_a_put_never_replaces_a_result(
        self, store: StoreUnderTest, make: Samples, earlier: OperationStatus, later: OperationStatus
    ) -> None:
        run = make.running()
        store.add(run)
        stored = make.operation(run, status=earlier, result="the first", used={"calls": 1})
        _put(store, stored)
        _put(store, replace(make.operation(run, status=later, result="another"), used={"calls": 2}))
        assert store.read(lambda tx: tx.operations.get(run.id, stored.position)) == stored

    def test_the_last_row_of_a_position_wins_within_one_put(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        rows = [make.operation(run, status=status) for status in (*_OPEN[:2], OperationStatus.COMMITTED)]
        _put(store, *rows)
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [rows[-1]]

    @proves("RR-31")
    def test_within_one_put_too_nothing_follows_a_result(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        settled = make.operation(run, status=OperationStatus.COMMITTED, result="the first")
        _put(store, settled, make.operation(run, status=OperationStatus.COMMITTED, result="the second"))
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [settled]

    def test_the_journal_keeps_the_order_in_which_its_rows_were_first_stored(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        rows = [make.operation(run, position) for position in ("10", "9", "1.1", "2")]
        _put(store, *rows[:3], make.operation(other, "5"))
        again = make.operation(run, "10", status=OperationStatus.DISPATCHED)
        _put(store, rows[3], again)
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [again, *rows[1:]]

    def test_the_journal_of_a_run_without_operations_is_empty(self, store: StoreUnderTest, make: Samples) -> None:
        assert store.read(lambda tx: tx.operations.of_run(RunId(make.id()))) == []

    def test_get_many_returns_those_that_exist(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        rows = [make.operation(run, "1"), make.operation(run, "2"), make.operation(other, "1")]
        _put(store, *rows)
        keys = [(other.id, Position("1")), (run.id, Position("2")), (other.id, Position("2")), (run.id, Position("2"))]
        found = store.read(lambda tx: tx.operations.get_many(keys))
        assert _sorted(found) == _sorted([rows[1], rows[2]])
        assert store.read(lambda tx: tx.operations.get_many([])) == []

    @proves("RR-09")
    def test_a_committed_operation_is_consumed_and_keeps_its_result(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        committed = make.operation(run, status=OperationStatus.COMMITTED)
        untouched = make.operation(other, status=OperationStatus.COMMITTED)
        _put(store, committed, untouched)
        store.transact(lambda tx: tx.operations.consume_many([(run.id, committed.position)]))
        consumed = replace(committed, status=OperationStatus.CONSUMED)
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [consumed]
        assert store.read(lambda tx: tx.operations.of_run(other.id)) == [untouched]

    @pytest.mark.parametrize("status", [*_OPEN, OperationStatus.CONSUMED])
    def test_consuming_leaves_what_is_not_committed_alone(
        self, store: StoreUnderTest, make: Samples, status: OperationStatus
    ) -> None:
        run = make.running()
        store.add(run)
        operation = make.operation(run, status=status)
        _put(store, operation)
        store.transact(lambda tx: tx.operations.consume_many([(run.id, operation.position), (run.id, Position("9"))]))
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [operation]

    @proves("TR-43", "TR-64")
    def test_unresolved_are_the_calls_that_may_have_acted(self, store: StoreUnderTest, make: Samples) -> None:
        run, child, stranger = make.running(), make.running(), make.running()
        store.add(run, child, stranger)
        every = [
            make.operation(run, f"{kind}.{policy}.{status}", kind=kind, policy=policy, status=status)
            for kind in OperationKind
            for policy in EffectPolicy
            for status in OperationStatus
        ]
        of_child = make.operation(child, status=OperationStatus.DISPATCHED)
        _put(store, *every, of_child, make.operation(stranger, status=OperationStatus.UNKNOWN))
        found = store.read(lambda tx: tx.operations.unresolved([run.id, child.id]))
        assert _sorted(found) == _sorted([*(o for o in every if o.may_have_acted), of_child])
        assert store.read(lambda tx: tx.operations.unresolved([])) == []

    def test_amounts_of_zero_units_and_of_many_are_kept(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        none = make.operation(run, "1")
        many = make.operation(run, "2", reserved={f"unit {n}": n for n in range(20)}, used={"usd_micros": 2**53 - 1})
        _put(store, none, replace(many, arguments=canonical([])))
        stored = store.read(lambda tx: tx.operations.of_run(run.id))
        assert [dict(o.reserved) for o in stored] == [{}, {f"unit {n}": n for n in range(20)}]
        assert dict(stored[1].used) == {"usd_micros": 2**53 - 1}


def _put(store: StoreUnderTest, *operations: Operation) -> None:
    store.transact(lambda tx: tx.operations.put_many(operations))


def _sorted(operations: list[Operation]) -> list[Operation]:
    return sorted(operations, key=lambda o: (o.run_id, o.position))
