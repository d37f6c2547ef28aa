"""Decisions that meet on a real PostgreSQL: each waits, passes over or is run again, as the ports say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from quiesce.domain.errors import InvariantBroken, StoreBusy
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.stores.postgres import PostgresSettings, PostgresStore
from quiesce.testing.samples import AGENT, Samples
from tests.stores.meeting import BOUND_S, Holding, until_somebody_waits

Open = Callable[[str], Awaitable[Store]]


@pytest.fixture
async def store(postgres_url: str, opened: Open) -> Store:
    return await opened(postgres_url)


async def _add(store: Store, *runs: Run) -> None:
    def insert(tx: Transaction) -> None:
        for run in runs:
            tx.runs.insert(run)
            tx.streams.open(run.id)

    await store.transact(insert)


def _holding(store: Store, *run_ids: RunId, change: Callable[[Run], Run] | None = None) -> Holding:
    """Return a decision that locks runs, changes them if told how, and stands still."""

    def hold(tx: Transaction) -> None:
        runs = tx.runs.lock_many(run_ids)
        if change is not None:
            tx.runs.save_many([change(run) for run in runs.values()])

    return Holding(store, hold)


@pytest.mark.req("RR-05")
async def test_a_claim_passes_over_what_another_holds(store: Store, make: Samples) -> None:
    runs = [make.run() for _ in range(4)]
    await _add(store, *runs)
    async with _holding(store, runs[0].id, runs[2].id):
        found = await store.transact(lambda tx: tx.runs.claimable(agents=[AGENT], now=make.now, limit=10))
    assert [run.id for run in found] == [runs[1].id, runs[3].id]


@pytest.mark.req("RR-05")
async def test_sweeps_pass_over_what_another_holds(store: Store, make: Samples) -> None:
    late = [make.run(deadline_at=make.now) for _ in range(2)]
    settling = [make.settling(None, make.now) for _ in range(2)]
    await _add(store, *late, *settling)
    now = after_ms(make.now, 1)
    async with _holding(store, late[0].id, settling[0].id):
        overdue = await store.transact(lambda tx: tx.runs.overdue(now=now, limit=10))
        unsettled = await store.transact(lambda tx: tx.runs.unsettled(now=now, limit=10))
    assert [run.id for run in overdue] == [late[1].id]
    assert [run.id for run in unsettled] == [settling[1].id]


@pytest.mark.req("RR-05", "C64")
async def test_a_takeover_that_commits_while_a_batch_waits_for_the_row_makes_it_stale(
    store: Store, make: Samples, postgres_server: str
) -> None:
    run = make.running()
    await _add(store, run)
    successor = make.worker()
    async with _holding(store, run.id, change=lambda held: held.claimed(successor.id)):
        writing = asyncio.ensure_future(store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "late"))))
        await until_somebody_waits(postgres_server)
    assert await writing is WriteOutcome.STALE
    assert await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9)) == []


async def test_two_decisions_that_lock_against_the_order_both_succeed(store: Store, make: Samples) -> None:
    """The order of `ports.store` prevents it; where it is broken the server ends one, and that one is run again."""
    first, second = make.running(), make.running()
    await _add(store, first, second)
    both_hold = threading.Barrier(2, timeout=BOUND_S)
    runs_of: dict[str, int] = {"forward": 0, "backward": 0}

    def lock_in_turn(name: str, one: Run, other: Run, tx: Transaction) -> str:
        runs_of[name] += 1
        tx.runs.lock(one.id)
        if runs_of[name] == 1:
            both_hold.wait()
        tx.runs.lock(other.id)
        return name

    answers = await asyncio.gather(
        store.transact(lambda tx: lock_in_turn("forward", first, second, tx)),
        store.transact(lambda tx: lock_in_turn("backward", second, first, tx)),
    )
    assert list(answers) == ["forward", "backward"]
    assert sum(runs_of.values()) >= 3


@pytest.mark.req("CC-13")
async def test_two_submissions_under_one_key_end_with_one_run(store: Store, make: Samples) -> None:
    both_have_looked = threading.Barrier(2, timeout=BOUND_S)
    candidates = [replace(make.run(), key="order-7") for _ in range(2)]
    looked: list[RunId] = []

    def submit(run: Run, tx: Transaction) -> RunId:
        existing = tx.runs.by_key(run.tenant, "order-7")
        if run.id not in looked:
            looked.append(run.id)
            both_have_looked.wait()
        if existing is not None:
            return existing.id
        tx.runs.insert(run)
        return run.id

    answers = await asyncio.gather(*(store.transact(lambda tx, run=run: submit(run, tx)) for run in candidates))  # type: ignore[misc]
    assert len(set(answers)) == 1


async def test_a_rule_of_the_schema_is_broken_for_good(store: Store, make: Samples) -> None:
    run = make.run()
    await _add(store, run)
    with pytest.raises(InvariantBroken, match="rule of the schema"):
        await store.transact(lambda tx: tx.runs.insert(run))


@pytest.mark.req("C87")
async def test_a_lock_held_for_too_long_is_reported_as_not_accepted(postgres_url: str, make: Samples) -> None:
    settings = replace(PostgresSettings.from_url(postgres_url), patience_ms=200)
    store = await asyncio.to_thread(PostgresStore, settings)
    run = make.running()
    await _add(store, run)
    async with _holding(store, run.id):
        with pytest.raises(StoreBusy, match="not accepted"):
            await store.transact(lambda tx: tx.runs.lock(run.id))
        with pytest.raises(StoreBusy, match="not accepted"):
            await store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")))
    assert await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9)) == []
    await store.close()


@pytest.mark.req("C88")
async def test_a_process_that_stops_in_a_transaction_loses_its_locks(postgres_url: str, make: Samples) -> None:
    settings = replace(PostgresSettings.from_url(postgres_url), idle_in_transaction_ms=200)
    store = await asyncio.to_thread(PostgresStore, settings)
    run = make.running()
    await _add(store, run)
    async with _holding(store, run.id):
        assert await store.transact(lambda tx: tx.runs.lock(run.id)) == run
    await store.close()
