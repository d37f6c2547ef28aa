"""The lookout: one look at the store for all readers of this process that wait, however many they are (C101).

A reader that waits holds no connection, no thread and no timer but the loop's. Whoever has been rung, or whose time to look
has come, asks here; those who ask while a look is under way share the next one, which begins after all of them have asked.
So what a look returns is never older than the question. Waiting readers look at the same moments, each process at its own.
The more have asked, the longer until the next look: where every commit of another process rings every bell, a thousand
readers of quiet runs must not keep the process busy with finding nothing.

Decides nothing: a reader whose glance has changed reads for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant, after_ms, elapsed_ms
from quiesce.domain.streams import Glance
from quiesce.ports.clock import Clock
from quiesce.ports.store import Store

_PAUSE_MS_PER_READER: Final = 0.2
"""Pause after a look, for each reader that it looked for: some times what a look for it costs."""

_Found = Mapping[RunId, Glance]


class Lookout:
    """Looks on behalf of the readers of one environment, on one event loop."""

    def __init__(self) -> None:
        self._asked: set[RunId] = set()
        self._next: asyncio.Task[_Found] | None = None
        self._is_looking = asyncio.Lock()
        self._rests_until: Instant | None = None
        self._phase: Instant | None = None

    def pause_ms(self, now: Instant, poll_ms: float) -> float:
        """Return how long a reader waits for its bell before it looks: to the next of the common moments."""
        if self._phase is None:
            self._phase = now
        poll_us = max(1, round(poll_ms * 1000))
        return (poll_us - (now - self._phase) % poll_us) / 1000

    async def glance(self, store: Store, clock: Clock, run_id: RunId) -> Glance | None:
        """Return where a run stands, as of a moment after this was called. Raises as `Store.read`."""
        self._asked.add(run_id)
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_task(self._look(store, clock))
            self._next.add_done_callback(_retrieve)
        found = await asyncio.shield(self._next)  # whoever leaves meanwhile does not take the look from the others
        return found.get(run_id)

    async def _look(self, store: Store, clock: Clock) -> _Found:
        async with self._is_looking:
            if self._rests_until is not None and (rest_ms := elapsed_ms(clock.now(), self._rests_until)) > 0:
                await clock.sleep(rest_ms)
            asked, self._asked, self._next = self._asked, set(), None
            found = await store.read(lambda tx: tx.streams.glances(asked))
            self._rests_until = after_ms(clock.now(), _PAUSE_MS_PER_READER * len(asked))
            return found


def _retrieve(look: asyncio.Task[_Found]) -> None:
    """Take note of how a look ended, also when all who asked have left."""
    if not look.cancelled():
        look.exception()
