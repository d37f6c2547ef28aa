"""What only the memory store has: lock discipline, fault hooks, a snapshot, and a loop it never leaves."""

from __future__ import annotations

import pytest

from quiesce.domain.errors import InvariantBroken, StoreUnavailable
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.stores.memory import CommitHooks, MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples


@pytest.fixture
def make() -> Samples:
    return Samples()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


async def stored(store: MemoryStore, *runs: Run) -> None:
    def fn(tx: Transaction) -> None:
        for run in runs:
            tx.runs.insert(run)
            tx.streams.open(run.id)

    await store.transact(fn)


async def test_a_run_is_not_saved_without_its_lock(store: MemoryStore, make: Samples) -> None:
    run = make.run()
    await stored(store, run)
    with pytest.raises(InvariantBroken, match="locked before it is saved"):
        await store.transact(lambda tx: tx.runs.save(run))


async def test_a_thread_is_not_saved_without_its_lock(store: MemoryStore, make: Samples) -> None:
    thread = make.thread()
    await store.transact(lambda tx: tx.threads.insert(thread))
    with pytest.raises(InvariantBroken, match="locked before it is saved"):
        await store.transact(lambda tx: tx.threads.save(thread))


async def test_runs_are_locked_by_ascending_id(store: MemoryStore, make: Samples) -> None:
    parent = make.running()
    child = make.running(parent=parent)
    await stored(store, parent, child)
    await store.transact(lambda tx: (tx.runs.lock(parent.id), tx.runs.lock(child.id), tx.runs.lock(parent.id)))
    with pytest.raises(InvariantBroken, match="ascending"):
        await store.transact(lambda tx: (tx.runs.lock(child.id), tx.runs.lock(parent.id)))


async def test_threads_are_locked_before_runs(store: MemoryStore, make: Samples) -> None:
    thread, run = make.thread(), make.run()
    await stored(store, run)
    await store.transact(lambda tx: tx.threads.insert(thread))
    with pytest.raises(InvariantBroken, match="before runs"):
        await store.transact(lambda tx: (tx.runs.lock(run.id), tx.threads.lock(thread.id)))


async def test_a_read_that_writes_is_refused_and_taken_back(store: MemoryStore, make: Samples) -> None:
    before = store.snapshot()
    with pytest.raises(InvariantBroken, match="must not write"):
        await store.read(lambda tx: tx.workers.insert(make.worker()))
    assert store.snapshot() == before


def test_a_transaction_does_not_run_inside_another(store: MemoryStore) -> None:
    with pytest.raises(InvariantBroken, match="inside another"):
        store.transact_blocking(lambda _: store.transact_blocking(lambda tx: tx.now))
    assert store.transact_blocking(lambda tx: tx.now) == ManualClock().now()


@pytest.mark.req("CC-20")
async def test_a_fault_before_the_commit_leaves_nothing(make: Samples) -> None:
    def fail() -> None:
        raise StoreUnavailable("gone")

    run = make.running()
    hooks = CommitHooks()
    store = MemoryStore(ManualClock(), hooks=hooks)
    await stored(store, run)
    before = store.snapshot()
    hooks.before_commit = fail
    write = RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))
    with pytest.raises(StoreUnavailable):
        await store.write(write)
    assert store.snapshot() == before


async def test_a_fault_after_the_commit_leaves_all_of_it_and_the_write_may_be_repeated(make: Samples) -> None:
    def fail() -> None:
        raise StoreUnavailable("gone")

    run = make.running(limits={"calls": 1})
    hooks = CommitHooks()
    store = MemoryStore(ManualClock(), hooks=hooks)
    await stored(store, run)
    hooks.after_commit = fail
    operation = make.operation(run, reserved={"calls": 1})
    write = RunWrite(run_id=run.id, fence=run.fence, operations=(operation,), events=make.texts(run, "a"))
    with pytest.raises(StoreUnavailable):
        await store.write(write)
    after = store.snapshot()
    hooks.after_commit = None
    assert await store.write(write) is WriteOutcome.APPLIED
    assert store.snapshot() == after


async def test_hooks_are_not_asked_when_nothing_was_written(make: Samples) -> None:
    asked: list[str] = []
    hooks = CommitHooks(before_commit=lambda: asked.append("before"), after_commit=lambda: asked.append("after"))
    store = MemoryStore(ManualClock(), hooks=hooks)
    await store.read(lambda tx: tx.now)
    await store.transact(lambda tx: tx.now)
    assert asked == []
    await store.transact(lambda tx: tx.workers.insert(make.worker()))
    assert asked == ["before", "after"]


async def test_snapshots_compare_by_content_and_stay_as_they_were(store: MemoryStore, make: Samples) -> None:
    other = MemoryStore(ManualClock())
    run = make.running()
    empty = store.snapshot()
    assert empty == other.snapshot()
    await stored(store, run)
    await stored(other, run)
    assert store.snapshot() == other.snapshot() != empty


async def test_runtimes_that_share_a_store_close_it_each_for_themselves(store: MemoryStore, make: Samples) -> None:
    run = make.run()
    await stored(store, run)
    await store.close()
    assert await store.read(lambda tx: tx.runs.get(run.id)) == run
