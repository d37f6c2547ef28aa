"""Deliveries and targets in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from quiesce.domain.commands import IntentId, IntentStatus, Target
from quiesce.domain.deliveries import Command, CommandStatus, EventId, HistoryLine, Settlement, TargetState
from quiesce.domain.errors import invariant, required
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.stores.memory.locks import ControlLocks, Rank
from quiesce.stores.memory.state import State


class MemoryCommands:
    """Implements `ports.commands.Commands`."""

    def __init__(self, state: State, locks: ControlLocks) -> None:
        self._state = state
        self._locks = locks

    def lock_targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """See the port."""
        self._locks.lock(Rank.TARGET, [_key(target) for target in targets])
        for target in targets:
            if target not in self._state.targets:
                self._state.targets.put(target, TargetState(target=target))
        return self.targets(targets)

    def target(self, target: Target) -> TargetState | None:
        """See the port."""
        return self._state.targets.get(target)

    def targets(self, targets: Collection[Target]) -> dict[Target, TargetState]:
        """See the port."""
        return {target: state for target in sorted(targets) if (state := self.target(target)) is not None}

    def save_targets(self, states: Sequence[TargetState]) -> None:
        """See the port."""
        self._locks.check(Rank.TARGET, [_key(state.target) for state in states])
        for state in states:
            self._state.targets.put(state.target, state)

    def insert_many(self, commands: Sequence[Command]) -> None:
        """See the port. Nobody else can see the rows yet, so they count as locked."""
        for command in commands:
            invariant(command.intent.id in self._state.intents, "a command comes of a stored intent")
            invariant(self.of_intent(command.intent.id) is None, "an intent becomes one command")
            numbers = {c.number for c in self._state.commands if c.target == command.target}
            invariant(command.number not in numbers, "a target has one command of each number")
            invariant(command.event_id not in self._state.commands, "a command is inserted once")
            self._locks.take(Rank.COMMAND, [(command.event_id,)])
            self._state.command_of.put(command.intent.id, command.event_id)
            self._state.commands.put(command.event_id, command)

    def get(self, event_id: EventId) -> Command | None:
        """See the port."""
        command = self._state.commands.get(event_id)
        return None if command is None else self._whole(command)

    def of_intent(self, intent_id: IntentId) -> Command | None:
        """See the port."""
        event_id = self._state.command_of.get(intent_id)
        return None if event_id is None else self.get(event_id)

    def lock(self, event_id: EventId) -> Command | None:
        """See the port."""
        return self.lock_many([event_id]).get(event_id)

    def lock_many(self, event_ids: Collection[EventId]) -> dict[EventId, Command]:
        """See the port."""
        found = {i: command for i in sorted(set(event_ids)) if (command := self.get(i)) is not None}
        self._locks.lock(Rank.COMMAND, [(event_id,) for event_id in found])
        return found

    def claimable(
        self,
        consumers: Collection[Consumer],
        *,
        now: Instant,
        limit: int,
        after: ScopeKey | None,
        scopes_max: int = DEFAULT_LIMITS.command_scopes_max,
    ) -> list[Command]:
        """See the port."""
        by_scope: dict[ScopeKey, list[Command]] = {}
        ready = [c for c in self._state.commands if _is_claimable(c, now) and _consumer(c) in consumers]
        for command in sorted(ready, key=lambda c: (c.claimable_at or 0, c.event_id)):
            by_scope.setdefault((command.intent.tenant, command.intent.scope), []).append(command)
        in_turn = sorted(by_scope, key=lambda scope: (after is not None and scope <= after, scope))[:scopes_max]
        ranked = [(rank, turn, c) for turn, scope in enumerate(in_turn) for rank, c in enumerate(by_scope[scope])]
        found = [self._whole(command) for _, _, command in sorted(ranked, key=lambda one: one[:2])[:limit]]
        self._locks.take(Rank.COMMAND, [(command.event_id,) for command in found])
        return found

    def blocked_targets(self, targets: Collection[Target]) -> set[Target]:
        """See the port."""
        return {c.target for c in self._state.commands if c.target in targets and c.is_in_the_way(self._revision(c.target))}

    def unblocked(self, targets: Collection[Target]) -> list[Command]:
        """See the port. The locks come behind those of the targets: whoever wants such a command has its target first."""
        found = []
        for target in set(targets):
            commands = sorted((c for c in self._state.commands if c.target == target), key=lambda c: c.number)
            waiting = (c for c in commands if c.status is CommandStatus.PENDING and c.claimable_at is None)
            first = next(waiting, None)
            revision = self._revision(target)
            if first is not None and not any(c.blocks(first, revision=revision) for c in commands if c.number < first.number):
                found.append(self._whole(first))
        self._locks.take(Rank.COMMAND, [(command.event_id,) for command in found])
        return sorted(found, key=lambda command: command.event_id)

    def save_many(self, commands: Sequence[Command]) -> None:
        """See the port."""
        self._locks.check(Rank.COMMAND, [(command.event_id,) for command in commands])
        for command in commands:
            stored = required(self._state.commands.get(command.event_id), "a command that is locked is there")
            sealed = replace(command, intent=stored.intent, number=stored.number, accepted_at=stored.accepted_at)
            self._state.commands.put(command.event_id, sealed)

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        """See the port."""
        for settlement in settlements:
            invariant(settlement.event_id not in self._state.settlements, "a command is settled once")
            self._state.settlements.put(settlement.event_id, settlement)

    def settlement(self, event_id: EventId) -> Settlement | None:
        """See the port."""
        return self._state.settlements.get(event_id)

    def add_history(self, lines: Sequence[HistoryLine]) -> None:
        """See the port."""
        for line in lines:
            history = self._state.history.of(line.event_id)
            history.put(len(history), line)

    def history(self, event_id: EventId, *, limit: int) -> list[HistoryLine]:
        """See the port."""
        lines = list(self._state.history.of(event_id))
        return lines[max(0, len(lines) - limit) :]

    def page(self, *, tenant: str, statuses: Collection[str], before: EventId | None, limit: int) -> list[Command]:
        """See the port."""
        found = [
            command
            for command in self._state.commands
            if command.intent.tenant == tenant
            and (not statuses or command.status in statuses)
            and (before is None or command.event_id < before)
        ]
        newest_first = sorted(found, key=lambda command: command.event_id, reverse=True)
        return [self._whole(command) for command in newest_first[:limit]]

    def counts(self, tenant: str) -> dict[str, tuple[int, Instant | None]]:
        """See the port."""
        since: dict[str, list[Instant]] = {}
        for intent in self._state.intents:
            if intent.tenant == tenant and intent.status is IntentStatus.STAGED:
                since.setdefault(intent.status.value, []).append(intent.staged_at)
        for command in self._state.commands:
            if command.intent.tenant == tenant and command.is_open:
                since.setdefault(command.status.value, []).append(command.accepted_at)
        return {status: (len(instants), min(instants)) for status, instants in sorted(since.items())}

    def next_due(self, *, now: Instant) -> Instant | None:
        """See the port."""
        staged = [i.due_at for i in self._state.intents if i.status is IntentStatus.STAGED and i.due_at > now]
        waiting = [at for c in self._state.commands if (at := c.claimable_at) is not None and at > now]
        return min(staged + waiting, default=None)

    def _revision(self, target: Target) -> int:
        return (self.target(target) or TargetState(target=target)).revision

    def _whole(self, command: Command) -> Command:
        """Return the command with its intent as that stands now: what was sealed is read where it is kept."""
        return replace(command, intent=required(self._state.intents.get(command.intent.id), "a command has its intent"))


def _is_claimable(command: Command, now: Instant) -> bool:
    return command.claimable_at is not None and command.claimable_at <= now


def _consumer(command: Command) -> Consumer:
    return (command.target.owner, command.intent.kind.name, command.intent.kind.version)


def _key(target: Target) -> tuple[str, str]:
    return (target.owner, target.id)
