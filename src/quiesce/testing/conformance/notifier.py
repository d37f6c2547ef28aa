"""The doorbell: rings carry no truth, come after the commit, and never from a decision that was taken back."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

import asyncio

import pytest

from quiesce.domain.writes import RunWrite
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples

_LONG_MS = 10_000
"""A bound for what must happen; never waited out by a store that passes."""


class NotifierContract(StoreContract):
    """`Notifier`, `Bell` and `Transaction.ring`."""

    def test_a_ring_wakes_who_waits(self, store: StoreUnderTest) -> None:
        async def scenario() -> bool:
            bell = store.port.notifier.bell("topic")
            waiting = asyncio.ensure_future(bell.wait(_LONG_MS))
            await asyncio.sleep(0)
            store.port.notifier.ring("topic")
            heard = await waiting
            bell.close()
            return heard

        assert store.wait_for(scenario())

    def test_a_ring_before_the_wait_is_remembered_once(self, store: StoreUnderTest) -> None:
        async def scenario() -> tuple[bool, bool]:
            bell = store.port.notifier.bell("topic", "other")
            store.port.notifier.ring("topic")
            store.port.notifier.ring("other")
            heard = (await bell.wait(_LONG_MS), await bell.wait(0))
            bell.close()
            return heard

        assert store.wait_for(scenario()) == (True, False)

    def test_a_wait_ends_after_its_time(self, store: StoreUnderTest) -> None:
        async def scenario() -> bool:
            bell = store.port.notifier.bell("topic")
            store.port.notifier.ring("another topic")
            heard = await bell.wait(1)
            bell.close()
            return heard

        assert not store.wait_for(scenario())

    def test_a_closed_bell_is_rung_no_more(self, store: StoreUnderTest) -> None:
        async def scenario() -> bool:
            bell = store.port.notifier.bell("topic")
            bell.close()
            store.port.notifier.ring("topic")
            return await bell.wait(0)

        assert not store.wait_for(scenario())

    def test_any_thread_may_ring(self, store: StoreUnderTest) -> None:
        async def scenario() -> bool:
            bell = store.port.notifier.bell("topic")
            waiting = asyncio.ensure_future(bell.wait(_LONG_MS))
            await asyncio.to_thread(store.port.notifier.ring, "topic")
            heard = await waiting
            bell.close()
            return heard

        assert store.wait_for(scenario())

    def test_who_is_rung_up_by_a_decision_reads_what_it_wrote(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()

        def insert(tx: Transaction) -> None:
            tx.ring("topic")
            tx.workers.insert(worker)

        async def scenario() -> object:
            bell = store.port.notifier.bell("topic")
            deciding = asyncio.ensure_future(store.port.transact(insert))
            assert await bell.wait(_LONG_MS)
            found = await store.port.read(lambda tx: tx.workers.get(worker.id))
            await deciding
            bell.close()
            return found

        assert store.wait_for(scenario()) == worker

    def test_a_decision_that_was_taken_back_rings_nobody(self, store: StoreUnderTest, make: Samples) -> None:
        def refuse(tx: Transaction) -> None:
            tx.ring("taken back")
            raise LookupError

        def insert(tx: Transaction) -> None:
            tx.workers.insert(make.worker())
            tx.ring("committed")

        async def scenario() -> bool:
            unheard = store.port.notifier.bell("taken back")
            heard = store.port.notifier.bell("committed")
            with pytest.raises(LookupError):
                await store.port.transact(refuse)
            await store.port.transact(insert)
            assert await heard.wait(_LONG_MS)
            rung = await unheard.wait(0)
            unheard.close()
            heard.close()
            return rung

        assert not store.wait_for(scenario())

    @proves("ST-02")
    def test_a_write_that_appends_events_rings_the_run(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)

        async def scenario() -> bool:
            bell = store.port.notifier.bell(run_topic(run.id))
            await store.port.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")))
            heard = await bell.wait(_LONG_MS)
            bell.close()
            return heard

        assert store.wait_for(scenario())
