"""The manual clock and the sample builders."""

from __future__ import annotations

import asyncio

import pytest

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import after_ms
from quiesce.testing.clock import START, ManualClock
from quiesce.testing.samples import Samples


def test_time_moves_only_when_it_is_told_to() -> None:
    clock = ManualClock()
    assert clock.now() == clock.now() == START
    assert clock.advance(1.5) == clock.now() == START + 1500


def test_time_never_goes_back() -> None:
    with pytest.raises(InvalidInput):
        ManualClock().advance(-1)


async def test_sleepers_wake_in_the_order_of_their_instants() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleep(name: str, duration_ms: float) -> None:
        await clock.sleep(duration_ms)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, duration_ms in (("late", 30), ("early", 10), ("also early", 10), ("at once", 0)):
            tasks.create_task(sleep(name, duration_ms))
        await asyncio.sleep(0)
        clock.advance(9)
        await asyncio.sleep(0)
        assert woken == ["at once"]
        clock.advance(21)
    assert woken == ["at once", "early", "also early", "late"]


async def test_a_cancelled_sleeper_does_not_disturb_the_clock() -> None:
    clock = ManualClock()
    sleeper = asyncio.ensure_future(clock.sleep(5))
    await asyncio.sleep(0)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    clock.advance(10)


def test_two_builders_make_equal_records_and_ids_ascend() -> None:
    one, other = Samples(), Samples()
    assert [one.run(), one.worker()] == [other.run(), other.worker()]
    ids = [one.id() for _ in range(50)]
    assert ids == sorted(set(ids))


def test_a_child_is_younger_than_its_parent_and_shares_its_root() -> None:
    make = Samples()
    parent = make.running()
    child = make.run(parent=parent)
    grandchild = make.run(parent=child)
    assert parent.id < child.id < grandchild.id
    assert (child.parent_id, child.root_id, grandchild.root_id) == (parent.id, parent.id, parent.id)
    assert child.created_at >= after_ms(parent.created_at, 1)
