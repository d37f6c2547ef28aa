"""C, P and T: each written once per run, found by what names it, chained along the thread."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import Occurrence, PersistenceOutcome, Reason
from quiesce.domain.ids import OccurrenceId, ReceiptId, RunId
from quiesce.domain.terminal import TerminalReceipt
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples, make_frontier


class TerminalContract(StoreContract):
    """`Terminal`."""

    @proves("TR-05")
    @pytest.mark.parametrize("reason", list(Reason))
    def test_an_occurrence_is_read_back_as_it_was_added(self, store: StoreUnderTest, make: Samples, reason: Reason) -> None:
        run = make.running()
        store.add(run)
        occurrence = replace(make.occurrence(run, reason=reason, text="changed my mind 🙂"), origin_id=OccurrenceId(make.id()))
        assert store.transact(lambda tx: tx.terminal.add_occurrence(occurrence))
        assert store.read(lambda tx: tx.terminal.occurrence(run.id)) == occurrence

    @proves("TR-05", "TR-16")
    def test_a_run_ends_for_one_cause_only(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        first, second = make.occurrence(run), make.occurrence(run, reason=Reason.DEADLINE)
        assert store.transact(lambda tx: tx.terminal.add_occurrence(first))
        assert not store.transact(lambda tx: tx.terminal.add_occurrence(second))
        assert not store.transact(lambda tx: tx.terminal.add_occurrence(first))
        assert store.read(lambda tx: tx.terminal.occurrence(run.id)) == first

    def test_occurrences_returns_those_that_exist(self, store: StoreUnderTest, make: Samples) -> None:
        ended, other, active = make.running(), make.running(), make.running()
        store.add(ended, other, active)
        occurrence = make.occurrence(ended)
        store.transact(lambda tx: tx.terminal.add_occurrence(occurrence))
        store.transact(lambda tx: tx.terminal.add_occurrence(make.occurrence(other)))
        assert store.read(lambda tx: tx.terminal.occurrences([active.id, ended.id])) == {ended.id: occurrence}
        assert store.read(lambda tx: tx.terminal.occurrences([])) == {}
        assert store.read(lambda tx: tx.terminal.occurrence(active.id)) is None

    @proves("TR-06", "TR-10", "TR-17")
    def test_an_outcome_is_found_by_the_occurrence_it_names(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        numbers = make_frontier(covered=2, stored=5, emitted=9, exact=False, state_bearing_stored=3, pending_writes=1)
        occurrence, outcome = _ending(store, make, run.id)
        of_run = replace(
            make.outcome(occurrence, numbers),
            cleanup_attempted=True,
            cleanup_completed=False,
            escalated=True,
            established_by="recovery",
        )
        _, of_other = _ending(store, make, other.id)
        assert store.transact(lambda tx: tx.terminal.add_outcome(of_run))
        assert store.transact(lambda tx: tx.terminal.add_outcome(of_other))
        assert store.read(lambda tx: tx.terminal.outcome(occurrence.id)) == of_run
        assert store.read(lambda tx: tx.terminal.outcome(OccurrenceId(make.id()))) is None
        assert outcome.id != of_run.id

    @proves("TR-16", "TR-58")
    def test_an_outcome_is_established_once(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        occurrence, outcome = _ending(store, make, run.id)
        assert store.transact(lambda tx: tx.terminal.add_outcome(outcome))
        assert not store.transact(lambda tx: tx.terminal.add_outcome(make.outcome(occurrence)))
        assert store.read(lambda tx: tx.terminal.outcome(occurrence.id)) == outcome

    @proves("TR-02", "TR-14")
    def test_a_receipt_is_read_back_with_its_digest_intact(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running(limits={"calls": 3})
        store.add(run)
        occurrence, _ = _ending(store, make, run.id)
        outcome = make.outcome(occurrence, make_frontier(covered=1, stored=2, emitted=4, state_bearing_stored=1))
        operation = make.operation(run)
        receipt = make.receipt(run, occurrence, outcome, unresolved=(operation.to_json(),))
        store.transact(lambda tx: tx.terminal.add_outcome(outcome))
        assert store.transact(lambda tx: tx.terminal.add_receipt(receipt))
        stored = store.read(lambda tx: tx.terminal.receipt(run.id))
        assert stored is not None
        assert stored.to_json() == receipt.to_json()
        assert stored.h3() == stored.digest == receipt.digest
        assert stored == receipt
        assert store.read(lambda tx: tx.terminal.receipt_by_id(receipt.id)) == receipt

    def test_a_receipt_that_is_not_there_is_none(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        assert store.read(lambda tx: tx.terminal.receipt(run.id)) is None
        assert store.read(lambda tx: tx.terminal.receipt_by_id(ReceiptId(make.id()))) is None
        assert store.read(lambda tx: tx.terminal.last_of_thread(run.thread_id)) is None

    @proves("TR-16")
    def test_a_receipt_is_published_once(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        receipt = _publish(store, make, run.id)
        again = replace(receipt, id=ReceiptId(make.id()), reason_text="on second thoughts")
        assert not store.transact(lambda tx: tx.terminal.add_receipt(again))
        assert not store.transact(lambda tx: tx.terminal.add_receipt(replace(receipt, escalated=True)))
        assert store.read(lambda tx: tx.terminal.receipt(run.id)) == receipt
        assert store.read(lambda tx: tx.terminal.receipt_by_id(again.id)) is None

    @proves("TR-16")
    def test_the_next_receipt_of_a_thread_is_chained_to_the_newest(self, store: StoreUnderTest, make: Samples) -> None:
        thread, other = make.thread(), make.run()
        runs = [make.run(thread_id=thread.id, number=n + 1) for n in range(3)]
        store.add(*runs, other)
        previous: TerminalReceipt | None = None
        for run in runs:
            assert store.read(lambda tx: tx.terminal.last_of_thread(thread.id)) == previous
            previous = _publish(store, make, run.id, previous)
        _publish(store, make, other.id)
        assert store.read(lambda tx: tx.terminal.last_of_thread(thread.id)) == previous


def _ending(store: StoreUnderTest, make: Samples, run_id: RunId) -> tuple[Occurrence, PersistenceOutcome]:
    """Record C of a run; return it with a P that names it."""
    occurrence = make.occurrence(store.run(run_id))
    store.transact(lambda tx: tx.terminal.add_occurrence(occurrence))
    return occurrence, make.outcome(occurrence)


def _publish(store: StoreUnderTest, make: Samples, run_id: RunId, previous: TerminalReceipt | None = None) -> TerminalReceipt:
    """Record C, P and T of a run; return T."""
    occurrence, outcome = _ending(store, make, run_id)
    receipt = make.receipt(store.run(run_id), occurrence, outcome, previous=previous)
    assert store.transact(lambda tx: (tx.terminal.add_outcome(outcome), tx.terminal.add_receipt(receipt))) == (True, True)
    return receipt
