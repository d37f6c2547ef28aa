"""Transactions: all or nothing, one consistent view, nothing lost between overlapping decisions."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant
from quiesce.domain.operations import OperationStatus, Try
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, everything_of, proves
from quiesce.testing.samples import AGENT, Samples


class _Refused(Exception):
    """Raised by a decision that changes its mind."""


class TransactionsContract(StoreContract):
    """`Store.transact`, `transact_blocking`, `read` and `close`, one at a time."""

    def test_a_decision_returns_its_value(self, store: StoreUnderTest) -> None:
        assert store.transact(lambda _: "decided") == "decided"

    def test_a_decision_sees_what_it_has_written_itself(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()

        def fn(tx: Transaction) -> object:
            tx.workers.insert(worker)
            return tx.workers.get(worker.id)

        assert store.transact(fn) == worker

    def test_time_stands_still_within_a_transaction(self, store: StoreUnderTest) -> None:
        first, second = store.transact(lambda tx: (tx.now, tx.now))
        assert first == second

    def test_time_does_not_go_back_between_transactions(self, store: StoreUnderTest) -> None:
        before = store.transact(lambda tx: tx.now)
        store.clock.advance(5)
        assert store.transact(lambda tx: tx.now) >= before

    @proves("CC-35", "CC-37")
    def test_the_clock_can_be_read_again_while_the_instant_of_the_transaction_stays(self, store: StoreUnderTest) -> None:
        def wait(tx: Transaction) -> tuple[Instant, Instant, Instant]:
            first = tx.read_clock()
            store.clock.advance(1000)
            return first, tx.now, tx.read_clock()

        first, now, again = store.transact(wait)
        assert now <= first < again
        assert store.read(lambda tx: tx.now <= tx.read_clock())

    @proves("CC-20")
    def test_a_decision_that_raises_leaves_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        kept = make.running()
        store.add(kept)
        before = store.everything_of(kept)
        worker, thread, message = make.worker(), make.thread(), make.message(kept)

        def fn(tx: Transaction) -> None:
            tx.threads.insert(thread)
            tx.threads.lock(thread.id)
            tx.runs.lock(kept.id)
            _write_of_every_kind(tx, kept, make)
            tx.workers.insert(worker)
            tx.outbox.append(message)
            raise _Refused

        with pytest.raises(_Refused):
            store.transact(fn)
        assert store.everything_of(kept) == before
        assert store.read(lambda tx: (tx.workers.get(worker.id), tx.threads.get(thread.id))) == (None, None)
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == []

    def test_a_decision_that_raised_does_not_disturb_the_next(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.run()

        with pytest.raises(_Refused):
            store.transact(_refuse)
        store.add(run)
        assert store.run(run.id) == run

    def test_a_removal_is_taken_back_too(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)

        def fn(tx: Transaction) -> None:
            tx.workers.remove(worker.id)
            raise _Refused

        with pytest.raises(_Refused):
            store.transact(fn)
        assert store.read(lambda tx: tx.workers.get(worker.id)) == worker

    def test_a_thread_without_an_event_loop_decides_as_well(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()

        def insert(tx: Transaction) -> str:
            tx.workers.insert(worker)
            return "inserted"

        assert store.wait_for(asyncio.to_thread(store.port.transact_blocking, insert)) == "inserted"
        assert store.read(lambda tx: tx.workers.get(worker.id)) == worker

    def test_a_blocking_decision_that_raises_leaves_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()

        def fn(tx: Transaction) -> None:
            tx.workers.insert(worker)
            raise _Refused

        with pytest.raises(_Refused):
            store.wait_for(asyncio.to_thread(store.port.transact_blocking, fn))
        assert store.read(lambda tx: tx.workers.get(worker.id)) is None

    def test_a_read_that_raises_passes_it_on(self, store: StoreUnderTest) -> None:
        with pytest.raises(_Refused):
            store.read(_refuse)

    def test_closing_twice_is_as_good_as_once(self, store: StoreUnderTest) -> None:
        store.wait_for(store.port.close())
        store.wait_for(store.port.close())

    @proves("RR-37")
    def test_what_survives_the_process_is_what_the_store_declares(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        store.transact(lambda tx: _write_of_every_kind(tx, run, make, is_locked=False))
        before = store.everything_of(run)
        store.reopen()
        if store.port.capabilities.survives_process:
            assert store.everything_of(run) == before
        else:
            assert store.read(lambda tx: tx.runs.get(run.id)) is None

    def test_a_store_declares_name_and_durability(self, store: StoreUnderTest) -> None:
        capabilities = store.port.capabilities
        assert capabilities.name
        assert capabilities.durability

    def test_commits_decisions_reads_and_writes_are_counted(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        before = replace(store.port.counters)
        store.save(run)
        decided = replace(store.port.counters)
        assert (decided.commits, decided.transactions) == (before.commits + 1, before.transactions + 1)
        store.write(RunWrite(run_id=run.id, fence=run.fence, operations=(make.operation(run),)))
        written = replace(store.port.counters)
        assert (written.commits, written.writes) == (decided.commits + 1, decided.writes + 1)
        store.run(run.id)
        assert store.port.counters.commits == written.commits
        assert store.port.counters.reads == written.reads + 1


class ConcurrencyContract(StoreContract):
    """Many tasks at once."""

    def test_overlapping_decisions_on_one_run_lose_no_update(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)

        def use_one(tx: Transaction) -> None:
            locked = tx.runs.lock(run.id)
            assert locked is not None
            tx.runs.save(replace(locked, budget=locked.budget.moved(used={"calls": 1}, reserved={})))

        async def all_at_once() -> None:
            await asyncio.gather(*(store.port.transact(use_one) for _ in range(20)))

        store.wait_for(all_at_once())
        assert store.run(run.id).budget.of("calls").used == 20

    def test_overlapping_decisions_on_one_thread_lose_no_update(self, store: StoreUnderTest, make: Samples) -> None:
        thread = make.thread()
        store.transact(lambda tx: tx.threads.insert(thread))

        def number_one(tx: Transaction) -> int:
            locked = tx.threads.lock(thread.id)
            assert locked is not None
            tx.threads.save(replace(locked, runs=locked.runs + 1))
            return locked.runs

        async def all_at_once() -> list[int]:
            return await asyncio.gather(*(store.port.transact(number_one) for _ in range(20)))

        assert sorted(store.wait_for(all_at_once())) == list(range(20))

    @proves("RR-05", "CC-29")
    def test_two_concurrent_claims_never_share_a_run(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(12)]
        store.add(*runs)
        workers = [make.worker() for _ in range(8)]

        def claimed_by(number: int, tx: Transaction) -> list[RunId]:
            found = tx.runs.claimable(agents=[AGENT], now=make.now, limit=3)
            tx.runs.save_many([run.claimed(workers[number].id) for run in found])
            return [run.id for run in found]

        async def all_at_once() -> list[list[RunId]]:
            claims = (store.port.transact(partial(claimed_by, number)) for number in range(8))
            return await asyncio.gather(*claims)

        store.add_workers(*workers)
        taken = [run_id for claim in store.wait_for(all_at_once()) for run_id in claim]
        assert len(taken) == len(set(taken))
        assert all(store.run(run_id).fence == 1 for run_id in taken)

    def test_a_read_sees_one_consistent_view(self, store: StoreUnderTest, make: Samples) -> None:
        giver, taker = make.running(limits={"calls": 100}), make.running()
        store.add(giver, taker)
        store.save(replace(giver, budget=giver.budget.moved(used={"calls": 40}, reserved={})))

        def give_one(tx: Transaction) -> None:
            locked = tx.runs.lock_many([giver.id, taker.id])
            tx.runs.save_many([_moved(locked[giver.id], -1), _moved(locked[taker.id], 1)])

        def total(tx: Transaction) -> int:
            runs = [tx.runs.get(giver.id), tx.runs.get(taker.id)]
            return sum(run.budget.of("calls").used for run in runs if run is not None)

        async def both() -> list[int]:
            writing = [asyncio.ensure_future(store.port.transact(give_one)) for _ in range(30)]
            totals = [await store.port.read(total) for _ in range(30)]
            await asyncio.gather(*writing)
            return totals

        assert set(store.wait_for(both())) == {40}

    def test_fifty_tasks_write_at_once_and_each_is_applied_in_its_order(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.running() for _ in range(50)]
        store.add(*runs)

        async def one_task(run: Run) -> list[bool]:
            seen: list[bool] = []
            for write in _tries_of(make, run, 4):
                assert await store.port.write(write) is WriteOutcome.APPLIED
                seen.append(await store.port.read(lambda tx: tx.operations.of_run(run.id)) == list(write.operations))
            return seen

        async def all_at_once() -> list[list[bool]]:
            return await asyncio.gather(*(one_task(run) for run in runs))

        assert all(all(seen) for seen in store.wait_for(all_at_once()))

    def test_writes_that_gather_are_each_answered_by_themselves(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.running() for _ in range(10)]
        store.add(*runs)
        writes = [
            RunWrite(run_id=run.id, fence=run.fence if n % 2 else run.claimed(make.worker().id).fence, events=())
            for n, run in enumerate(runs)
        ]
        answers = store.write(*writes)
        assert answers == [WriteOutcome.APPLIED if n % 2 else WriteOutcome.STALE for n in range(10)]


def _refuse(_: Transaction) -> None:
    raise _Refused


def _moved(run: Run, calls: int) -> Run:
    return replace(run, budget=run.budget.moved(used={"calls": calls}, reserved={}))


def _tries_of(make: Samples, run: Run, count: int) -> list[RunWrite]:
    """Make writes of one position that differ in the tries made so far."""
    first = make.operation(run, status=OperationStatus.DISPATCHED)
    tries = tuple(Try(number=n + 1, fence=run.fence, started_at=make.now) for n in range(count))
    return [RunWrite(run_id=run.id, fence=run.fence, operations=(replace(first, tries=tries[: n + 1]),)) for n in range(count)]


def _write_of_every_kind(tx: Transaction, run: Run, make: Samples, *, is_locked: bool = True) -> None:
    """Write a row of every kind to a run."""
    if not is_locked:
        tx.runs.lock(run.id)
    tx.runs.save(replace(run, budget=run.budget.moved(used={"calls": 1}, reserved={})))
    tx.runs.open_attempt(make.attempt(run))
    tx.operations.put_many([make.operation(run)])
    tx.streams.append_many(make.texts(run, "a", "b"))
    tx.streams.reserve(run.id, 10)
    tx.streams.freeze(run.id, 10, exact=False)
    tx.checkpoints.add_many([make.checkpoint(run)])
    tx.evidence.add_artifacts([make.artifact(run)])
    tx.evidence.add(make.evidence(run))
    occurrence = make.occurrence(run)
    outcome = make.outcome(occurrence)
    tx.terminal.add_occurrence(occurrence)
    tx.terminal.add_outcome(outcome)
    tx.terminal.add_receipt(make.receipt(run, occurrence, outcome))
    assert everything_of(tx, [run.id])["receipts"] != [None]
