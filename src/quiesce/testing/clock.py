"""A clock that moves only when it is told to.

Keeps the promise of `ports.clock.Clock`: time never goes back. Sleepers wake in the order of their instants.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant, after_ms

START: Final = Instant(1_750_000_000_000_000)
"""Where sample time begins: an arbitrary day in 2025."""


class ManualClock:
    """Implements `ports.clock.Clock`. Sleeping tasks go on when `advance` has passed their instant."""

    def __init__(self, start: Instant = START) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[Instant, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        """Return the present instant."""
        return self._now

    @property
    def sleepers(self) -> int:
        """How many tasks sleep: a test waits for them before it moves the clock, so that none begins to sleep too late."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    def advance(self, duration_ms: float) -> Instant:
        """Move on, wake who has slept long enough, and return the new instant. Raises `InvalidInput` below zero."""
        if duration_ms < 0:
            raise InvalidInput(field="duration_ms", value=duration_ms, rule="must be ≥ 0: time never goes back")
        self._now = after_ms(self._now, duration_ms)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)
        return self._now

    async def sleep(self, duration_ms: float) -> None:
        """Suspend the calling task until the clock was advanced that far; give way once if that is no time at all."""
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (after_ms(self._now, duration_ms), next(self._order), sleeper))
        await sleeper
