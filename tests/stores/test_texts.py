"""Characters that a column of text cannot hold: kept, or refused before anything is recorded (C90)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from quiesce.domain.errors import InvalidPayload, StoreUnavailable
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]


@pytest.mark.req("C90")
async def test_the_words_of_a_cancel_may_hold_any_character(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    run = make.run()
    occurrence = make.occurrence(run, text="stop\0now, \N{SNOWMAN} \U0001f6d1")
    outcome = make.outcome(occurrence)
    receipt = make.receipt(run, occurrence, outcome)

    def end(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.terminal.add_occurrence(occurrence)
        tx.terminal.add_outcome(outcome)
        tx.terminal.add_receipt(receipt)

    await store.transact(end)
    assert await store.read(lambda tx: tx.terminal.occurrence(run.id)) == occurrence
    stored = await store.read(lambda tx: tx.terminal.receipt(run.id))
    assert stored == receipt
    assert stored is not None
    assert stored.h3() == receipt.digest


@pytest.mark.req("C90")
async def test_a_lone_surrogate_is_refused_and_nothing_is_recorded(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    run = make.running()

    def insert(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.streams.open(run.id)

    await store.transact(insert)
    (event,) = make.texts(run, "a")
    with pytest.raises(InvalidPayload, match="surrogate"):
        await store.write(RunWrite(run_id=run.id, fence=run.fence, events=(replace(event, channel="\ud800"),)))
    with pytest.raises(InvalidPayload, match="surrogate"):
        await store.transact(lambda tx: tx.runs.insert(replace(make.run(), subject="\ud800")))
    with pytest.raises(InvalidPayload, match="surrogate"):
        await store.read(lambda tx: tx.runs.by_key("\ud800", "key"))
    assert await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9)) == []
    assert await store.write(RunWrite(run_id=run.id, fence=run.fence, events=(event,))) is WriteOutcome.APPLIED


@pytest.mark.req("C90")
async def test_a_name_that_postgres_cannot_hold_is_refused(postgres_url: str, opened: Open, make: Samples) -> None:
    store = await opened(postgres_url)
    run = replace(make.run(), subject="a\0b")
    with pytest.raises(InvalidPayload, match="cannot be held by PostgreSQL"):
        await store.transact(lambda tx: tx.runs.insert(run))
    assert await store.read(lambda tx: tx.runs.get(run.id)) is None


async def test_a_closed_store_is_unavailable(url: str, opened: Open) -> None:
    store = await opened(url)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.read(lambda tx: tx.now)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.transact(lambda tx: tx.now)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.transact_blocking(lambda tx: tx.now)
