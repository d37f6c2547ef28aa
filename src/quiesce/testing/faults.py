"""Faults of a simulated world, drawn from a seed, and a store that suffers them.

As in FoundationDB's *buggify* (reported: https://transactional.blog/simulation/buggify), a fault has two probabilities:
whether its kind exists in this run at all, and whether it strikes at one opportunity. So some runs see one kind alone, some
see all, and some none. What struck is recorded.

`FaultyStore` injects only what `ports.store.Store` permits a store and a process to do: whoever fails under it has relied
on something that was never promised. A killed process gets nothing from it any more, not even in a `finally` block.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from quiesce.domain.errors import StoreBusy, StoreUnavailable
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.notifier import Bell, Notifier
from quiesce.ports.store import Capabilities, Store, Transaction
from quiesce.testing.simloop import SimClock, SimKilled, SimProcess, vanish

T = TypeVar("T")


class Fault(StrEnum):
    """What can go wrong."""

    CRASH_BEFORE_COMMIT = "crash_before_commit"
    """The process dies; nothing of the transaction is stored."""
    CRASH_AFTER_COMMIT = "crash_after_commit"
    """The process dies when everything is stored and it has not been told."""
    PAUSE = "pause"
    """The process is frozen for longer than its lease, and goes on as if nothing had been."""
    STORE_BUSY = "store_busy"
    """The store refuses; nothing is stored."""
    STORE_UNAVAILABLE_AFTER_COMMIT = "store_unavailable_after_commit"
    """Everything is stored, and the answer is lost."""
    LOST_BELL = "lost_bell"
    LATE_BELL = "late_bell"
    CLOCK_STEP = "clock_step"
    """The process's own clock is set forward or back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that struck, at which of its opportunities."""

    kind: Fault
    opportunity: int


class FaultPlan:
    """Decides when a fault strikes. Two plans made alike decide alike, if they are asked alike."""

    def __init__(
        self,
        seed: int,
        *,
        enabled_probability: float = 0.5,
        strike_probability: float = 0.02,
        kinds: Collection[Fault] = tuple(Fault),
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.strike_probability = strike_probability
        self.enabled = tuple(kind for kind in Fault if self.random.random() < enabled_probability and kind in kinds)
        self.struck: list[Struck] = []
        self._opportunities: dict[Fault, int] = {}
        self._is_over = False

    def should(self, kind: Fault) -> bool:
        """Return whether the fault strikes at this opportunity, and record it if so."""
        number = self._opportunities[kind] = self._opportunities.get(kind, 0) + 1
        if self._is_over or kind not in self.enabled or self.random.random() >= self.strike_probability:
            return False
        self.struck.append(Struck(kind=kind, opportunity=number))
        return True

    def stop(self) -> None:
        """Let nothing strike any more: from now on everything has to come to a good end (liveness)."""
        self._is_over = True

    def __str__(self) -> str:
        """Say how to get the same plan again."""
        kinds = ", ".join(self.enabled) or "none"
        return f"faults of seed {self.seed}, each with probability {self.strike_probability}: {kinds}"


class FaultyStore:
    """Implements `ports.store.Store` for one simulated process, over a store shared by all.

    `pause_ms`: should be longer than the lease. `clock`: the process's own, which `CLOCK_STEP` sets by up to `pause_ms`.
    """

    def __init__(
        self,
        store: Store,
        plan: FaultPlan,
        process: SimProcess,
        *,
        pause_ms: float,
        clock: SimClock | None = None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._process = process
        self._pause_ms = pause_ms
        self._clock = clock
        self._notifier = _FaultyNotifier(store, plan)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store."""
        return self._store.capabilities

    @property
    def counters(self) -> Counters:
        """Those of the store, shared by all processes."""
        return self._store.counters

    @property
    def notifier(self) -> Notifier:
        """The store's, whose bells may come late or not at all."""
        return self._notifier

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        await self._before()
        value = await self._store.transact(fn)
        await self._after()
        return value

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """See the port. A process that dies here is left by `SimKilled`, since it cannot be suspended."""
        self._refuse_the_dead()
        if self._plan.should(Fault.CRASH_BEFORE_COMMIT):
            self._process.kill()
            raise SimKilled
        if self._plan.should(Fault.STORE_BUSY):
            raise _busy()
        value = self._store.transact_blocking(fn)
        if self._plan.should(Fault.CRASH_AFTER_COMMIT):
            self._process.kill()
            raise SimKilled
        if self._plan.should(Fault.STORE_UNAVAILABLE_AFTER_COMMIT):
            raise _unavailable()
        return value

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        self._refuse_the_dead()
        await self._pause()
        return await self._store.read(fn)

    async def write(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        await self._before()
        outcome = await self._store.write(write)
        await self._after()
        return outcome

    async def close(self) -> None:
        """Do nothing: the store belongs to all processes."""

    async def _before(self) -> None:
        self._refuse_the_dead()
        if self._clock is not None and self._plan.should(Fault.CLOCK_STEP):
            self._clock.step(self._plan.random.uniform(-self._pause_ms, self._pause_ms))
        await self._pause()
        if self._plan.should(Fault.CRASH_BEFORE_COMMIT):
            await self._die()
        if self._plan.should(Fault.STORE_BUSY):
            raise _busy()

    async def _after(self) -> None:
        if self._plan.should(Fault.CRASH_AFTER_COMMIT):
            await self._die()
        await self._pause()
        if self._plan.should(Fault.STORE_UNAVAILABLE_AFTER_COMMIT):
            raise _unavailable()

    async def _pause(self) -> None:
        if self._plan.should(Fault.PAUSE):
            self._process.freeze(self._pause_ms)
            await asyncio.sleep(0)

    async def _die(self) -> None:
        self._process.kill()
        await vanish()

    def _refuse_the_dead(self) -> None:
        if self._process.is_dead:
            raise SimKilled


class _FaultyNotifier:
    def __init__(self, store: Store, plan: FaultPlan) -> None:
        self._store = store
        self._plan = plan

    def bell(self, *topics: str) -> Bell:
        return _FaultyBell(self._store.notifier.bell(*topics), self._plan)

    def ring(self, topic: str) -> None:
        self._store.notifier.ring(topic)


class _FaultyBell:
    """A bell whose rings may be lost or late; a wait never ends after its timeout because of it."""

    def __init__(self, bell: Bell, plan: FaultPlan) -> None:
        self._bell = bell
        self._plan = plan

    async def wait(self, timeout_ms: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        has_rung = await self._bell.wait(timeout_ms)
        if not has_rung:
            return False
        left_s = max(0.0, until - loop.time())
        if self._plan.should(Fault.LOST_BELL):
            await asyncio.sleep(left_s)
            return False
        if self._plan.should(Fault.LATE_BELL):
            await asyncio.sleep(self._plan.random.uniform(0, left_s))
        return True

    def close(self) -> None:
        self._bell.close()


def _busy() -> StoreBusy:
    return StoreBusy("injected: another writer held the store")


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("injected: the answer to a commit was lost")
