"""The group writer: commits are shared, answers are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvariantBroken, StoreUnavailable
from quiesce.domain.ids import Fence, Position
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.streams import Draft
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.testing.samples import Samples

T = TypeVar("T")
Open = Callable[[str], Awaitable[Store]]


async def _add(store: Store, *runs: Run) -> None:
    def insert(tx: Transaction) -> None:
        for run in runs:
            tx.runs.insert(run)
            tx.streams.open(run.id)

    await store.transact(insert)


async def _together(store: Store, blocker: Run, *jobs: Coroutine[object, object, T]) -> list[T | BaseException]:
    """Hand in jobs while the writer is held up, by a transaction or by the row that it waits for: they gather."""
    is_held, gate = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        tx.runs.lock(blocker.id)
        is_held.set()
        assert gate.wait(30)

    holding = asyncio.ensure_future(store.transact(hold))
    assert await asyncio.to_thread(is_held.wait, 30)
    first = asyncio.ensure_future(store.write(RunWrite(run_id=blocker.id, fence=blocker.fence)))
    gathered = [asyncio.ensure_future(job) for job in jobs]
    await asyncio.sleep(0)
    gate.set()
    answers = await asyncio.gather(*gathered, return_exceptions=True)
    await asyncio.gather(holding, first)
    return answers


async def test_fifty_writes_that_gather_share_a_commit(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    blocker, *runs = [make.running() for _ in range(51)]
    await _add(store, blocker, *runs)
    before = replace(store.counters, by_name=dict(store.counters.by_name))
    writes = [RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")) for run in runs]
    assert await _together(store, blocker, *map(store.write, writes)) == [WriteOutcome.APPLIED] * 50
    after = store.counters
    assert after.commits - before.commits <= 2
    assert after.writes - before.writes == 51
    assert after.by_name["append_events"] - before.by_name.get("append_events", 0) <= 2


@pytest.mark.req("RR-05")
async def test_a_stale_write_in_a_batch_takes_nothing_with_it(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    blocker, stale, live = (make.running() for _ in range(3))
    await _add(store, blocker, stale, live)
    answers = await _together(
        store,
        blocker,
        store.write(RunWrite(run_id=stale.id, fence=Fence(0), events=make.texts(stale, "a"))),
        store.write(RunWrite(run_id=live.id, fence=live.fence, events=make.texts(live, "b"))),
    )
    assert answers == [WriteOutcome.STALE, WriteOutcome.APPLIED]
    assert await store.read(lambda tx: len(tx.streams.read(stale.id, after=0, limit=9))) == 0
    assert await store.read(lambda tx: len(tx.streams.read(live.id, after=0, limit=9))) == 1


async def test_an_impossible_write_in_a_batch_fails_alone(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    blocker, broken, live = (make.running() for _ in range(3))
    await _add(store, blocker, broken, live)
    await store.write(RunWrite(run_id=broken.id, fence=broken.fence, events=make.texts(broken, "first")))
    answers = await _together(
        store,
        blocker,
        store.write(RunWrite(run_id=live.id, fence=live.fence, events=make.texts(live, "a"))),
        store.write(RunWrite(run_id=broken.id, fence=broken.fence, events=make.texts(broken, "other"))),
        store.write(RunWrite(run_id=live.id, fence=live.fence, operations=(make.operation(live),))),
    )
    assert [answers[0], answers[2]] == [WriteOutcome.APPLIED, WriteOutcome.APPLIED]
    assert isinstance(answers[1], InvariantBroken)
    (event,) = await store.read(lambda tx: tx.streams.read(broken.id, after=0, limit=9))
    assert event.payload == canonical("first")


async def test_a_decision_that_raises_in_a_batch_takes_back_only_itself(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    blocker, run = make.running(), make.running()
    await _add(store, blocker, run)
    kept, taken_back, later = make.worker(), make.worker(), make.worker()

    def insert_and_raise(tx: Transaction) -> None:
        tx.workers.insert(taken_back)
        raise LookupError("changed its mind")

    answers = await _together(
        store,
        blocker,
        store.transact(lambda tx: tx.workers.insert(kept)),
        store.transact(insert_and_raise),
        store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))),
        store.transact(lambda tx: tx.workers.insert(later)),
    )
    assert [answers[0], answers[2], answers[3]] == [None, WriteOutcome.APPLIED, None]
    assert isinstance(answers[1], LookupError)
    found = await store.read(lambda tx: [tx.workers.get(worker.id) for worker in (kept, taken_back, later)])
    assert found == [kept, None, later]


async def test_decisions_and_writes_of_sqlite_share_a_commit_in_their_order(sqlite_url: str, opened: Open, make: Samples) -> None:
    store = await opened(sqlite_url)
    blocker, run = make.running(), make.running()
    await _add(store, blocker, run)
    before = store.counters.commits
    committed = make.operation(run, status=OperationStatus.COMMITTED)

    def consume(tx: Transaction) -> bool:
        stored = tx.operations.get(run.id, Position("1"))
        tx.operations.consume_many([(run.id, Position("1"))])
        return stored is not None

    answers: list[object] = list(
        await _together(
            store,
            blocker,
            store.transact(lambda tx: tx.operations.get(run.id, Position("1"))),
            store.write(RunWrite(run_id=run.id, fence=run.fence, operations=(committed,))),
            store.transact(consume),
        )
    )
    assert answers == [None, WriteOutcome.APPLIED, True]
    assert store.counters.commits - before == 1
    (operation,) = await store.read(lambda tx: tx.operations.of_run(run.id))
    assert operation.status is OperationStatus.CONSUMED


async def test_a_batch_is_bounded(sqlite_url: str, make: Samples) -> None:
    from quiesce.bootstrap import open_store
    from quiesce.domain.limits import Limits

    store = open_store(sqlite_url, limits=Limits(write_batch_max=8))
    blocker, *runs = [make.running() for _ in range(33)]
    await _add(store, blocker, *runs)
    before = store.counters.commits
    writes = [RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")) for run in runs]
    assert await _together(store, blocker, *map(store.write, writes)) == [WriteOutcome.APPLIED] * 32
    assert 4 <= store.counters.commits - before <= 6
    await store.close()


async def test_who_has_left_does_not_disturb_the_others(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    blocker, run = make.running(), make.running()
    await _add(store, blocker, run)

    async def leave() -> object:
        event = make.events(run, Draft(channel="text", payload=canonical("a")))
        waiting = asyncio.ensure_future(store.write(RunWrite(run_id=run.id, fence=run.fence, events=event)))
        await asyncio.sleep(0)
        waiting.cancel()
        return await asyncio.gather(waiting, return_exceptions=True)

    async def stay() -> object:
        return await store.write(RunWrite(run_id=run.id, fence=run.fence, operations=(make.operation(run),)))

    _, stayed = await _together(store, blocker, leave(), stay())
    assert stayed is WriteOutcome.APPLIED


async def test_closing_finishes_what_was_handed_in(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    runs = [make.running() for _ in range(20)]
    await _add(store, *runs)
    writes = [
        asyncio.ensure_future(store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")))) for run in runs
    ]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writes) == [WriteOutcome.APPLIED] * 20
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.write(RunWrite(run_id=runs[0].id, fence=runs[0].fence))


async def test_a_store_serves_several_event_loops(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    runs = [make.running() for _ in range(3)]
    await _add(store, *runs)

    def in_a_loop_of_its_own(run: Run) -> WriteOutcome:
        write = RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))
        return asyncio.run(_write(store, write))

    answers = await asyncio.gather(*(asyncio.to_thread(in_a_loop_of_its_own, run) for run in runs))
    assert answers == [WriteOutcome.APPLIED] * 3


async def _write(store: Store, write: RunWrite) -> WriteOutcome:
    return await store.write(write)
