"""Intents, capacities and admission receipts over named queries.

What was sealed is written once; the schema itself refuses to change it. Needs nothing of a transaction but its queries, so
that a producer may stage on a connection of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import Admission, AdmissionReceipt, CommandKey
from quiesce.domain.errors import invariant
from quiesce.domain.instant import Instant
from quiesce.ports.commands import ScopeKey
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Queries, Row

INTENT_COLUMNS: Final = 20
"""How many columns `intent.*` has: the last ones of a row of a command."""


class SqlIntents:
    """Implements `ports.commands.Intents`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._locked: set[IntentId] = set()

    def by_key(self, tenant: str, producer: str, producer_key: str) -> Intent | None:
        """See the port."""
        row = self._queries.one("intent_by_key", tenant=tenant, producer=producer, producer_key=producer_key)
        return None if row is None else intent_of(row)

    def insert(self, intent: Intent) -> bool:
        """See the port. Nobody else can see the row yet, so it counts as locked."""
        added = self._queries.run(
            "insert_intent",
            id=intent.id,
            tenant=intent.tenant,
            scope=intent.scope,
            producer=intent.producer,
            producer_key=intent.producer_key,
            subject=intent.subject,
            owner=intent.target.owner,
            target_id=intent.target.id,
            revision=intent.revision,
            kind=intent.kind.name,
            version=intent.kind.version,
            is_barrier=intent.kind.is_barrier,
            overtakes=intent.kind.overtakes,
            payload=intent.payload,
            due_at=intent.due_at,
            not_after=intent.not_after,
            staged_at=intent.staged_at,
            status=intent.status.value,
            ended_at=intent.ended_at,
        )
        if added:
            self._locked.add(intent.id)
        return bool(added)

    def get(self, intent_id: IntentId) -> Intent | None:
        """See the port."""
        row = self._queries.one("get_intent", id=intent_id)
        return None if row is None else intent_of(row)

    def lock(self, intent_id: IntentId) -> Intent | None:
        """See the port."""
        row = self._queries.one("lock_intent", id=intent_id)
        return None if row is None else self._held([row])[0]

    def due(self, *, now: Instant, limit: int) -> list[Intent]:
        """See the port."""
        return self._held(self._queries.many("due_intents", now=now, limit=limit))

    def staged(self, *, tenant: str, limit: int) -> list[Intent]:
        """See the port."""
        return [intent_of(row) for row in self._queries.many("staged_intents", tenant=tenant, limit=limit)]

    def end(self, intent_ids: Collection[IntentId], status: IntentStatus, at: Instant) -> None:
        """See the port."""
        ids = sorted(set(intent_ids))
        invariant(self._locked.issuperset(ids), "an intent is locked before it is saved")
        ended = self._queries.run_many("end_intents", [{"id": i, "status": status.value, "at": at} for i in ids])
        invariant(ended == len(ids), "an intent that ends is there")

    def take_place(self, tenant: str, scope: str, *, overtakes: bool, bound: int, reserve: int) -> bool:
        """See the port."""
        taken = self._queries.run("take_place", tenant=tenant, scope=scope, overtakes=overtakes, bound=bound, reserve=reserve)
        return bool(taken)

    def give_back(self, places: Mapping[ScopeKey, int]) -> None:
        """See the port."""
        rows = [{"tenant": tenant, "scope": scope, "places": places[tenant, scope]} for tenant, scope in sorted(places)]
        given = self._queries.run_many("give_back", rows)
        invariant(given == len(rows), "a place is given back where it was taken")

    def capacity(self, tenant: str, scope: str) -> Capacity | None:
        """See the port."""
        row = self._queries.one("get_capacity", tenant=tenant, scope=scope)
        return None if row is None else _capacity_of(row)

    def capacities(self, tenant: str) -> list[Capacity]:
        """See the port."""
        return [_capacity_of(row) for row in self._queries.many("capacities", tenant=tenant)]

    def set_capacity(self, tenant: str, scope: str, *, bound: int, reserve: int) -> None:
        """See the port."""
        self._queries.run("set_capacity", tenant=tenant, scope=scope, bound=bound, reserve=reserve)

    def _held(self, rows: list[Row]) -> list[Intent]:
        intents = [intent_of(row) for row in rows]
        self._locked.update(intent.id for intent in intents)
        return intents


class SqlAdmissions:
    """Implements `ports.commands.Admissions`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def get(self, key: CommandKey) -> AdmissionReceipt | None:
        """See the port."""
        row = self._queries.one("get_admission", command_key=key)
        return None if row is None else receipt_of(row)

    def add(self, receipt: AdmissionReceipt) -> bool:
        """See the port."""
        added = self._queries.run(
            "add_admission",
            id=receipt.id,
            command_key=receipt.command_key,
            verdict=receipt.verdict.value,
            reason=encode(receipt.reason),
            effect_ref=encode(receipt.effect_ref),
            at=receipt.at,
        )
        return bool(added)


def intent_of(row: Row) -> Intent:
    """Map a row of the table `intent`, whose columns stand in the order of the fields."""
    (id_, tenant, scope, producer, producer_key, subject, owner, target_id, revision) = row[:9]
    (kind, version, is_barrier, overtakes, payload, due_at, not_after, staged_at, status, ended_at) = row[9:19]
    return Intent(
        id=id_,
        tenant=tenant,
        scope=scope,
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        target=Target(owner=owner, id=target_id),
        revision=revision,
        kind=Kind(name=kind, version=version, is_barrier=bool(is_barrier), overtakes=bool(overtakes)),
        payload=payload,
        due_at=due_at,
        not_after=not_after,
        staged_at=staged_at,
        status=IntentStatus(status),
        ended_at=ended_at,
    )


def receipt_of(row: Row) -> AdmissionReceipt:
    """Map a row of the table `admission_receipt`, or the part of a settlement that repeats one."""
    id_, command_key, verdict, reason, effect_ref, at = row
    return AdmissionReceipt(
        id=id_,
        command_key=command_key,
        verdict=Admission(verdict),
        reason=decode(reason),
        effect_ref=decode(effect_ref),
        at=at,
    )


def _capacity_of(row: Row) -> Capacity:
    tenant, scope, bound, reserve, used = row
    return Capacity(tenant=tenant, scope=scope, bound=bound, reserve=reserve, used=used)
