"""Keeps a worker's lease: one small write a beat, however many runs it holds.

In production it runs on a thread of its own with blocking calls, so an agent that blocks the event loop in pure Python
does not lose its runs (C68). It decides nothing: that the lease is lost is news for the worker, and the fences have told
the store already.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from quiesce.domain.errors import StoreError
from quiesce.domain.ids import WorkerId
from quiesce.domain.workers import Renewal
from quiesce.runtime.background import call_in_thread
from quiesce.runtime.claims import renew_tx
from quiesce.runtime.environment import Environment


class LeaseKeeper:
    """Renews one worker's lease until closed. `on_lost` is called, on the event loop, when others have removed it."""

    def __init__(self, env: Environment, worker_id: WorkerId, on_lost: Callable[[], None]) -> None:
        self._env = env
        self._worker_id = worker_id
        self._on_lost = on_lost
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, *, on_thread: bool) -> None:
        """Begin; on a thread, or as a task of the loop (for a simulated clock)."""
        loop = asyncio.get_running_loop()
        if not on_thread:
            self._task = loop.create_task(self._beat_on_loop(), name="lease keeper")
            return
        self._thread = threading.Thread(target=self._beat_on_thread, args=(loop,), name="quiesce-lease-keeper", daemon=True)
        self._thread.start()

    def _beat_on_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.wait(self._env.settings.beat_ms / 1000):
            try:
                renewal = self._env.store.transact_blocking(
                    lambda tx: renew_tx(tx, worker_id=self._worker_id, lease_ms=self._env.settings.lease_ms)
                )
            except StoreError:
                continue  # the next beat tries again; whether the lease held is judged by the store
            if renewal is Renewal.LOST:
                loop.call_soon_threadsafe(self._on_lost)
                return

    async def _beat_on_loop(self) -> None:
        while not self._closing.is_set():
            await self._env.clock.sleep(self._env.settings.beat_ms)
            try:
                renewal = await self._env.store.transact(
                    lambda tx: renew_tx(tx, worker_id=self._worker_id, lease_ms=self._env.settings.lease_ms)
                )
            except StoreError:
                continue
            if renewal is Renewal.LOST:
                self._on_lost()
                return

    async def close(self) -> None:
        """Stop renewing."""
        self._closing.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._thread is not None:
            await call_in_thread(self._thread.join, (1.0,), {})
