"""Threads: inserted once, locked, saved whole."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.ids import RunId
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest
from quiesce.testing.samples import Samples


class ThreadsContract(StoreContract):
    """`Threads`."""

    def test_a_thread_is_read_back_as_it_was_inserted(self, store: StoreUnderTest, make: Samples) -> None:
        thread = make.thread()
        store.transact(lambda tx: tx.threads.insert(thread))
        assert store.read(lambda tx: tx.threads.get(thread.id)) == thread
        assert store.transact(lambda tx: tx.threads.lock(thread.id)) == thread

    def test_a_thread_that_is_not_there_is_none(self, store: StoreUnderTest, make: Samples) -> None:
        absent = make.thread().id
        assert store.read(lambda tx: tx.threads.get(absent)) is None
        assert store.transact(lambda tx: tx.threads.lock(absent)) is None

    def test_inserting_a_thread_that_exists_does_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        thread = make.thread()
        store.transact(lambda tx: tx.threads.insert(thread))
        store.transact(lambda tx: tx.threads.insert(replace(thread, tenant="other", runs=7)))
        assert store.read(lambda tx: tx.threads.get(thread.id)) == thread

    def test_a_locked_thread_is_saved_whole(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.run()
        store.add(run)

        def advance(tx: Transaction) -> Thread:
            thread = tx.threads.lock(run.thread_id)
            assert thread is not None
            saved = replace(thread, runs=thread.runs + 1, head_run_id=RunId(run.id))
            tx.threads.save(saved)
            return saved

        saved = store.transact(advance)
        assert saved.head_run_id == run.id
        assert store.read(lambda tx: tx.threads.get(run.thread_id)) == saved

    def test_a_thread_and_its_first_run_are_made_in_one_transaction(self, store: StoreUnderTest, make: Samples) -> None:
        thread = make.thread()
        run = make.run(thread_id=thread.id)

        def submit(tx: Transaction) -> None:
            tx.threads.insert(thread)
            locked = tx.threads.lock(thread.id)
            assert locked == thread
            tx.runs.insert(run)
            tx.threads.save(replace(locked, runs=1, head_run_id=run.id))

        store.transact(submit)
        stored = store.read(lambda tx: tx.threads.get(thread.id))
        assert stored == replace(thread, runs=1, head_run_id=run.id)
