"""The memory store: the plainest thing that fulfils `ports.store.Store`, and thereby its specification.

Transactions run one after the other, inline, on whatever thread asks; nothing is awaited inside one. There are no threads
and no executors, so the store works under any event loop, one with virtual time included. Before and after each
transaction the calling task gives way once: that is where other tasks, and simulated crashes, come in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from quiesce.domain.errors import Refused, invariant
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.clock import Clock
from quiesce.ports.notifier import Notifier
from quiesce.ports.store import Capabilities, Transaction
from quiesce.stores.apply import apply_writes
from quiesce.stores.memory.checkpoints import MemoryCheckpoints
from quiesce.stores.memory.commands import MemoryCommands
from quiesce.stores.memory.evidence import MemoryEvidence
from quiesce.stores.memory.intents import MemoryAdmissions, MemoryIntents
from quiesce.stores.memory.interactions import MemoryInteractions
from quiesce.stores.memory.locks import ControlLocks
from quiesce.stores.memory.mailbox import MemoryMailbox
from quiesce.stores.memory.operations import MemoryOperations
from quiesce.stores.memory.outbox import MemoryOutbox
from quiesce.stores.memory.runs import Locks, MemoryRuns
from quiesce.stores.memory.schedules import MemorySchedules
from quiesce.stores.memory.state import State
from quiesce.stores.memory.streams import MemoryStreams
from quiesce.stores.memory.terminal import MemoryTerminal
from quiesce.stores.memory.threads import MemoryContinuations, MemoryThreads
from quiesce.stores.memory.workers import MemoryWorkers
from quiesce.stores.notifier import LocalNotifier

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class CommitHooks:
    """Where a test makes a store fail. What a hook raises is raised to the caller of the store.

    After `before_commit` raised nothing was written; after `after_commit` raised everything was, but nobody was told.
    """

    before_commit: Callable[[], None] | None = None
    after_commit: Callable[[], None] | None = None


class MemoryTransaction:
    """Implements `ports.store.Transaction`."""

    def __init__(self, state: State, clock: Clock) -> None:
        locks, control = Locks(), ControlLocks()
        self._clock = clock
        self.now = clock.now()
        self.runs = MemoryRuns(state, locks)
        self.threads = MemoryThreads(state, locks)
        self.continuations = MemoryContinuations(state)
        self.workers = MemoryWorkers(state)
        self.operations = MemoryOperations(state)
        self.streams = MemoryStreams(state)
        self.checkpoints = MemoryCheckpoints(state)
        self.terminal = MemoryTerminal(state)
        self.evidence = MemoryEvidence(state)
        self.outbox = MemoryOutbox(state)
        self.intents = MemoryIntents(state, control)
        self.commands = MemoryCommands(state, control)
        self.admissions = MemoryAdmissions(state)
        self.mailbox = MemoryMailbox(state)
        self.interactions = MemoryInteractions(state)
        self.schedules = MemorySchedules(state)
        self.rung: dict[str, None] = {}

    @property
    def connection(self) -> Any:
        """See the port."""
        raise Refused("the memory store has no connection: rows of an owner's own need a store in SQLite or PostgreSQL")

    def read_clock(self) -> Instant:
        """See the port."""
        return max(self.now, self._clock.now())

    def apply(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        (outcome,) = apply_writes(self, [write])
        return outcome

    def ring(self, topic: str) -> None:
        """See the port. A topic rings once per transaction."""
        self.rung[topic] = None


class MemoryStore:
    """Implements `ports.store.Store` for as long as the process lives. Several runtimes may share one."""

    capabilities = Capabilities(name="memory", survives_process=False, shared_by_processes=False, durability="memory")

    def __init__(
        self,
        clock: Clock,
        *,
        limits: Limits = DEFAULT_LIMITS,
        hooks: CommitHooks | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self.counters = Counters()
        self.notifier: Notifier = notifier or LocalNotifier()
        self.hooks = hooks or CommitHooks()
        self.limits = limits
        self._clock = clock
        self._state = State()
        self._lock = threading.RLock()
        self._is_open = False

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        await asyncio.sleep(0)
        value = self.transact_blocking(fn)
        await asyncio.sleep(0)
        return value

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        self.counters.transactions += 1
        return self._run(fn)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """See the port. Raises `InvariantBroken` if `fn` writes."""

        def reading(tx: Transaction) -> T:
            value = fn(tx)
            invariant(not self._state.is_changed, "a read must not write")
            return value

        await asyncio.sleep(0)
        self.counters.reads += 1
        return self._run(reading)

    async def write(self, write: RunWrite) -> WriteOutcome:
        """See the port. Each write is a batch of its own."""
        await asyncio.sleep(0)
        outcome = self._run(lambda tx: tx.apply(write))
        self.counters.writes += outcome.is_applied
        await asyncio.sleep(0)
        return outcome

    async def close(self) -> None:
        """See the port. There is nothing to release, and other runtimes may still use the store."""

    def snapshot(self) -> dict[str, object]:
        """Return a copy of everything stored, which compares equal to that of a store holding the same."""
        with self._lock:
            return self._state.snapshot()

    def _run(self, fn: Callable[[Transaction], T]) -> T:
        with self._lock:
            invariant(not self._is_open, "a transaction does not run inside another")
            self._is_open = True
            tx = MemoryTransaction(self._state, self._clock)
            try:
                value = fn(tx)
                self._commit()
            finally:
                self._state.rollback()
                self._is_open = False
        for topic in tx.rung:
            self.notifier.ring(topic)
        return value

    def _commit(self) -> None:
        if not self._state.is_changed:
            return
        if self.hooks.before_commit is not None:
            self.hooks.before_commit()
        self._state.commit()
        self.counters.commits += 1
        if self.hooks.after_commit is not None:
            self.hooks.after_commit()
