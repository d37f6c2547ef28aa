"""Faults strike as planned, do what they say, and nothing that the store's port does not permit."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from quiesce.domain.errors import StoreBusy, StoreUnavailable
from quiesce.domain.ids import WorkerId
from quiesce.domain.workers import Worker
from quiesce.ports.store import Store, Transaction
from quiesce.stores.memory.store import MemoryStore
from quiesce.testing.faults import Fault, FaultPlan, FaultyStore
from quiesce.testing.simloop import EPOCH, SimClock, SimKilled, SimLoop, SimProcess, run_sim

T = TypeVar("T")
PAUSE_MS = 5000
WORKER = WorkerId("w-1")


def insert(tx: Transaction) -> None:
    tx.workers.insert(Worker(id=WORKER, name="w", started_at=tx.now, lease_expires_at=tx.now))


def is_stored(tx: Transaction) -> bool:
    return tx.workers.get(WORKER) is not None


class World:
    """One process whose store suffers one kind of fault at every opportunity."""

    def __init__(self, loop: SimLoop, *kinds: Fault) -> None:
        self.loop = loop
        self.real: Store = MemoryStore(SimClock(loop))
        self.process = SimProcess(loop, "p")
        self.clock = SimClock(loop)
        self.plan = FaultPlan(0, enabled_probability=1, strike_probability=1, kinds=kinds)
        self.store: Store = FaultyStore(self.real, self.plan, self.process, pause_ms=PAUSE_MS, clock=self.clock)

    async def stored(self) -> bool:
        return await self.real.read(is_stored)


def in_world(kind: Fault, body: Any) -> Any:
    async def main(loop: SimLoop) -> Any:
        return await body(World(loop, kind))

    return run_sim(0, main).value


async def ended(world: World, work: Coroutine[Any, Any, object]) -> tuple[bool, bool]:
    """Run work in the process; return whether the process died and whether the row is there."""
    await world.process.run(work)
    return world.process.is_dead, await world.stored()


@pytest.mark.parametrize(("kind", "stored"), [(Fault.CRASH_BEFORE_COMMIT, False), (Fault.CRASH_AFTER_COMMIT, True)])
def test_a_crash_kills_the_process_before_or_after_everything_is_stored(kind: Fault, stored: bool) -> None:
    assert in_world(kind, lambda world: ended(world, world.store.transact(insert))) == (True, stored)


@pytest.mark.parametrize(("kind", "stored"), [(Fault.CRASH_BEFORE_COMMIT, False), (Fault.CRASH_AFTER_COMMIT, True)])
def test_a_crash_in_a_blocking_call_leaves_it_at_once(kind: Fault, stored: bool) -> None:
    async def body(world: World) -> tuple[bool, bool]:
        with pytest.raises(SimKilled):
            world.store.transact_blocking(insert)
        return world.process.is_dead, await world.stored()

    assert in_world(kind, body) == (True, stored)


@pytest.mark.parametrize(
    ("kind", "error", "stored"),
    [(Fault.STORE_BUSY, StoreBusy, False), (Fault.STORE_UNAVAILABLE_AFTER_COMMIT, StoreUnavailable, True)],
)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_refusal_stores_nothing_and_a_lost_answer_everything(
    kind: Fault, error: type[Exception], stored: bool, blocking: bool
) -> None:
    async def body(world: World) -> bool:
        async def work() -> None:
            if blocking:
                world.store.transact_blocking(insert)
            else:
                await world.store.transact(insert)

        with pytest.raises(error, match="injected"):
            await work()
        return await world.stored()

    assert in_world(kind, body) is stored


def test_a_pause_freezes_the_process_and_not_the_world() -> None:
    async def body(world: World) -> list[bool]:
        async def look() -> None:
            await world.store.transact(insert)

        work = world.process.start(look())
        seen = []
        for _ in range(3):
            await asyncio.sleep(PAUSE_MS / 1000 * 0.9)
            seen.append((await world.stored(), work.done()))
        return [flag for pair in seen for flag in pair]

    assert in_world(Fault.PAUSE, body) == [False, False, True, False, True, True]


def test_a_clock_step_moves_the_clock_of_the_process_and_not_that_of_the_store() -> None:
    async def body(world: World) -> tuple[int, int]:
        await asyncio.sleep(PAUSE_MS / 1000)
        for _ in range(5):
            await world.store.transact(lambda tx: None)
        return world.clock.now() - EPOCH, await world.real.read(lambda tx: tx.now - EPOCH)

    own, of_store = in_world(Fault.CLOCK_STEP, body)
    assert of_store == PAUSE_MS * 1000 != own


@pytest.mark.parametrize(("kind", "rang"), [(Fault.LOST_BELL, False), (Fault.LATE_BELL, True)])
def test_a_bell_may_be_lost_or_late_and_its_wait_still_ends_in_time(kind: Fault, rang: bool) -> None:
    async def body(world: World) -> tuple[bool, float]:
        bell = world.store.notifier.bell("topic")
        waiting = asyncio.ensure_future(bell.wait(10_000))
        await asyncio.sleep(1)
        world.store.notifier.ring("topic")
        result = await waiting
        bell.close()
        return result, world.loop.time()

    result, at = in_world(kind, body)
    assert result is rang
    assert 1 < at <= 10


def test_a_dead_process_gets_nothing_from_the_store() -> None:
    async def body(world: World) -> bool:
        world.process.kill()
        with pytest.raises(SimKilled):
            await world.store.transact(insert)
        with pytest.raises(SimKilled):
            world.store.transact_blocking(insert)
        with pytest.raises(SimKilled):
            await world.store.read(is_stored)
        return await world.stored()

    assert in_world(Fault.LATE_BELL, body) is False


def test_without_faults_the_store_is_the_store() -> None:
    async def main(loop: SimLoop) -> bool:
        world = World(loop)
        await world.store.transact(insert)
        await world.store.close()
        assert world.store.capabilities.name == "memory"
        assert world.store.counters is world.real.counters
        return await world.store.read(is_stored)

    assert run_sim(0, main).value is True


def decisions(plan: FaultPlan) -> list[bool]:
    return [plan.should(kind) for _ in range(200) for kind in Fault]


def test_a_plan_is_made_by_its_seed_alone() -> None:
    assert all(decisions(FaultPlan(seed)) == decisions(FaultPlan(seed)) for seed in range(20))
    assert len({str(FaultPlan(seed)).partition(": ")[2] for seed in range(20)}) > 10


def test_a_plan_records_what_struck_and_strikes_only_what_is_enabled() -> None:
    plan = FaultPlan(1, strike_probability=0.1)
    struck = decisions(plan).count(True)
    assert len(plan.struck) == struck > 0
    assert {fault.kind for fault in plan.struck} <= {*plan.enabled}
    assert all(1 <= fault.opportunity <= 200 for fault in plan.struck)


def test_a_stopped_plan_strikes_no_more() -> None:
    plan = FaultPlan(1, enabled_probability=1, strike_probability=1)
    plan.stop()
    assert not any(decisions(plan))
