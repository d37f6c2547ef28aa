"""The lookout: one look for all who ask, none older than the question, and nobody who leaves takes it from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from quiesce.domain.errors import StoreUnavailable
from quiesce.domain.ids import Fence, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.streams import Glance
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.lookout import Lookout
from quiesce.testing.clock import ManualClock
from tests.runtime.kit import Gate, within

T = TypeVar("T")
RUNS = [RunId(f"run-{n}") for n in range(100)]


class Tower:
    """A store of which only reading is asked: counts the looks, and lets each wait at a gate."""

    def __init__(self) -> None:
        self.looks = 0
        self.stored = 0
        self.gates: list[Gate] = []
        self.fails = False

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        self.looks += 1
        value = fn(cast("Transaction", self))
        if self.gates:
            await self.gates.pop(0).wait()
        if self.fails:
            raise StoreUnavailable("out of sight")
        return value

    @property
    def streams(self) -> Tower:
        return self

    def glances(self, run_ids: set[RunId]) -> dict[RunId, Glance]:
        return {r: Glance(stored_seq=self.stored, status="running", fence=Fence(1), waits=b"[]") for r in run_ids}


@pytest.fixture
def tower() -> Tower:
    return Tower()


class Swift(ManualClock):
    """A clock that moves on when slept on."""

    async def sleep(self, duration_ms: float) -> None:
        self.advance(duration_ms)
        await asyncio.sleep(0)


class Watch:
    """A lookout over a tower."""

    def __init__(self, tower: Tower) -> None:
        self._lookout = Lookout()
        self._store = cast("Store", tower)
        self.clock = Swift()

    def ask(self, run_id: RunId = RUNS[0]) -> asyncio.Task[Glance | None]:
        return asyncio.create_task(self._lookout.glance(self._store, self.clock, run_id))


@pytest.mark.req("C101")
async def test_all_who_ask_at_once_share_one_look(tower: Tower) -> None:
    watch = Watch(tower)
    found = await within(asyncio.gather(*(watch.ask(run_id) for run_id in RUNS)))
    assert tower.looks == 1
    assert None not in found


@pytest.mark.req("C101", "C34")
async def test_a_look_is_never_older_than_the_question(tower: Tower) -> None:
    gate = Gate()
    tower.gates = [gate]
    watch = Watch(tower)
    early = watch.ask()
    await gate.arrival()
    tower.stored = 7
    late = [watch.ask(run_id) for run_id in RUNS]
    gate.open()
    first, *rest = await within(asyncio.gather(early, *late))
    assert first is not None
    assert first.stored_seq == 0
    assert [glance.stored_seq for glance in rest if glance is not None] == [7] * len(RUNS)
    assert tower.looks == 2


@pytest.mark.req("C101")
async def test_who_leaves_takes_the_look_from_nobody(tower: Tower) -> None:
    gate = Gate()
    tower.gates = [gate]
    watch = Watch(tower)
    leaves, stays = watch.ask(), watch.ask()
    await gate.arrival()
    leaves.cancel()
    await asyncio.wait({leaves})
    gate.open()
    assert await within(stays) is not None
    assert tower.looks == 1


@pytest.mark.req("C101")
async def test_the_more_have_asked_the_longer_until_the_next_look(tower: Tower) -> None:
    watch = Watch(tower)
    rests: list[int] = []
    for asking in (RUNS[:1], RUNS):
        await within(asyncio.gather(*(watch.ask(run_id) for run_id in asking)))
        begun = watch.clock.now()
        await within(watch.ask())
        rests.append(watch.clock.now() - begun)
    assert rests[1] == 100 * rests[0] > 0


async def test_a_look_that_fails_fails_for_all_who_asked_and_the_next_one_is_made(tower: Tower) -> None:
    watch = Watch(tower)
    tower.fails = True
    for failed in await within(asyncio.gather(watch.ask(), watch.ask(), return_exceptions=True)):
        assert isinstance(failed, StoreUnavailable)
    tower.fails = False
    assert await within(watch.ask()) is not None


async def test_a_look_that_was_cut_short_does_not_end_all_looking(tower: Tower) -> None:
    gate = Gate()
    tower.gates = [gate]
    watch = Watch(tower)
    first = watch.ask()
    await gate.arrival()
    second = watch.ask()
    await asyncio.sleep(0)
    looks = [task for task in asyncio.all_tasks() if task not in {first, second, asyncio.current_task()}]
    for look in looks:
        look.cancel()
    await asyncio.wait({first, second})
    assert await within(watch.ask()) is not None


def test_readers_look_at_common_moments() -> None:
    lookout = Lookout()
    starts = [Instant(1_000_000 + 37_000 * n) for n in range(20)]
    ends = {(start + round(lookout.pause_ms(start, 250) * 1000)) % 250_000 for start in starts}
    assert len(ends) == 1
    assert all(0 < lookout.pause_ms(start, 250) <= 250 for start in starts)
