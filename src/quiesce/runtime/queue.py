"""What operators ask of the control channel, and what they may do: look, withdraw, quarantine, offer again.

Keeps: delivery and effect are shown as two answers, never as one (CC-62); nobody but an owner's receipt ends uncertainty,
so no verb here does (CC-54). Each call is checked against the caller's tenant; another tenant's command does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from quiesce.domain.canonical import parse
from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus
from quiesce.domain.deliveries import Command, CommandStatus, Effect, EventId, HistoryLine, Settlement, effect_of
from quiesce.domain.errors import InvalidInput, NotFound, SettlementPending
from quiesce.domain.instant import Instant, elapsed_ms
from quiesce.domain.texts import check_text
from quiesce.ports.notifier import COMMANDS
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import withdraw_tx
from quiesce.runtime.deliveries import quarantine_tx, reconcile_tx, requeue_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.service import Caller

STAGED: Final = IntentStatus.STAGED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command as operators see it: what was asked, how far its delivery is, and what is known of its effect."""

    intent: Intent
    command: Command | None
    settlement: Settlement | None

    @property
    def effect(self) -> Effect:
        """What is known of the effect, from its owner's receipt alone."""
        if self.command is None:
            return Effect.NOT_YET if self.intent.ended_at is None else Effect.NEVER
        return effect_of(self.command, self.settlement)

    @property
    def delivery(self) -> str:
        """How far the delivery is: the status of the command, or of the intent that has not become one."""
        return str(self.intent.status if self.command is None else self.command.status)

    def to_json(self) -> dict[str, object]:
        """Return the form that CLI and HTTP show."""
        intent, command = self.intent, self.command
        shown: dict[str, object] = {
            "intent_id": intent.id,
            "event_id": None if command is None else command.event_id,
            "has_arrived": command is not None,
            "delivery": self.delivery,
            "effect": str(self.effect),
            "kind": intent.kind.name,
            "version": intent.kind.version,
            "target": {"owner": intent.target.owner, "id": intent.target.id, "revision": intent.revision},
            "scope": intent.scope,
            "subject": intent.subject,
            "producer": intent.producer,
            "producer_key": intent.producer_key,
            "payload": parse(intent.payload),
            "staged_at": intent.staged_at,
            "due_at": intent.due_at,
            "not_after": intent.not_after,
            "receipt": None if self.settlement is None else self.settlement.receipt.to_json(),
        }
        return shown | ({} if command is None else _delivery_json(command))


def _delivery_json(command: Command) -> dict[str, object]:
    return {
        "number": command.number,
        "command_key": command.key,
        "accepted_at": command.accepted_at,
        "claimable_at": command.claimable_at,
        "fence": command.fence,
        "worker_id": command.worker_id,
        "expires_at": command.expires_at,
        "has_started": command.started_fence is not None,
        "is_uncertain": command.is_uncertain,
        "attempts": command.attempts,
        "failures": command.failures,
        "reason": command.reason,
        "ended_at": command.ended_at,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """How much is unfinished, since when, and how much room is left."""

    statuses: Mapping[str, tuple[int, Instant | None]]
    """By `staged` and the open statuses of a command: how many, and since when the oldest."""
    capacities: tuple[Capacity, ...]
    now: Instant

    def to_json(self) -> dict[str, object]:
        """Return the form that CLI and HTTP show; ages in milliseconds."""
        return {
            "statuses": {
                status: {"count": count, "oldest_age_ms": None if since is None else (self.now - since) // 1000}
                for status, (count, since) in self.statuses.items()
            },
            "scopes": [
                {"scope": room.scope, "used": room.used, "bound": room.bound, "reserve": room.reserve} for room in self.capacities
            ],
        }


class QueueService:
    """Questions and verbs about commands, for one caller."""

    def __init__(self, env: Environment, caller: Caller | None = None) -> None:
        self._env = env
        self._caller = caller or Caller()

    async def entries(self, *, statuses: Collection[str] = (), before: EventId | None = None, limit: int = 20) -> list[Entry]:
        """Return intents that were not relayed yet, and then commands; each newest first, and at most `limit` of them.

        All statuses if none is named: `staged`, and those of commands. `before` goes on behind an earlier answer's last
        command, which had told of the intents. Raises `InvalidInput` for another status.
        """
        tenant, known = self._caller.tenant, {STAGED, *map(str, CommandStatus)}
        for unknown in sorted(set(statuses) - known):
            raise InvalidInput(field="status", value=unknown, rule=f"must be one of {', '.join(sorted(known))}")
        of_commands = set(statuses) - {STAGED}

        def read(tx: Transaction) -> list[Entry]:
            shows_staged = before is None and (not statuses or STAGED in statuses)
            intents = tx.intents.staged(tenant=tenant, limit=limit) if shows_staged else []
            most = limit if of_commands or not statuses else 0
            commands = tx.commands.page(tenant=tenant, statuses=of_commands, before=before, limit=most)
            return [*(_entry(tx, i, None) for i in intents), *(_entry(tx, c.intent, c) for c in commands)]

        return await self._env.store.read(read)

    async def show(self, name: str) -> Entry:
        """Return a command by the id of its event or of its intent. Raises `NotFound`."""

        def read(tx: Transaction) -> Entry:
            command = tx.commands.get(EventId(name)) or tx.commands.of_intent(IntentId(name))
            intent = tx.intents.get(IntentId(name)) if command is None else command.intent
            if intent is None or intent.tenant != self._caller.tenant:
                raise NotFound("command", name, "`quiesce queue list` shows what there is")
            return _entry(tx, intent, command)

        return await self._env.store.read(read)

    async def settled(self, name: str, *, timeout_ms: float | None = None) -> Entry:
        """Wait until a command's delivery has ended, and return it with its owner's receipt, if there is one.

        Raises `NotFound`, or `SettlementPending` when `timeout_ms` passes first: then its effect may still come.
        """
        bell = self._env.store.notifier.bell(COMMANDS)
        waited_ms = 0.0
        try:
            while True:
                entry = await self.show(name)
                ended_at = entry.intent.ended_at if entry.command is None else entry.command.ended_at
                if ended_at is not None:
                    return entry
                if timeout_ms is not None and waited_ms >= timeout_ms:
                    about = f"command {name}: its delivery is {entry.delivery}, its effect {entry.effect}"
                    raise SettlementPending(about, delivery=entry.delivery, effect=str(entry.effect))
                left_ms = float(self._env.settings.poll_ms) if timeout_ms is None else timeout_ms - waited_ms
                began = self._env.clock.now()
                await bell.wait(max(1.0, min(left_ms, self._env.settings.poll_ms)))
                waited_ms += max(1.0, elapsed_ms(began, self._env.clock.now()))
        finally:
            bell.close()

    async def history(self, name: str, *, limit: int | None = None) -> list[HistoryLine]:
        """Return what happened to a delivery, oldest first. Raises `NotFound`."""
        entry = await self.show(name)
        if entry.command is None:
            return []
        event_id, bound = entry.command.event_id, limit or self._env.limits.command_history_max
        return await self._env.store.read(lambda tx: tx.commands.history(event_id, limit=bound))

    async def counts(self) -> QueueCounts:
        """Return how much is unfinished, since when, and the room of each scope."""
        tenant = self._caller.tenant
        return await self._env.store.read(
            lambda tx: QueueCounts(
                statuses=tx.commands.counts(tenant), capacities=tuple(tx.intents.capacities(tenant)), now=tx.now
            )
        )

    async def withdraw(self, name: str) -> Intent:
        """Take back what was not relayed yet; see `withdraw_tx`."""
        return await self._env.store.transact(lambda tx: withdraw_tx(tx, IntentId(name), tenant=self._caller.tenant))

    async def requeue(self, name: str, *, why: str) -> Command:
        """Offer a quarantined command again; see `requeue_tx`."""
        event_id = await self._event(name, why)
        return await self._env.store.transact(lambda tx: requeue_tx(tx, event_id, why=why, by=self._caller.subject))

    async def reconcile(self, name: str, *, why: str) -> Command:
        """Have the receipt of an uncertain quarantined command read again; see `reconcile_tx`."""
        event_id = await self._event(name, why)
        return await self._env.store.transact(lambda tx: reconcile_tx(tx, event_id, why=why, by=self._caller.subject))

    async def quarantine(self, name: str, *, why: str) -> Command:
        """Take a command that nobody delivers out of the way; see `quarantine_tx`."""
        event_id = await self._event(name, why)
        return await self._env.store.transact(lambda tx: quarantine_tx(tx, event_id, why=why, by=self._caller.subject))

    async def set_capacity(self, scope: str, *, bound: int, reserve: int) -> Capacity:
        """Set how many unfinished commands a scope may hold, and the reserve on top for those that may overtake."""
        check_text("scope", scope, self._env.limits.name_chars_max)
        for field, value in (("bound", bound), ("reserve", reserve)):
            if value < 0:
                raise InvalidInput(field=field, value=value, rule="must be 0 or more")
        tenant = self._caller.tenant
        await self._env.store.transact(lambda tx: tx.intents.set_capacity(tenant, scope, bound=bound, reserve=reserve))
        room = await self._env.store.read(lambda tx: tx.intents.capacity(tenant, scope))
        return room or Capacity(tenant=tenant, scope=scope, bound=bound, reserve=reserve, used=0)

    async def _event(self, name: str, why: str) -> EventId:
        check_text("why", why, self._env.limits.text_chars_max)
        entry = await self.show(name)
        if entry.command is None:
            raise NotFound("command", name, f"the intent is {entry.intent.status} and has not become a command")
        return entry.command.event_id


def _entry(tx: Transaction, intent: Intent, command: Command | None) -> Entry:
    return Entry(intent=intent, command=command, settlement=None if command is None else tx.commands.settlement(command.event_id))
