"""The line between a process and the store: answers take their time, so that things happen while they are under way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.notifier import Notifier
from quiesce.ports.store import Capabilities, Store, Transaction

T = TypeVar("T")


class SlowLine:
    """Implements `ports.store.Store` over another, each way taking up to `latency_ms`."""

    def __init__(self, store: Store, rng: random.Random, latency_ms: float) -> None:
        self._store = store
        self._random = rng
        self._latency_ms = latency_ms

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store."""
        return self._store.capabilities

    @property
    def counters(self) -> Counters:
        """Those of the store."""
        return self._store.counters

    @property
    def notifier(self) -> Notifier:
        """The store's."""
        return self._store.notifier

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        await self._travel()
        value = await self._store.transact(fn)
        await self._travel()
        return value

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        return self._store.transact_blocking(fn)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        await self._travel()
        value = await self._store.read(fn)
        await self._travel()
        return value

    async def write(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        await self._travel()
        outcome = await self._store.write(write)
        await self._travel()
        return outcome

    async def close(self) -> None:
        """Do nothing: the store belongs to all processes."""

    async def _travel(self) -> None:
        if self._latency_ms:
            await asyncio.sleep(self._random.uniform(0, self._latency_ms) / 1000)
