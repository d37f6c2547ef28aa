"""Interrupting an attempt's code: ask, wait, and let go of what will not stop.

Python cannot kill a thread and a coroutine may swallow its cancellation, so waiting is bounded by the grace. What is left
behind then keeps a stale fence: it can write nothing to the run, and the receipt says that clean-up was not completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from quiesce.runtime.attempt import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """How it went. `escalated`: the grace was not enough; `is_clean`: nothing of the attempt runs any more."""

    escalated: bool
    is_clean: bool


async def interrupt(attempt: Attempt, agent: asyncio.Task[object], *, grace_ms: float, extra_ms: float) -> Interruption:
    """Cancel the agent and what can be interrupted of its operations; wait for all of it, up to the grace.

    An isolated tool's process group is killed when the grace is over, which `extra_ms` leaves time for. Code that swallowed
    the first cancellation is asked once more at half time; more often would break clean-up that is under way.
    """
    for flight in list(attempt.in_flight.values()):
        if flight.can_interrupt:
            flight.task.cancel()
    agent.cancel()
    await wait_all(_left(attempt, agent), grace_ms / 2)
    if not agent.done():
        agent.cancel()
    await wait_all(_left(attempt, agent), grace_ms / 2)
    if not _left(attempt, agent):
        return Interruption(escalated=False, is_clean=True)
    for flight in list(attempt.in_flight.values()):
        if flight.can_interrupt:
            flight.task.cancel()  # the second time ends an isolated tool's own grace: its process group is killed
    await wait_all(_left(attempt, agent), extra_ms)
    return Interruption(escalated=True, is_clean=not _left(attempt, agent))


async def wait_all(tasks: Collection[asyncio.Task[object] | asyncio.Task[None]], timeout_ms: float) -> None:
    """Wait until all tasks are done, or the time is over."""
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_ms) / 1000)


def _left(attempt: Attempt, agent: asyncio.Task[object]) -> list[asyncio.Task[object] | asyncio.Task[None]]:
    flying: list[asyncio.Task[object] | asyncio.Task[None]] = [f.task for f in attempt.in_flight.values()]
    return flying if agent.done() else [agent, *flying]
