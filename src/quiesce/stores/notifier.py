"""The doorbell within one process. Stores that several processes share add their own way of carrying a ring to the others.

Keeps: a ring between two waits is never lost to the bell that was registered before it. Works under any event loop: the
only timer is the loop's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable


class LocalBell:
    """Implements `ports.notifier.Bell`. One task waits on a bell at a time."""

    def __init__(self, notifier: LocalNotifier, topics: tuple[str, ...]) -> None:
        self._notifier = notifier
        self._topics = topics
        self._lock = threading.Lock()
        self._has_rung = False
        self._waiter: asyncio.Future[bool] | None = None

    async def wait(self, timeout_ms: float) -> bool:
        """See the port."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._has_rung:
                self._has_rung = False
                return True
            self._waiter = waiter
        timer = loop.call_later(max(0.0, timeout_ms) / 1000, _resolve, waiter, False)
        self._notifier.count_waiting(1)
        try:
            await waiter
        except asyncio.CancelledError:
            self._forget_waiter()  # a ring that came meanwhile is kept for the next wait
            raise
        finally:
            self._notifier.count_waiting(-1)
            timer.cancel()
        return self._forget_waiter(take=True)

    def ring(self) -> None:
        """Remember a ring and wake who waits. Safe from any thread."""
        with self._lock:
            self._has_rung = True
            waiter = self._waiter
        if waiter is None:
            return
        loop = waiter.get_loop()
        if loop is _running_loop():
            _resolve(waiter, True)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, waiter, True)

    def close(self) -> None:
        """See the port."""
        self._notifier.forget(self, self._topics)

    def _forget_waiter(self, *, take: bool = False) -> bool:
        with self._lock:
            self._waiter = None
            has_rung = self._has_rung
            if take:
                self._has_rung = False
            return has_rung


class LocalNotifier:
    """Implements `ports.notifier.Notifier` for one process."""

    def __init__(self, *, on_waiting: Callable[[], None] | None = None) -> None:
        """Make a notifier without bells. `on_waiting` is called when the first task begins to wait, from its thread."""
        self._lock = threading.Lock()
        self._bells: dict[str, dict[LocalBell, None]] = {}
        self._waiting = 0
        self._on_waiting = on_waiting

    @property
    def waiting(self) -> int:
        """How many tasks wait on a bell now."""
        return self._waiting

    def bell(self, *topics: str) -> LocalBell:
        """See the port."""
        bell = LocalBell(self, topics)
        with self._lock:
            for topic in topics:
                self._bells.setdefault(topic, {})[bell] = None
        return bell

    def ring(self, topic: str) -> None:
        """See the port."""
        self.ring_all([topic])

    def ring_all(self, topics: Iterable[str] | None = None) -> None:
        """Ring the bells of these topics, each once; all bells if `topics` is None."""
        with self._lock:
            if not self._bells:
                return
            wanted = self._bells if topics is None else topics
            bells = {bell: None for topic in wanted for bell in self._bells.get(topic, ())}
        for bell in bells:
            bell.ring()

    def topics(self) -> list[str]:
        """Return the topics that somebody is registered on."""
        with self._lock:
            return list(self._bells)

    def forget(self, bell: LocalBell, topics: Iterable[str]) -> None:
        """Remove a bell. Idempotent."""
        with self._lock:
            for topic in topics:
                bells = self._bells.get(topic, {})
                bells.pop(bell, None)
                if not bells:
                    self._bells.pop(topic, None)

    def count_waiting(self, change: int) -> None:
        """Note that a task begins or ends to wait."""
        with self._lock:
            self._waiting += change
            is_first = change > 0 and self._waiting == 1
        if is_first and self._on_waiting is not None:
            self._on_waiting()


def _resolve(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
