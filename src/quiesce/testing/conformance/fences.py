"""Fences: what a holder may write, what one that lost may not, and what a settling run still takes as evidence."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.ids import Fence, Position
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import OperationStatus, ResultKind
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples

ROWS = ("sealed", "dispatched", "committed", "events", "checkpoints", "artifacts", "consumed", "reserve_seq")
"""Every kind of row that a holder writes."""


class FencesContract(StoreContract):
    """`Store.write` and `Transaction.apply`: `Applied | Evidence | Stale`."""

    @proves("RR-05", "RR-08")
    @pytest.mark.parametrize("rows", ROWS)
    def test_a_holder_writes_every_kind_of_row(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        run = _running_with_a_result(store, make)
        before = store.everything_of(run)
        write = _write_of(make, run, rows)
        assert store.write(write) == [WriteOutcome.APPLIED]
        after = store.everything_of(run)
        assert after != before
        assert store.write(write) == [WriteOutcome.APPLIED]
        assert store.everything_of(run) == after, "the same write, handed in again, changes nothing"

    @proves("RR-05", "RR-06", "RR-08", "CC-34")
    @pytest.mark.parametrize("rows", ROWS)
    def test_a_stale_holder_changes_nothing(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        old = _running_with_a_result(store, make)
        store.save(old.claimed(make.worker().id))
        before = store.everything_of(old)
        assert store.write(_write_of(make, old, rows)) == [WriteOutcome.STALE]
        assert store.everything_of(old) == before

    @proves("RR-05")
    @pytest.mark.parametrize("rows", ROWS)
    def test_a_fence_from_the_future_changes_nothing(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        run = _running_with_a_result(store, make)
        before = store.everything_of(run)
        write = replace(_write_of(make, run, rows), fence=Fence(run.fence + 1))
        assert store.write(write) == [WriteOutcome.STALE]
        assert store.everything_of(run) == before

    @proves("RR-05", "RR-29")
    @pytest.mark.parametrize("state", ["released", "waiting", "pending", "completed", "cancelled", "failed"])
    def test_nobody_writes_to_a_run_that_does_not_run(self, store: StoreUnderTest, make: Samples, state: str) -> None:
        run = _running_with_a_result(store, make)
        settling = run.fenced_for_settlement(settle_at=make.now)
        states = {
            "released": run.released(),
            "waiting": run.parked(()),
            "pending": run.parked(()).woken(),
            **{status: settling.ended(RunStatus(status), make.now) for status in ("completed", "cancelled", "failed")},
        }
        store.save(states[state])
        before = store.everything_of(run)
        for rows in ROWS:
            for fence in (run.fence, states[state].fence):
                write = replace(_write_of(make, run, rows), fence=fence, closes_step=True)
                assert store.write(write) == [WriteOutcome.STALE]
        assert store.everything_of(run) == before

    def test_a_write_to_a_run_that_is_not_there_is_stale(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        assert store.write(_write_of(make, run, "sealed")) == [WriteOutcome.STALE]
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == []

    @proves("RR-05")
    def test_a_refused_write_takes_nothing_with_it(self, store: StoreUnderTest, make: Samples) -> None:
        lost, held = _running_with_a_result(store, make), _running_with_a_result(store, make)
        store.save(lost.claimed(make.worker().id))
        before = store.everything_of(lost)
        outcomes = store.write(_write_of_all(make, lost), _write_of_all(make, held), _write_of(make, lost, "events"))
        assert outcomes == [WriteOutcome.STALE, WriteOutcome.APPLIED, WriteOutcome.STALE]
        assert store.everything_of(lost) == before
        assert store.read(lambda tx: tx.checkpoints.last(held.id)) is not None

    def test_writes_of_one_run_in_one_batch_are_applied_in_order(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        rows = [make.operation(run, status=status) for status in (OperationStatus.SEALED, OperationStatus.DISPATCHED)]
        settled = make.operation(run, status=OperationStatus.COMMITTED)

        def apply_all(tx: Transaction) -> list[WriteOutcome]:
            write = RunWrite(run_id=run.id, fence=run.fence)
            return [tx.apply(replace(write, operations=(row,))) for row in (*rows, settled)]

        assert store.transact(apply_all) == [WriteOutcome.APPLIED] * 3
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [settled]

    def test_a_result_may_travel_with_its_consumption(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        settled = make.operation(run, status=OperationStatus.COMMITTED)
        write = RunWrite(run_id=run.id, fence=run.fence, operations=(settled,), consumed=(settled.position,))
        assert store.write(write, write) == [WriteOutcome.APPLIED] * 2
        consumed = replace(settled, status=OperationStatus.CONSUMED)
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [consumed]

    def test_a_decision_applies_a_write_under_the_same_rule(self, store: StoreUnderTest, make: Samples) -> None:
        run = _running_with_a_result(store, make)
        write = _write_of(make, run, "checkpoints")
        assert store.transact(lambda tx: tx.apply(replace(write, fence=Fence(run.fence - 1)))) is WriteOutcome.STALE
        assert store.read(lambda tx: tx.checkpoints.last(run.id)) is None
        assert store.transact(lambda tx: tx.apply(write)) is WriteOutcome.APPLIED
        assert store.read(lambda tx: tx.checkpoints.last(run.id)) == write.checkpoints[0]

    def test_a_write_applied_by_a_decision_that_raises_is_taken_back(self, store: StoreUnderTest, make: Samples) -> None:
        run = _running_with_a_result(store, make)
        before = store.everything_of(run)

        def fn(tx: Transaction) -> None:
            assert tx.apply(_write_of_all(make, run)) is WriteOutcome.APPLIED
            raise LookupError

        with pytest.raises(LookupError):
            store.transact(fn)
        assert store.everything_of(run) == before

    def test_an_empty_write_of_a_holder_is_applied(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        assert store.write(RunWrite(run_id=run.id, fence=run.fence)) == [WriteOutcome.APPLIED]


class EvidenceAdmissionContract(StoreContract):
    """What a settling run still takes from the holder that its cancel fenced out: evidence, and nothing that begins."""

    @proves("TR-21", "RR-32")
    @pytest.mark.parametrize(
        ("rows", "outcome"),
        [
            ("sealed", WriteOutcome.STALE),
            ("dispatched", WriteOutcome.STALE),
            ("committed", WriteOutcome.EVIDENCE),
            ("events", WriteOutcome.EVIDENCE),
            ("checkpoints", WriteOutcome.STALE),
            ("artifacts", WriteOutcome.EVIDENCE),
            ("consumed", WriteOutcome.STALE),
            ("reserve_seq", WriteOutcome.STALE),
        ],
    )
    def test_while_settling_only_evidence_is_admitted(
        self, store: StoreUnderTest, make: Samples, rows: str, outcome: WriteOutcome
    ) -> None:
        run = _settling(store, make)
        before = store.everything_of(run)
        assert store.write(_write_of(make, run, rows)) == [outcome]
        assert (store.everything_of(run) != before) is outcome.is_applied

    @proves("TR-21")
    def test_an_effect_that_cannot_be_told_is_evidence_too(self, store: StoreUnderTest, make: Samples) -> None:
        run = _settling(store, make)
        unknown = make.operation(run, "2", status=OperationStatus.UNKNOWN)
        assert store.write(RunWrite(run_id=run.id, fence=run.fence, operations=(unknown,))) == [WriteOutcome.EVIDENCE]

    def test_evidence_mixed_with_what_begins_is_refused_whole(self, store: StoreUnderTest, make: Samples) -> None:
        run = _settling(store, make)
        before = store.everything_of(run)
        mixed = replace(_write_of(make, run, "events"), operations=_write_of(make, run, "sealed").operations)
        assert store.write(mixed) == [WriteOutcome.STALE]
        assert store.everything_of(run) == before

    @proves("TR-31")
    def test_the_step_that_was_let_finish_brings_its_checkpoint(self, store: StoreUnderTest, make: Samples) -> None:
        run = _settling(store, make)
        write = replace(_write_of(make, run, "checkpoints"), closes_step=True)
        assert store.write(write) == [WriteOutcome.EVIDENCE]
        assert store.read(lambda tx: tx.checkpoints.last(run.id)) == write.checkpoints[0]

    @pytest.mark.parametrize("rows", ["sealed", "dispatched", "consumed", "reserve_seq"])
    def test_the_end_of_a_step_begins_nothing_either(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        run = _settling(store, make)
        assert store.write(replace(_write_of(make, run, rows), closes_step=True)) == [WriteOutcome.STALE]

    @proves("ST-13")
    def test_after_the_freeze_no_later_event_is_stored(self, store: StoreUnderTest, make: Samples) -> None:
        run = _settling(store, make)
        events = make.texts(run, "a", "b", "c")
        store.transact(lambda tx: tx.streams.freeze(run.id, 2, exact=True))
        write = RunWrite(run_id=run.id, fence=run.fence)
        assert store.write(replace(write, events=events)) == [WriteOutcome.STALE]
        assert store.read(lambda tx: tx.streams.read(run.id, after=0, limit=5)) == []
        assert store.write(replace(write, events=events[:2])) == [WriteOutcome.EVIDENCE]
        assert store.write(replace(write, events=events[2:])) == [WriteOutcome.STALE]
        assert store.read(lambda tx: tx.streams.read(run.id, after=0, limit=5)) == list(events[:2])

    def test_after_the_freeze_results_are_still_taken(self, store: StoreUnderTest, make: Samples) -> None:
        run = _settling(store, make)
        store.transact(lambda tx: tx.streams.freeze(run.id, 0, exact=True))
        assert store.write(_write_of(make, run, "committed")) == [WriteOutcome.EVIDENCE]

    @proves("TR-21", "RR-29")
    def test_who_is_fenced_out_is_told_so_even_where_the_write_is_taken(self, store: StoreUnderTest, make: Samples) -> None:
        """An empty write asks nothing but this; in one batch each run is told of itself, and what is taken is counted."""
        settling, held = _settling(store, make), _running_with_a_result(store, make)
        before = store.port.counters.writes
        outcomes = store.write(_write_of(make, settling, "committed"), _write_of(make, held, "committed"))
        assert outcomes == [WriteOutcome.EVIDENCE, WriteOutcome.APPLIED]
        assert store.write(RunWrite(run_id=settling.id, fence=settling.fence)) == [WriteOutcome.EVIDENCE]
        assert store.port.counters.writes == before + 3

    @proves("RR-29", "CC-35")
    @pytest.mark.parametrize("rows", ROWS)
    def test_only_the_holder_that_was_fenced_out_has_evidence(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        run = _settling(store, make)
        before = store.everything_of(run)
        for fence in (run.fence - 1, run.fence + 1):
            write = replace(_write_of(make, run, rows), fence=Fence(fence), closes_step=True)
            assert store.write(write) == [WriteOutcome.STALE]
        assert store.everything_of(run) == before

    @proves("TR-47")
    @pytest.mark.parametrize("rows", ROWS)
    def test_a_run_that_nobody_held_takes_no_evidence(self, store: StoreUnderTest, make: Samples, rows: str) -> None:
        run = make.settling(None, after_ms(make.now, 500))
        store.add(run)
        for fence in (0, 1):
            write = replace(_write_of(make, run, rows), fence=Fence(fence), closes_step=True)
            assert store.write(write) == [WriteOutcome.STALE]


def _running_with_a_result(store: StoreUnderTest, make: Samples) -> Run:
    """Store a running run whose operation 1 is committed and not yet consumed, and whose operation 2 is dispatched."""
    run = make.running(make.worker())
    store.add(run)
    rows = [make.operation(run, "1", status=OperationStatus.COMMITTED)]
    rows.append(make.operation(run, "2", status=OperationStatus.DISPATCHED))
    store.transact(lambda tx: tx.operations.put_many(rows))
    return run


def _settling(store: StoreUnderTest, make: Samples) -> Run:
    """Store such a run, let a cancel fence it, and return it as its holder still knows it."""
    run = _running_with_a_result(store, make)
    store.save(run.fenced_for_settlement(settle_at=after_ms(make.now, 500)))
    return run


def _write_of(make: Samples, run: Run, rows: str) -> RunWrite:
    """Make a write of one kind of row, under the fence of `run`."""
    write = RunWrite(run_id=run.id, fence=run.fence)
    match rows:
        case "sealed" | "dispatched":
            return replace(write, operations=(make.operation(run, "3", status=OperationStatus(rows)),))
        case "committed":
            settled = make.operation(run, "2", status=OperationStatus.COMMITTED)
            failed = replace(settled, result_kind=ResultKind.ERROR, result=canonical({"error": "no"}))
            return replace(write, operations=(failed,))
        case "events":
            return replace(write, events=make.texts(run, "a", "b"))
        case "checkpoints":
            return replace(write, checkpoints=(make.checkpoint(run),))
        case "artifacts":
            return replace(write, artifacts=(make.artifact(run),))
        case "consumed":
            return replace(write, consumed=(Position("1"),))
        case _:
            return replace(write, reserve_seq=256)


def _write_of_all(make: Samples, run: Run) -> RunWrite:
    """Make a write of every kind of row."""
    return RunWrite(
        run_id=run.id,
        fence=run.fence,
        operations=(make.operation(run, "3", reserved={"calls": 1}),),
        events=make.texts(run, "a", "b"),
        checkpoints=(make.checkpoint(run),),
        artifacts=(make.artifact(run),),
        consumed=(Position("1"),),
        reserve_seq=256,
    )
