"""Intents, deliveries, targets, capacities and admission receipts, inside one transaction. Thin: decisions are made above.

Lock order: an owner's own rows, then intents, commands, targets, scopes; each by ascending key. A scope's row is taken
before an intent is inserted, never before one is locked. One exception: commands that a locked target lets through are locked
behind it; who holds one of them and waits for the target may have to be run again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus, Target
from quiesce.domain.deliveries import (
    AdmissionReceipt,
    Command,
    CommandKey,
    EventId,
    HistoryLine,
    Settlement,
    TargetState,
)
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS

Consumer = tuple[str, str, int]
"""Owner, kind, version: what a worker knows how to deliver."""
ScopeKey = tuple[str, str]
"""Tenant and scope."""


class Intents(Protocol):
    """Rows of intents and the capacity of their scopes."""

    def by_key(self, tenant: str, producer: str, producer_key: str) -> Intent | None:
        """Return the intent that this producer staged under this key."""

    def insert(self, intent: Intent) -> bool:
        """Add an intent; False, and nothing added, if the key names one already (another transaction's is waited for)."""

    def get(self, intent_id: IntentId) -> Intent | None:
        """Return an intent without locking it."""

    def lock(self, intent_id: IntentId) -> Intent | None:
        """Return an intent, locked until the end of the transaction."""

    def due(self, *, now: Instant, limit: int) -> list[Intent]:
        """Return, locked, staged intents with `due_at <= now`, by that instant and then in the order of their staging.

        Those locked by others are passed over.
        """

    def staged(self, *, tenant: str, limit: int) -> list[Intent]:
        """Return intents that were not relayed yet, newest first, without locking them."""

    def end(self, intent_ids: Collection[IntentId], status: IntentStatus, at: Instant) -> None:
        """Record how these locked intents ended."""

    def take_place(self, tenant: str, scope: str, *, overtakes: bool, bound: int, reserve: int) -> bool:
        """Count one more command in a scope if it has room; False, and nothing counted, if not.

        Locks the scope until the end of the transaction. A scope that nobody knows yet begins with `bound` and `reserve`.
        """

    def give_back(self, places: Mapping[ScopeKey, int]) -> None:
        """Count so many commands less in each scope."""

    def capacity(self, tenant: str, scope: str) -> Capacity | None:
        """Return a scope's capacity, if anything was ever staged in it."""

    def capacities(self, tenant: str) -> list[Capacity]:
        """Return the capacities of all scopes of a tenant, by name."""

    def set_capacity(self, tenant: str, scope: str, *, bound: int, reserve: int) -> None:
        """Set a scope's bound and reserve; what it holds already stays."""


class Commands(Protocol):
    """Rows of deliveries and targets."""

    def lock_targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """Lock these targets in ascending order; those nobody knows yet begin at revision 0."""

    def target(self, target: Target) -> TargetState | None:
        """Return a target without locking it."""

    def targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """Return those of these targets that are known, without locking them."""

    def save_targets(self, states: Sequence[TargetState]) -> None:
        """Store several locked targets."""

    def insert_many(self, commands: Sequence[Command]) -> None:
        """Add commands. An intent has at most one, a target at most one of each number: a second is `InvariantBroken`."""

    def get(self, event_id: EventId) -> Command | None:
        """Return a command without locking it."""

    def of_intent(self, intent_id: IntentId) -> Command | None:
        """Return the command that an intent became."""

    def lock(self, event_id: EventId) -> Command | None:
        """Return a command, locked until the end of the transaction."""

    def lock_many(self, event_ids: Collection[EventId]) -> dict[EventId, Command]:
        """Lock commands in ascending order of id and return those that exist."""

    def claimable(
        self,
        consumers: Collection[Consumer],
        *,
        now: Instant,
        limit: int,
        after: ScopeKey | None,
        scopes_max: int = DEFAULT_LIMITS.command_scopes_max,
    ) -> list[Command]:
        """Return, locked, commands of these consumers with `claimable_at <= now`, at most `limit`, in the order of taking.

        Fair over scopes: those that have such commands are taken in ascending order from behind `after` and round again,
        at most `scopes_max` of them, and each gives its first (by `claimable_at`, then id) before any gives its second.
        Commands locked by others are passed over. Costs the same however many commands are settled, blocked or staged.
        """

    def blocked_targets(self, targets: Collection[Target]) -> set[Target]:
        """Return the targets that have an open command for which an ordinary later one must wait (`Command.is_in_the_way`).

        Judged at each target's stored revision: who decides by the answer has locked the targets.
        """

    def unblocked(self, targets: Collection[Target]) -> list[Command]:
        """Return, locked and by ascending id, the commands that these locked targets no longer hold up.

        Of each target at most one: its first pending command without `claimable_at`, if no earlier one blocks it any more.
        """

    def save_many(self, commands: Sequence[Command]) -> None:
        """Store the delivery state of locked commands. What was sealed is never written again."""

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        """Record settlements; a second of a command is `InvariantBroken`."""

    def settlement(self, event_id: EventId) -> Settlement | None:
        """Return the settlement of a command."""

    def add_history(self, lines: Sequence[HistoryLine]) -> None:
        """Append lines to the histories of commands."""

    def history(self, event_id: EventId, *, limit: int) -> list[HistoryLine]:
        """Return the newest lines of a command's history, oldest first."""

    def page(self, *, tenant: str, statuses: Collection[str], before: EventId | None, limit: int) -> list[Command]:
        """Return commands, newest first, with an id below `before`; all statuses if `statuses` is empty."""

    def counts(self, tenant: str) -> dict[str, tuple[int, Instant | None]]:
        """Return, by status of an intent (`staged`) or open command, how many there are and since when the oldest.

        Since when: the instant of its staging or acceptance. A status of which there are none is left out.
        """

    def next_due(self, *, now: Instant) -> Instant | None:
        """Return the earliest instant after `now` at which an intent or a command falls due, if any."""


class Staging(Protocol):
    """What staging needs of a transaction, be it the store's or one of the producer's own."""

    @property
    def now(self) -> Instant:
        """The instant of the transaction."""

    @property
    def intents(self) -> Intents: ...  # noqa: D102
    @property
    def commands(self) -> Commands: ...  # noqa: D102

    def ring(self, topic: str) -> None:
        """Wake those who wait on `topic`, after the commit and only if it succeeds."""


class Admissions(Protocol):
    """Receipts of local owners: the proof of an effect, stored with it."""

    def get(self, key: CommandKey) -> AdmissionReceipt | None:
        """Return the receipt under this key. Absent means absent: this is the authoritative store."""

    def add(self, receipt: AdmissionReceipt) -> bool:
        """Add a receipt; False, and nothing added, if the key has one (another transaction's is waited for)."""
