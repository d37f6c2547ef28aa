"""One process's connection to the shared store, which a test may cut, hold, or make fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from quiesce.domain.errors import StoreUnavailable
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.notifier import Notifier
from quiesce.ports.store import Capabilities, Store, Transaction

T = TypeVar("T")

Rule = Callable[[RunWrite], bool]


class Line:
    """Implements `ports.store.Store`: one process's connection to the shared store, which may be cut, held or faulty."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_cut = False
        self._free = asyncio.Event()
        self._free.set()
        self._free_for_threads = threading.Event()
        self._free_for_threads.set()
        self.fails_before: list[Rule] = []
        """Each rule makes one write that it picks fail, not applied."""
        self.fails_after: list[Rule] = []
        """Each rule makes one write that it picks fail to be answered, applied."""
        self.loses_transactions = 0
        """How many of the next decisions are committed without an answer."""
        self.loses_of_agents = 0
        """The same, of decisions that the code of an agent asks for."""
        self.writes: list[RunWrite] = []
        """All writes that were applied."""

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def counters(self) -> Counters:
        return self._store.counters

    @property
    def notifier(self) -> Notifier:
        return self._store.notifier

    def cut(self) -> None:
        """From now on nothing reaches the store and nothing comes back."""
        self._is_cut = True

    def hold(self) -> None:
        """Freeze: calls wait."""
        self._free.clear()
        self._free_for_threads.clear()

    def release(self) -> None:
        """Thaw."""
        self._free.set()
        self._free_for_threads.set()

    async def _passed(self) -> None:
        await self._free.wait()
        if self._is_cut:
            await asyncio.get_running_loop().create_future()

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        await self._passed()
        value = await self._store.transact(fn)
        await self._passed()
        if self.loses_transactions:
            self.loses_transactions -= 1
            raise StoreUnavailable("injected: the answer of a commit was lost")
        if self.loses_of_agents and _task_name().startswith("agent "):
            self.loses_of_agents -= 1
            raise StoreUnavailable("injected: the answer of a commit was lost")
        return value

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        self._free_for_threads.wait()
        if self._is_cut:
            raise StoreUnavailable("cut")
        return self._store.transact_blocking(fn)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        await self._passed()
        value = await self._store.read(fn)
        await self._passed()
        return value

    async def write(self, write: RunWrite) -> WriteOutcome:
        await self._passed()
        if _strikes(self.fails_before, write):
            raise StoreUnavailable("injected: not accepted")
        outcome = await self._store.write(write)
        await self._passed()
        if outcome.is_applied:
            self.writes.append(write)
        if _strikes(self.fails_after, write):
            raise StoreUnavailable("injected: the answer of a write was lost")
        return outcome

    async def close(self) -> None:
        """Do nothing: the store belongs to all hosts."""


def _task_name() -> str:
    task = asyncio.current_task()
    return "" if task is None else task.get_name()


def _strikes(rules: list[Rule], write: RunWrite) -> bool:
    for rule in rules:
        if rule(write):
            rules.remove(rule)
            return True
    return False
