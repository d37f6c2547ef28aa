"""The store: transactions as plain synchronous functions, a group writer for the hot path, and a doorbell.

`await store.transact(fn)` runs `fn(tx)` in one transaction: all of it is committed, or nothing if `fn` raises. `fn` cannot
await, so nothing remote can happen inside (house rule 6); it may be run again after a serialization failure and must
therefore change nothing but the store. What it decides is returned as a value.

Lock order, everywhere: run rows by ascending id (a child's id is greater than its parent's), then the rest; among that, the
control channel's rows as `ports/commands.py` says. Decisions lock a run with `tx.runs.lock` or `lock_many` before they write
to anything of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from quiesce.domain.instant import Instant
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.checkpoints import Checkpoints
from quiesce.ports.commands import Admissions, Commands, Intents
from quiesce.ports.evidence import EvidenceLog
from quiesce.ports.interactions import Interactions
from quiesce.ports.mailbox import Mailbox
from quiesce.ports.notifier import Notifier
from quiesce.ports.operations import Operations
from quiesce.ports.publication import Outbox
from quiesce.ports.runs import Runs
from quiesce.ports.schedules import Schedules
from quiesce.ports.streams import Streams
from quiesce.ports.terminal import Terminal
from quiesce.ports.threads import Continuations, Threads
from quiesce.ports.workers import Workers

T = TypeVar("T")


class Transaction(Protocol):
    """One transaction, grouped by concept."""

    @property
    def now(self) -> Instant:
        """The one clock that leases, timers and deadlines are judged by; the same throughout the transaction.

        The database's own clock on PostgreSQL, the machine's guarded clock on SQLite, the given clock in memory.
        """

    @property
    def runs(self) -> Runs: ...  # noqa: D102
    @property
    def threads(self) -> Threads: ...  # noqa: D102
    @property
    def continuations(self) -> Continuations: ...  # noqa: D102
    @property
    def workers(self) -> Workers: ...  # noqa: D102
    @property
    def operations(self) -> Operations: ...  # noqa: D102
    @property
    def streams(self) -> Streams: ...  # noqa: D102
    @property
    def checkpoints(self) -> Checkpoints: ...  # noqa: D102
    @property
    def terminal(self) -> Terminal: ...  # noqa: D102
    @property
    def evidence(self) -> EvidenceLog: ...  # noqa: D102
    @property
    def outbox(self) -> Outbox: ...  # noqa: D102
    @property
    def intents(self) -> Intents: ...  # noqa: D102
    @property
    def commands(self) -> Commands: ...  # noqa: D102
    @property
    def admissions(self) -> Admissions: ...  # noqa: D102
    @property
    def mailbox(self) -> Mailbox: ...  # noqa: D102
    @property
    def schedules(self) -> Schedules: ...  # noqa: D102
    @property
    def interactions(self) -> Interactions: ...  # noqa: D102

    @property
    def connection(self) -> Any:
        """The driver's own connection (`sqlite3.Connection`, `psycopg.Connection`), inside this transaction.

        For owners whose rows live in the same database: what they write there is committed with this transaction or not at
        all. They must not commit, roll back or begin on it, nor keep it: it belongs to the store. An attempt is refused
        where the store can see it. Raises `Refused` on a store that has no connection (memory).
        """

    def read_clock(self) -> Instant:
        """Read the clock of `now` again, now: for what must hold after a lock was waited for (K14). Not before `now`."""

    def apply(self, write: RunWrite) -> WriteOutcome:
        """Apply a holder's write value inside this decision, under the same fence rule as the group writer."""

    def ring(self, topic: str) -> None:
        """Wake those who wait on `topic`, after the commit and only if it succeeds. A hint; it may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store declares of itself; tests read it instead of skipping."""

    name: str
    survives_process: bool
    shared_by_processes: bool
    durability: str
    """Shown in every receipt: `full`, a weaker setting by name, or `memory`."""


class Store(Protocol):
    """A store of runs."""

    @property
    def capabilities(self) -> Capabilities: ...  # noqa: D102
    @property
    def counters(self) -> Counters: ...  # noqa: D102
    @property
    def notifier(self) -> Notifier: ...  # noqa: D102

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Run a decision in one transaction and return its value once it is durable.

        Raises what `fn` raises (nothing is committed then), `StoreBusy`, `StoreFull`, `StoreReadOnly`, or
        `StoreUnavailable` after which a commit may or may not have taken place.
        """

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """The same for a thread without an event loop (the lease keeper, which no agent may starve)."""

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn` on one consistent view; it must not write and takes no locks that a writer waits for."""

    async def write(self, write: RunWrite) -> WriteOutcome:
        """Hand a write value to the group writer; return its outcome once the commit that carried it is durable.

        Writes handed in by one task are applied in that order. Raises like `transact`; after `StoreUnavailable` the same
        write may be handed in again, since applying it twice changes nothing.
        """

    async def close(self) -> None:
        """Finish what is under way and release files and connections. Idempotent."""
