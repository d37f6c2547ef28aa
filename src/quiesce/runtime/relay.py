"""The relay: turns intents that are due into commands with a place in their target's order, and does nothing else (CC-21).

Keeps: a number is given only here, at acceptance, so a timer that waits occupies none (CC-23); an intent becomes one
command however often it is relayed (CC-22); capacity was taken at staging, so nothing here can be refused (CC-27). An
intent whose `not_after` has passed meanwhile expires: nobody refused it, it simply came too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiesce.domain.commands import Intent, IntentStatus, Target
from quiesce.domain.deliveries import Command, CommandStatus, EventId, HistoryEvent, HistoryLine, TargetState
from quiesce.domain.ids import Fence
from quiesce.domain.instant import Instant
from quiesce.ports.notifier import COMMANDS
from quiesce.ports.store import Transaction
from quiesce.runtime.deliveries import places_of
from quiesce.runtime.environment import Environment


def relay_tx(tx: Transaction, env: Environment, *, limit: int) -> int:
    """Relay up to `limit` due intents; return how many were dealt with, expired ones included."""
    due = tx.intents.due(now=tx.now, limit=limit)
    if not due:
        return 0
    late = [intent for intent in due if intent.not_after is not None and intent.not_after <= tx.now]
    if late:
        tx.intents.end([intent.id for intent in late], IntentStatus.EXPIRED, tx.now)
    if fresh := [intent for intent in due if intent not in late]:
        _accept(tx, env, fresh)
        tx.ring(COMMANDS)
    if late:
        tx.intents.give_back(places_of(late))
    return len(due)


def _accept(tx: Transaction, env: Environment, intents: Sequence[Intent]) -> None:
    states = tx.commands.lock_targets({intent.target for intent in intents})
    blocked = tx.commands.blocked_targets(states)
    commands = []
    for intent in intents:
        state = states[intent.target] = _next(states[intent.target])
        commands.append(_command(EventId(env.new_id(tx.now)), intent, state.last_number, tx.now, blocked))
        blocked.add(intent.target)
    env.crash.reach("relay.inside")
    tx.commands.insert_many(commands)
    tx.intents.end([intent.id for intent in intents], IntentStatus.RELAYED, tx.now)
    tx.commands.save_targets(list(states.values()))
    tx.commands.add_history([_line(command, tx.now) for command in commands])


def _next(state: TargetState) -> TargetState:
    return replace(state, last_number=state.last_number + 1)


def _command(event_id: EventId, intent: Intent, number: int, now: Instant, blocked: set[Target]) -> Command:
    waits = intent.target in blocked and not intent.kind.overtakes
    return Command(
        event_id=event_id,
        intent=replace(intent, status=IntentStatus.RELAYED, ended_at=now),
        number=number,
        accepted_at=now,
        status=CommandStatus.PENDING,
        claimable_at=None if waits else now,
        fence=Fence(0),
    )


def _line(command: Command, now: Instant) -> HistoryLine:
    what = HistoryEvent.RELAYED
    return HistoryLine(event_id=command.event_id, what=what, fence=Fence(0), by="relay", reason="", at=now)
