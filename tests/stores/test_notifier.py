"""Bells within one process."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quiesce.stores.notifier import LocalNotifier


async def test_a_ring_that_meets_a_cancelled_wait_is_kept_for_the_next() -> None:
    notifier = LocalNotifier()
    bell = notifier.bell("topic")
    waiting = asyncio.ensure_future(bell.wait(60_000))
    await asyncio.sleep(0)
    notifier.ring("topic")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await bell.wait(0)
    assert not await bell.wait(0)


async def test_who_waits_is_counted_and_the_first_is_announced() -> None:
    announced: list[int] = []
    notifier = LocalNotifier(on_waiting=lambda: announced.append(1))
    bells = [notifier.bell("topic") for _ in range(3)]
    waits = [asyncio.ensure_future(bell.wait(60_000)) for bell in bells]
    await asyncio.sleep(0)
    assert (notifier.waiting, announced) == (3, [1])
    notifier.ring_all()
    assert await asyncio.gather(*waits) == [True, True, True]
    assert notifier.waiting == 0


async def test_a_bell_on_two_topics_rings_once_for_both() -> None:
    notifier = LocalNotifier()
    bell = notifier.bell("a", "b")
    notifier.ring_all(["a", "b", "c"])
    assert await bell.wait(0)
    assert not await bell.wait(0)


def test_a_bell_whose_loop_has_ended_disturbs_nobody() -> None:
    notifier = LocalNotifier()

    async def wait_briefly() -> None:
        bell = notifier.bell("topic")
        asyncio.ensure_future(bell.wait(60_000)).add_done_callback(lambda _: None)
        await asyncio.sleep(0)

    asyncio.run(wait_briefly())
    thread = threading.Thread(target=notifier.ring, args=["topic"])
    thread.start()
    thread.join()
    assert notifier.topics() == ["topic"]
