"""What must hold after every step of the channel, judged by what really happened and never by how the channel decides.

A `Picture` is everything that is stored, and everything that took place outside. `Truth` compares each with the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from quiesce.domain.canonical import parse
from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus, Target
from quiesce.domain.deliveries import (
    Admission,
    AdmissionReceipt,
    Claim,
    Command,
    CommandKey,
    CommandStatus,
    Effect,
    EventId,
    HistoryEvent,
    HistoryLine,
    Settlement,
    TargetState,
    effect_of,
)
from quiesce.domain.instant import Instant
from quiesce.ports.store import Transaction

ENDED: Final = (CommandStatus.SETTLED, CommandStatus.DISCARDED, CommandStatus.EXPIRED)
STUCK: Final = (CommandStatus.UNKNOWN, CommandStatus.QUARANTINED)
BY_HAND: Final = "ada"
BY_OWNER: Final = "owner"


class Broken(AssertionError):
    """Something that must always hold does not."""


def must(holds: bool, what: str, about: object = "") -> None:
    if not holds:
        raise Broken(f"{what}: {about}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One moment: what is stored, and what took place."""

    now: Instant
    intents: Mapping[IntentId, Intent]
    commands: Mapping[EventId, Command]
    settlements: Mapping[EventId, Settlement]
    histories: Mapping[EventId, list[HistoryLine]]
    rooms: Mapping[str, Capacity]
    targets: Mapping[Target, TargetState]
    receipts: Mapping[CommandKey, AdmissionReceipt]
    """The owners' own."""
    effects: tuple[CommandKey, ...]
    """One for each time that one took place."""

    @classmethod
    def take(cls, tx: Transaction, now: Instant, intents: list[IntentId], targets: list[Target]) -> Picture:
        """Read everything that is stored. What took place outside is added by whoever knows it."""
        commands = {c.event_id: c for c in reversed(tx.commands.page(tenant="local", statuses=(), before=None, limit=1000))}
        settled = {event_id: tx.commands.settlement(event_id) for event_id in commands}
        local = [c for c in commands.values() if c.target.owner == "ledger"]
        receipts = {c.key: receipt for c in local if (receipt := tx.admissions.get(c.key)) is not None}
        lines = [parse(line.body) for line in tx.outbox.pending(limit=10_000) if line.topic == "ledger"]
        return cls(
            now=now,
            intents={i: intent for i in intents if (intent := tx.intents.get(i)) is not None},
            commands=commands,
            settlements={event_id: settlement for event_id, settlement in settled.items() if settlement is not None},
            histories={event_id: tx.commands.history(event_id, limit=10_000) for event_id in commands},
            rooms={room.scope: room for room in tx.intents.capacities("local")},
            targets=tx.commands.targets(targets),
            receipts=receipts,
            effects=tuple(CommandKey(f"control:{line['event']}") for line in lines),  # type: ignore[index, call-overload]
        )

    def revision(self, target: Target) -> int:
        return self.targets.get(target, TargetState(target=target)).revision

    def was_stuck(self, command: Command) -> bool:
        """Whether it was unknown or quarantined once: later ones may have gone by, if it is no barrier."""
        events = {line.what for line in self.histories[command.event_id]}
        return bool(events & {HistoryEvent.UNKNOWN, HistoryEvent.QUARANTINED})

    def is_over(self, command: Command) -> bool:
        """Whether it belongs to an incarnation of its target that is over: stuck, it holds up nobody any more."""
        return command.intent.revision < self.revision(command.target)

    def ahead_of(self, later: Command) -> list[Command]:
        """The commands for which this one must wait."""
        if later.intent.kind.overtakes:
            return []
        return [
            c
            for c in self.commands.values()
            if c.target == later.target
            and c.number < later.number
            and c.status not in ENDED
            and ((c.intent.kind.is_barrier and not self.is_over(c)) or not self.was_stuck(c))
        ]

    def used(self, scope: str) -> int:
        """How many places of a scope are taken, counted one by one."""
        staged = (i for i in self.intents.values() if i.scope == scope and i.status is IntentStatus.STAGED)
        open_ones = (c for c in self.commands.values() if c.intent.scope == scope and c.status not in ENDED)
        return sum(1 for _ in staged) + sum(1 for _ in open_ones)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was done between two pictures: under which claim, if it was a delivery's step, and by whose hand."""

    claim: Claim | None = None
    is_delivery: bool = False


class Truth:
    """Compares each picture with the one before."""

    def __init__(self, attempts_max: int) -> None:
        self.last: Picture | None = None
        self._attempts_max = attempts_max

    def see(self, after: Picture, moment: Moment) -> None:
        """Raise `Broken` if something does not hold."""
        before = self.last or replace(after, commands={}, histories={}, settlements={}, effects=(), receipts={})
        self.last = after
        _rooms(after)
        _numbers(before, after)
        _effects(before, after, moment)
        for event_id, command in after.commands.items():
            _said(after, command)
            _waits(after, command)
            known = before.commands.get(event_id)
            if known is None or known != command or before.histories[event_id] != after.histories[event_id]:
                _history(before.histories.get(event_id, []), after.histories[event_id], command)
            if known is not None and known != command:
                self._moved(before, after, known, command, moment)
        for intent_id, known_intent in before.intents.items():
            _sealed_intent(known_intent, after.intents[intent_id])
        for event_id, settlement in before.settlements.items():
            must(after.settlements[event_id] == settlement, "a settlement is never written again", settlement)

    def _moved(self, before: Picture, after: Picture, was: Command, now: Command, moment: Moment) -> None:
        must(was.status not in ENDED, "what ended never changes", (was, now))
        sealed = replace(was.intent, status=now.intent.status, ended_at=now.intent.ended_at)
        must((now.intent, now.number, now.accepted_at) == (sealed, was.number, was.accepted_at), "it is sealed", (was, now))
        must(now.is_uncertain or not was.is_uncertain, "uncertainty stays until the owner's receipt shows", now)
        if now.is_uncertain:
            fine = now.status in (*STUCK, CommandStatus.CLAIMED) or now.status in ENDED
            must(fine, "what is uncertain is never offered as if it were new", now)
        lines = after.histories[now.event_id][len(before.histories[was.event_id]) :]
        what = {line.what for line in lines}
        if now.fence != was.fence:
            must(now.fence == was.fence + 1 and HistoryEvent.CLAIMED in what, "a fence grows by one with a claim", (was, now))
            _claimed(after, was, now)
        if HistoryEvent.STARTED in what:
            _started(before, after, was, now)
        if what and was.status is CommandStatus.CLAIMED and moment.is_delivery and moment.claim is not None:
            must(moment.claim.fence == was.fence, "a claim that is over writes nothing", (was, now, moment))
        if now.status is CommandStatus.UNKNOWN and was.status is not now.status:
            began = was.is_uncertain or _has_begun(before.histories[was.event_id])
            must(began, "nothing is unknown that never began, or was certainly undone", (was, now))
        if now.status is CommandStatus.QUARANTINED and lines[-1].by != BY_HAND:
            must(was.attempts >= self._attempts_max, "attempts are used up before a person is asked", (was, now))
        if now.status is CommandStatus.DISCARDED:
            must(now.intent.revision < after.revision(now.target), "only what is superseded is discarded", now)
        if now.status is CommandStatus.EXPIRED:
            must(now.intent.not_after is not None and now.intent.not_after <= after.now, "only what is late expires", now)


def _claimed(after: Picture, was: Command, now: Command) -> None:
    fine = was.status in (CommandStatus.PENDING, CommandStatus.UNKNOWN) or (
        was.status is CommandStatus.CLAIMED and was.expires_at is not None and was.expires_at <= after.now
    )
    must(fine, "nobody is given what another one holds", (was, now))
    if was.status is CommandStatus.PENDING:
        must(not after.ahead_of(now), "it waits for what is ahead of it", (now, after.ahead_of(now)))


def _started(before: Picture, after: Picture, was: Command, now: Command) -> None:
    must(_is_live(was, after.now), "an admission begins under a live claim", was)
    must(now.started_fence == was.fence, "the mark is written ahead", now)
    must(now.intent.revision == after.revision(now.target), "what is superseded is not admitted", now)
    must(now.intent.not_after is None or after.now < now.intent.not_after, "what is late is not admitted", now)
    must(not after.ahead_of(now), "it waits for what is ahead of it", (now, after.ahead_of(now)))
    must(now.key not in before.receipts, "what was decided is not asked again", now)
    if was.started_fence is not None or was.is_uncertain:
        must(now.target.owner in ("ledger", "vault"), "only proof allows a second admission", now)


def _effects(before: Picture, after: Picture, moment: Moment) -> None:
    twice = [key for key, count in Counter(after.effects).items() if count > 1]
    must(not twice, "an effect takes place once", twice)
    by_key = {c.key: c for c in after.commands.values()}
    for key in Counter(after.effects) - Counter(before.effects):
        command = by_key[key]
        marked = {line.fence for line in after.histories[command.event_id] if line.what is HistoryEvent.STARTED}
        must(bool(marked), "no effect without an admission that was marked ahead", command)
        must(after.receipts[key].verdict is Admission.ACCEPTED, "an effect and its receipt are one", command)
        if command.target.owner == "ledger":
            _decided(before, after, command, moment)
    gone = {key for key in before.receipts if after.receipts.get(key) != before.receipts[key]}
    must(not gone, "an owner's receipt stays", gone)


def _decided(before: Picture, after: Picture, command: Command, moment: Moment) -> None:
    """A local owner decides in one transaction, and nothing may have changed when that ends."""
    was = before.commands[command.event_id]
    must(_is_live(was, after.now), "the owner decides under a live claim", (was, after.now))
    mine = moment.claim
    must(mine is not None and (mine.fence, mine.worker_id) == (was.fence, was.worker_id), "and under no other", (was, mine))
    must(command.intent.revision == before.revision(command.target), "nor for a superseded target", command)
    must(command.intent.not_after is None or after.now < command.intent.not_after, "nor too late", (command, after.now))


def _has_begun(history: list[HistoryLine]) -> bool:
    """Whether an admission began that was not certainly rolled back: only that puts off what has begun."""
    told = [line.what for line in history if line.what in (HistoryEvent.STARTED, HistoryEvent.DEFERRED)]
    return bool(told) and told[-1] is HistoryEvent.STARTED


def _is_live(command: Command, now: Instant) -> bool:
    return command.status is CommandStatus.CLAIMED and command.expires_at is not None and now < command.expires_at


def _said(picture: Picture, command: Command) -> None:
    """What is said of an effect never contradicts what took place."""
    settlement = picture.settlements.get(command.event_id)
    receipt = picture.receipts.get(command.key)
    took_place = command.key in picture.effects
    must((settlement is not None) == (command.status is CommandStatus.SETTLED), "settled means with a receipt", command)
    if settlement is not None:
        must(settlement.receipt == receipt, "a settlement is the owner's own receipt", (settlement, receipt))
    said = effect_of(command, settlement)
    match said:
        case Effect.ACCEPTED:
            must(took_place, "accepted: it took effect", command)
        case Effect.REJECTED:
            must(not took_place, "rejected: it took no effect", command)
        case Effect.UNKNOWN:
            must(command.status not in ENDED, "unknown: its delivery is open", command)
        case _:
            must(not took_place and receipt is None, f"{said}: nobody decided about it", (command, receipt))


def _waits(picture: Picture, command: Command) -> None:
    """Nobody waits for what is stuck, but for a barrier of the present incarnation."""
    if command.status is not CommandStatus.PENDING or command.claimable_at is not None:
        return
    ahead = (c for c in picture.commands.values() if c.target == command.target and c.number < command.number)
    in_the_way = (
        c
        for c in ahead
        if c.status not in ENDED
        and (not (c.status in STUCK or c.is_uncertain) or (c.intent.kind.is_barrier and not picture.is_over(c)))
    )
    must(any(in_the_way), "who waits has something ahead of it", command)


def _history(was: list[HistoryLine], now: list[HistoryLine], command: Command) -> None:
    must(now[: len(was)] == was, "a history is only appended to", command)
    must(bool(now) and now[0].what is HistoryEvent.RELAYED, "a history begins with its acceptance", command)
    fences = [line.fence for line in now if line.what is HistoryEvent.CLAIMED]
    must(fences == list(range(1, command.fence + 1)), "each claim has a fence of its own", (fences, command))
    told = [line for line in now if line.by != BY_HAND]
    must(len(told) <= 8 + 4 * len(fences), "a claim leaves a bounded number of lines", len(told))


def _rooms(picture: Picture) -> None:
    for scope, room in picture.rooms.items():
        must(room.used == picture.used(scope), "a scope counts what is unfinished", (room, picture.used(scope)))


def _numbers(before: Picture, after: Picture) -> None:
    for target, state in after.targets.items():
        ours = sorted((c for c in after.commands.values() if c.target == target), key=lambda c: c.number)
        must([c.number for c in ours] == list(range(1, state.last_number + 1)), "numbers have no gap", ours)
        must(sorted(ours, key=lambda c: c.accepted_at) == ours, "numbers follow the order of acceptance", ours)
        known = before.targets.get(target)
        must(known is None or known.revision <= state.revision, "revisions never go back", state)


def _sealed_intent(was: Intent, now: Intent) -> None:
    if was.status is not IntentStatus.STAGED:
        must(was == now, "an intent ends once", (was, now))
    must(now == replace(was, status=now.status, ended_at=now.ended_at), "what was sealed never changes", (was, now))
