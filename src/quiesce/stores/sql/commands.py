"""Deliveries and targets over named queries.

A row of `command` holds the state of the delivery and what its claim and order need; its content is read from `intent`,
where it was sealed. A save needs a lock held by the same transaction: nothing else keeps two deciders from overwriting each
other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from quiesce.domain.commands import IntentId, Target
from quiesce.domain.deliveries import (
    Command,
    CommandStatus,
    EventId,
    HistoryEvent,
    HistoryLine,
    Settlement,
    TargetState,
)
from quiesce.domain.errors import invariant
from quiesce.domain.ids import Fence
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.intents import INTENT_COLUMNS, intent_of, receipt_of
from quiesce.stores.sql.queries import Params, Queries, Row

REACH: Final = 256
"""How many candidates beyond its limit a claim looks at, over all its scopes: those that other transactions have locked."""

_BEFORE_ALL: Final[ScopeKey] = ("", "")
_BEHIND_ALL: Final = "\U0010ffff"


class SqlCommands:
    """Implements `ports.commands.Commands`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._locked: set[EventId] = set()
        self._locked_targets: set[Target] = set()

    def lock_targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """See the port."""
        keys = _target_keys(targets)
        self._queries.run_many("create_targets", keys)
        states = _states(self._queries.many_of("lock_targets", keys))
        self._locked_targets.update(states)
        return states

    def target(self, target: Target) -> TargetState | None:
        """See the port."""
        return self.targets([target]).get(target)

    def targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """See the port."""
        return _states(self._queries.many_of("get_targets", _target_keys(targets)))

    def save_targets(self, states: Sequence[TargetState]) -> None:
        """See the port."""
        invariant(self._locked_targets.issuperset(state.target for state in states), "a target is locked before it is saved")
        self._queries.run_many(
            "save_targets",
            [{"owner": s.target.owner, "id": s.target.id, "revision": s.revision, "last_number": s.last_number} for s in states],
        )

    def insert_many(self, commands: Sequence[Command]) -> None:
        """See the port. Nobody else can see the rows yet, so they count as locked."""
        added = self._queries.run_many("insert_commands", [_sealed(command) | _changing(command) for command in commands])
        invariant(added == len(commands), "a command comes of a stored intent")
        self._locked.update(command.event_id for command in commands)

    def get(self, event_id: EventId) -> Command | None:
        """See the port."""
        row = self._queries.one("get_command", event_id=event_id)
        return None if row is None else command_of(row)

    def of_intent(self, intent_id: IntentId) -> Command | None:
        """See the port."""
        row = self._queries.one("command_of_intent", intent_id=intent_id)
        return None if row is None else command_of(row)

    def lock(self, event_id: EventId) -> Command | None:
        """See the port."""
        return self.lock_many([event_id]).get(event_id)

    def lock_many(self, event_ids: Collection[EventId]) -> dict[EventId, Command]:
        """See the port."""
        rows = self._queries.many_of("lock_commands", [{"event_id": event_id} for event_id in sorted(set(event_ids))])
        return {command.event_id: command for command in self._held(rows)}

    def claimable(
        self,
        consumers: Collection[Consumer],
        *,
        now: Instant,
        limit: int,
        after: ScopeKey | None,
        scopes_max: int = DEFAULT_LIMITS.command_scopes_max,
    ) -> list[Command]:
        """See the port. Two statements: which scopes have something due, then the first of each, locked."""
        laps = [lap | {"now": now, "most": scopes_max} for lap in _laps(consumers, after)]
        places = self._queries.many_of("claimable_scopes", laps)
        in_turn = sorted({(tenant, scope) for *_, tenant, scope in places}, key=lambda scope: _turn(scope, after))[:scopes_max]
        if not in_turn:
            return []
        # Each of these scopes has one to give before any gives its second; more than this of one scope is never taken.
        each = max(limit - len(in_turn), 0) + 1 + REACH // len(in_turn)
        rows = self._queries.many("claimable_commands", places=_places(places, in_turn), now=now, each=each, limit=limit)
        return self._held(rows)

    def blocked_targets(self, targets: Collection[Target]) -> set[Target]:
        """See the port."""
        rows = self._queries.many_of("blocked_targets", _target_keys(targets))
        return {Target(owner=owner, id=id_) for owner, id_ in rows}

    def unblocked(self, targets: Collection[Target]) -> list[Command]:
        """See the port."""
        found = self._held(self._queries.many_of("unblocked_commands", _target_keys(targets)))
        return sorted(found, key=lambda command: command.event_id)

    def save_many(self, commands: Sequence[Command]) -> None:
        """See the port."""
        invariant(self._locked.issuperset(c.event_id for c in commands), "a command is locked before it is saved")
        self._queries.run_many("save_commands", [_changing(command) for command in commands])

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        """See the port."""
        self._queries.run_many("add_settlements", [_settlement_params(settlement) for settlement in settlements])

    def settlement(self, event_id: EventId) -> Settlement | None:
        """See the port."""
        row = self._queries.one("get_settlement", event_id=event_id)
        if row is None:
            return None
        return Settlement(event_id=row[0], receipt=receipt_of(row[1:7]), fence=row[7], at=row[8])

    def add_history(self, lines: Sequence[HistoryLine]) -> None:
        """See the port."""
        self._queries.run_many("add_history", [_line_params(line) for line in lines])

    def history(self, event_id: EventId, *, limit: int) -> list[HistoryLine]:
        """See the port."""
        rows = self._queries.many("history_of_command", event_id=event_id, limit=limit)
        return [_line_of(row) for row in reversed(rows)]

    def page(self, *, tenant: str, statuses: Collection[str], before: EventId | None, limit: int) -> list[Command]:
        """See the port."""
        wanted = sorted({CommandStatus(status).value for status in statuses} or {status.value for status in CommandStatus})
        rows = self._queries.many("page_of_commands", tenant=tenant, statuses=wanted, before=before or _BEHIND_ALL, limit=limit)
        return [command_of(row) for row in rows]

    def counts(self, tenant: str) -> dict[str, tuple[int, Instant | None]]:
        """See the port."""
        return {status: (count, since) for status, count, since in self._queries.many("counts_of_commands", tenant=tenant)}

    def next_due(self, *, now: Instant) -> Instant | None:
        """See the port."""
        row = self._queries.one("next_due_command", now=now)
        return None if row is None or row[0] is None else Instant(row[0])

    def _held(self, rows: Iterable[Row]) -> list[Command]:
        commands = [command_of(row) for row in rows]
        self._locked.update(command.event_id for command in commands)
        return commands


def command_of(row: Row) -> Command:
    """Map a row of the tables `command` and `intent`. What a command repeats of its intent only serves its indexes."""
    event_id, _intent_id, number, accepted_at, status, claimable_at, fence, worker_id, expires_at = row[:9]
    started_fence, is_uncertain, attempts, failures, reason, ended_at = row[9:15]
    return Command(
        event_id=event_id,
        intent=intent_of(row[-INTENT_COLUMNS:]),
        number=number,
        accepted_at=accepted_at,
        status=CommandStatus(status),
        claimable_at=claimable_at,
        fence=fence,
        worker_id=worker_id,
        expires_at=expires_at,
        started_fence=started_fence,
        is_uncertain=bool(is_uncertain),
        attempts=attempts,
        failures=failures,
        reason=decode(reason),
        ended_at=ended_at,
    )


def _sealed(command: Command) -> dict[str, object]:
    return {"intent_id": command.intent.id, "number": command.number, "accepted_at": command.accepted_at}


def _changing(command: Command) -> dict[str, object]:
    """Return the id and the columns that a delivery changes."""
    return {
        "event_id": command.event_id,
        "status": command.status.value,
        "claimable_at": command.claimable_at,
        "fence": command.fence,
        "worker_id": command.worker_id,
        "expires_at": command.expires_at,
        "started_fence": command.started_fence,
        "is_uncertain": command.is_uncertain,
        "attempts": command.attempts,
        "failures": command.failures,
        "reason": encode(command.reason),
        "ended_at": command.ended_at,
    }


def _laps(consumers: Collection[Consumer], after: ScopeKey | None) -> list[dict[str, object]]:
    """Return where to look, per consumer: behind `after`, and then from the beginning up to it."""
    bounds = [(_BEFORE_ALL, None)] if after is None else [(after, None), (_BEFORE_ALL, after)]
    return [
        {
            "owner": owner,
            "kind": kind,
            "version": version,
            "after_tenant": low[0],
            "after_scope": low[1],
            "until_tenant": high[0] if high else None,
            "until_scope": high[1] if high else None,
        }
        for owner, kind, version in sorted(set(consumers))
        for low, high in bounds
    ]


def _turn(scope: ScopeKey, after: ScopeKey | None) -> tuple[bool, ScopeKey]:
    return (after is not None and scope <= after, scope)


def _places(rows: Sequence[Row], in_turn: Sequence[ScopeKey]) -> str:
    """Return, as JSON, where the first of each scope are to be found, and the turn of the scope."""
    turns = {scope: turn for turn, scope in enumerate(in_turn)}
    places = [
        {"owner": owner, "kind": kind, "version": version, "tenant": tenant, "scope": scope, "turn": turns[tenant, scope]}
        for owner, kind, version, tenant, scope in rows
        if (tenant, scope) in turns
    ]
    return encode(places).decode()


def _target_keys(targets: Collection[Target]) -> list[Params]:
    return [{"owner": target.owner, "id": target.id} for target in sorted(set(targets))]


def _states(rows: Iterable[Row]) -> dict[Target, TargetState]:
    states = (
        TargetState(target=Target(owner=owner, id=id_), revision=revision, last_number=last_number)
        for owner, id_, revision, last_number in rows
    )
    return {state.target: state for state in sorted(states, key=lambda state: state.target)}


def _settlement_params(settlement: Settlement) -> Params:
    receipt = settlement.receipt
    return {
        "event_id": settlement.event_id,
        "admission_id": receipt.id,
        "command_key": receipt.command_key,
        "verdict": receipt.verdict.value,
        "reason": encode(receipt.reason),
        "effect_ref": encode(receipt.effect_ref),
        "admitted_at": receipt.at,
        "fence": settlement.fence,
        "at": settlement.at,
    }


def _line_params(line: HistoryLine) -> Params:
    return {
        "event_id": line.event_id,
        "what": line.what.value,
        "fence": line.fence,
        "by": encode(line.by),
        "reason": encode(line.reason),
        "at": line.at,
    }


def _line_of(row: Row) -> HistoryLine:
    event_id, what, fence, by, reason, at, _ordinal = row
    return HistoryLine(
        event_id=event_id, what=HistoryEvent(what), fence=Fence(fence), by=decode(by), reason=decode(reason), at=at
    )
