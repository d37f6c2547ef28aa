"""Intents, capacities and admission receipts in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus
from quiesce.domain.deliveries import AdmissionReceipt, CommandKey
from quiesce.domain.errors import invariant
from quiesce.domain.instant import Instant
from quiesce.ports.commands import ScopeKey
from quiesce.stores.memory.locks import ControlLocks, Rank
from quiesce.stores.memory.state import State


class MemoryIntents:
    """Implements `ports.commands.Intents`."""

    def __init__(self, state: State, locks: ControlLocks) -> None:
        self._intents = state.intents
        self._by_key = state.intent_by_key
        self._scopes = state.scopes
        self._locks = locks

    def by_key(self, tenant: str, producer: str, producer_key: str) -> Intent | None:
        """See the port."""
        intent_id = self._by_key.get((tenant, producer, producer_key))
        return None if intent_id is None else self.get(intent_id)

    def insert(self, intent: Intent) -> bool:
        """See the port. Nobody else can see the row yet, so it counts as locked."""
        key = (intent.tenant, intent.producer, intent.producer_key)
        if key in self._by_key:
            return False
        invariant(intent.id not in self._intents, "an intent is inserted once")
        self._locks.take(Rank.INTENT, [(intent.id,)])
        self._by_key.put(key, intent.id)
        self._intents.put(intent.id, intent)
        return True

    def get(self, intent_id: IntentId) -> Intent | None:
        """See the port."""
        return self._intents.get(intent_id)

    def lock(self, intent_id: IntentId) -> Intent | None:
        """See the port."""
        intent = self.get(intent_id)
        if intent is not None:
            self._locks.lock(Rank.INTENT, [(intent_id,)])
        return intent

    def due(self, *, now: Instant, limit: int) -> list[Intent]:
        """See the port. The table keeps the order of staging, and sorting is stable."""
        found = (i for i in self._intents if i.status is IntentStatus.STAGED and i.due_at <= now)
        due = sorted(found, key=lambda intent: intent.due_at)[:limit]
        self._locks.take(Rank.INTENT, [(intent.id,) for intent in due])
        return due

    def staged(self, *, tenant: str, limit: int) -> list[Intent]:
        """See the port. The table keeps the order of staging, and sorting is stable."""
        found = [i for i in self._intents if i.tenant == tenant and i.status is IntentStatus.STAGED]
        oldest_first = sorted(found, key=lambda intent: intent.staged_at)
        return oldest_first[::-1][:limit]

    def end(self, intent_ids: Collection[IntentId], status: IntentStatus, at: Instant) -> None:
        """See the port."""
        self._locks.check(Rank.INTENT, [(intent_id,) for intent_id in intent_ids])
        for intent_id in intent_ids:
            intent = self._intents.get(intent_id)
            invariant(intent is not None and intent.status is IntentStatus.STAGED, "an intent ends once")
            if intent is not None:
                self._intents.put(intent_id, replace(intent, status=status, ended_at=at))

    def take_place(self, tenant: str, scope: str, *, overtakes: bool, bound: int, reserve: int) -> bool:
        """See the port."""
        self._locks.lock_scopes()
        known = self.capacity(tenant, scope)
        room = known or Capacity(tenant=tenant, scope=scope, bound=bound, reserve=reserve, used=0)
        if not room.has_room(overtakes=overtakes):
            return False
        self._scopes.put((tenant, scope), replace(room, used=room.used + 1))
        return True

    def give_back(self, places: Mapping[ScopeKey, int]) -> None:
        """See the port."""
        self._locks.lock_scopes()
        for key, count in places.items():
            room = self._scopes.get(key)
            invariant(room is not None and room.used >= count, "a place is given back where it was taken")
            if room is not None:
                self._scopes.put(key, replace(room, used=room.used - count))

    def capacity(self, tenant: str, scope: str) -> Capacity | None:
        """See the port."""
        return self._scopes.get((tenant, scope))

    def capacities(self, tenant: str) -> list[Capacity]:
        """See the port."""
        return sorted((room for room in self._scopes if room.tenant == tenant), key=lambda room: room.scope)

    def set_capacity(self, tenant: str, scope: str, *, bound: int, reserve: int) -> None:
        """See the port."""
        self._locks.lock_scopes()
        known = self.capacity(tenant, scope)
        used = 0 if known is None else known.used
        room = Capacity(tenant=tenant, scope=scope, bound=bound, reserve=reserve, used=used)
        self._scopes.put((tenant, scope), room)


class MemoryAdmissions:
    """Implements `ports.commands.Admissions`."""

    def __init__(self, state: State) -> None:
        self._receipts = state.admissions

    def get(self, key: CommandKey) -> AdmissionReceipt | None:
        """See the port."""
        return self._receipts.get(key)

    def add(self, receipt: AdmissionReceipt) -> bool:
        """See the port."""
        if receipt.command_key in self._receipts:
            return False
        self._receipts.put(receipt.command_key, receipt)
        return True
