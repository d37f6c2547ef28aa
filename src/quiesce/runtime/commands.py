"""Staging: a command becomes a fact in its producer's own transaction, or does not (CC-10…CC-14, CC-20…CC-27).

Keeps: the same producer key with the same meaning gives the first intent back, with another meaning a conflict that names
what differs; a place in the scope is taken with the intent, so what is committed can always be relayed; a refusal leaves
nothing behind and the producer free to roll back what it wanted to announce.

Needs no more of a transaction than `Staging` has, so that it runs as well on a connection of the producer's own (see
`adapters/staging`). Knows nothing of relay, delivery or what a command does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quiesce.domain.canonical import Json, canonical
from quiesce.domain.commands import DEFAULT_SCOPE, Capacity, Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import TargetState
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, InvalidInput, NotFound, Refused, required
from quiesce.domain.instant import Instant
from quiesce.domain.limits import Limits
from quiesce.domain.texts import check_text
from quiesce.ports.commands import Staging
from quiesce.ports.notifier import COMMANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """What a producer asks of an owner.

    `producer` and `producer_key`: who asks, and its own identity of this request; the same key is the same request for ever.
    `subject`: on whose authority. `revision`: the incarnation of the target that is meant. `due_at`: not to be delivered
    before; `not_after`: not to be admitted any more then.
    """

    kind: Kind
    target: Target
    producer: str
    producer_key: str
    subject: str
    payload: Json | Mapping[str, object] = None
    revision: int = 0
    scope: str = DEFAULT_SCOPE
    tenant: str = "local"
    due_at: Instant | None = None
    not_after: Instant | None = None

    def check_identity(self, limits: Limits) -> None:
        """Raise `InvalidInput` unless tenant, producer and key can name a request."""
        check_text("tenant", self.tenant, limits.name_chars_max)
        check_text("producer", self.producer, limits.name_chars_max)
        check_text("producer_key", self.producer_key, limits.key_chars_max)

    def sealed(self, intent_id: IntentId, now: Instant, limits: Limits) -> Intent:
        """Return the intent that this request means at that instant. Raises `InvalidInput` that names field, value and rule.

        A request that was made before is compared as of the instant of its first staging: what it means without a `due_at`,
        and whether its `not_after` lies ahead, does not change when it is made again.
        """
        intent = Intent(
            id=intent_id,
            tenant=self.tenant,
            scope=self.scope,
            producer=self.producer,
            producer_key=self.producer_key,
            subject=self.subject,
            target=self.target,
            revision=self.revision,
            kind=self.kind,
            payload=canonical(self.payload, field="payload", limits=limits),
            due_at=now if self.due_at is None else self.due_at,
            not_after=self.not_after,
            staged_at=now,
        )
        intent.check(limits)
        return intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The answer of staging: the intent as it is stored, and whether this call made it."""

    intent: Intent
    is_new: bool = field(default=True)


def stage_tx(tx: Staging, wanted: CommandRequest, *, intent_id: IntentId, limits: Limits) -> Staged:
    """Store an intent in the caller's transaction, or return the one that this producer key made before.

    Raises `InvalidInput`, `IdempotencyConflict` (other content under the same key) or `CapacityExhausted`; nothing of the
    command is stored then, and the caller may roll back or go on.
    """
    if not isinstance(wanted, CommandRequest):  # whatever an untyped caller hands in: an event or a trace is no command
        raise InvalidInput(field="wanted", value=type(wanted).__name__, rule="must be a CommandRequest")
    wanted.check_identity(limits)
    if (known := tx.intents.by_key(wanted.tenant, wanted.producer, wanted.producer_key)) is not None:
        return _same_or_conflict(known, wanted.sealed(intent_id, known.staged_at, limits))
    intent = wanted.sealed(intent_id, tx.now, limits)
    state = tx.commands.target(intent.target) or TargetState(target=intent.target)
    if intent.revision > state.revision:
        rule = f"is not reached yet: {intent.target.owner} {intent.target.id} stands at revision {state.revision}"
        raise InvalidInput(field="revision", value=intent.revision, rule=rule)
    bound, reserve = limits.command_scope_bound, limits.command_scope_reserve
    if not tx.intents.take_place(intent.tenant, intent.scope, overtakes=intent.kind.overtakes, bound=bound, reserve=reserve):
        known_room = tx.intents.capacity(intent.tenant, intent.scope)
        fresh = Capacity(tenant=intent.tenant, scope=intent.scope, bound=bound, reserve=reserve, used=0)
        raise _exhausted(known_room or fresh)
    if not tx.intents.insert(intent):  # stored by another process while this one waited for it
        tx.intents.give_back({(intent.tenant, intent.scope): 1})
        known = required(
            tx.intents.by_key(intent.tenant, intent.producer, intent.producer_key), "an intent whose key is taken is there"
        )
        return _same_or_conflict(known, wanted.sealed(intent_id, known.staged_at, limits))
    tx.ring(COMMANDS)
    return Staged(intent=intent)


def stage_many_tx(
    tx: Staging, wanted: Sequence[CommandRequest], *, new_id: Callable[[], IntentId], limits: Limits
) -> list[Staged]:
    """Stage several requests, in their order; raises as `stage_tx`, and the caller takes back what was staged before.

    Their scopes are locked first, in ascending order, so that two producers who name them in another order never wait
    for each other.
    """
    scopes = sorted({(request.tenant, request.scope) for request in wanted})
    for tenant, scope in scopes if len(scopes) > 1 else ():
        bound, reserve = limits.command_scope_bound, limits.command_scope_reserve
        if tx.intents.take_place(tenant, scope, overtakes=True, bound=bound, reserve=reserve):
            tx.intents.give_back({(tenant, scope): 1})
    return [stage_tx(tx, request, intent_id=new_id(), limits=limits) for request in wanted]


def _same_or_conflict(known: Intent, wanted: Intent) -> Staged:
    if known.fingerprint == wanted.fingerprint:
        return Staged(intent=known, is_new=False)
    differs = known.differences(wanted)
    raise IdempotencyConflict(
        f"producer key {wanted.producer_key!r} of {wanted.producer!r} already names intent {known.id}, "
        f"which differs in {', '.join(differs)}; use another key for another request",
        key=wanted.producer_key,
        intent_id=known.id,
        differs=differs,
        stored_fingerprint=known.fingerprint,
        offered_fingerprint=wanted.fingerprint,
    )


def _exhausted(room: Capacity) -> CapacityExhausted:
    kept = f", and {room.reserve} more for commands that may overtake" if room.reserve else ""
    return CapacityExhausted(
        f"scope {room.scope!r} holds {room.used} unfinished commands; its bound is {room.bound}{kept}. "
        "Nothing was staged: settle or withdraw some, or raise the bound",
        scope=room.scope,
        used=room.used,
        bound=room.bound,
        reserve=room.reserve,
    )


def withdraw_tx(tx: Staging, intent_id: IntentId, *, tenant: str) -> Intent:
    """Take back an intent that was not relayed yet; its place is free again. Withdrawing it twice changes nothing (V2).

    Raises `NotFound`, or `Refused` for one that was relayed or has expired.
    """
    intent = tx.intents.lock(intent_id)
    if intent is None or intent.tenant != tenant:
        raise NotFound("intent", intent_id, "nothing was withdrawn")
    if intent.status is IntentStatus.WITHDRAWN:
        return intent
    if intent.status is not IntentStatus.STAGED:
        raise Refused(
            f"intent {intent.id} is {intent.status}: only what was not relayed yet can be withdrawn",
            intent_id=intent.id,
            status=str(intent.status),
        )
    tx.intents.end([intent.id], IntentStatus.WITHDRAWN, tx.now)
    tx.intents.give_back({(intent.tenant, intent.scope): 1})
    return required(tx.intents.get(intent.id), "an intent that was locked is there")


def supersede_tx(tx: Staging, target: Target, revision: int) -> TargetState:
    """Declare a target's next incarnation, in its owner's transaction: commands for earlier ones lose their force (CC-33).

    What is stuck in an earlier one no longer holds up the commands of this one (G-11). The same revision again changes
    nothing. Raises `InvalidInput` for an earlier one: revisions never go back.
    """
    state = tx.commands.lock_targets([target])[target]
    if revision < state.revision:
        raise InvalidInput(field="revision", value=revision, rule=f"lies before revision {state.revision} of the target")
    if revision > state.revision:
        state = TargetState(target=target, revision=revision, last_number=state.last_number)
        tx.commands.save_targets([state])
        tx.ring(COMMANDS)
        let_through_tx(tx, [target])
    return state


def let_through_tx(tx: Staging, targets: Collection[Target]) -> None:
    """Make claimable what nothing holds up any more: the next command in the order of each target."""
    tx.commands.lock_targets(targets)
    if freed := tx.commands.unblocked(targets):
        tx.commands.save_many([replace(command, claimable_at=tx.now) for command in freed])
        tx.ring(COMMANDS)
