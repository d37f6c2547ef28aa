"""Claims of commands and every change of a delivery: each function one short transaction with no owner in it (CC-28).

Keeps: the fence grows with every claim; a claim that is lost writes nothing; `next_step` alone says what a reading allows,
judged here under the command's lock with the newest facts; a delivery is settled from a receipt and from nothing else;
what ends gives its place back and lets the next command of its target through.

Knows no owner and no effect. What it writes says how far a command's delivery is, never what became of its effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from quiesce.domain.commands import Intent
from quiesce.domain.deliveries import (
    AdmissionReceipt,
    Claim,
    Command,
    CommandStatus,
    EventId,
    HistoryEvent,
    HistoryLine,
    Reading,
    Settlement,
    Step,
    TargetState,
    Unreadable,
    next_step,
)
from quiesce.domain.errors import InvalidInput, NotFound, Refused, required
from quiesce.domain.ids import Fence, WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.ports.notifier import COMMANDS
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import let_through_tx
from quiesce.runtime.environment import Environment

_LATE = "its not_after passed before an admission began"
_SUPERSEDED = "its target was superseded before an admission began"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A command as it is to be stored, and the line of its history that says why."""

    command: Command
    what: HistoryEvent
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What came of a claim: the commands to deliver, and how many others were closed or quarantined on the way."""

    commands: list[Command]
    put_aside: int


def claim_commands_tx(
    tx: Transaction,
    env: Environment,
    worker_id: WorkerId,
    consumers: Collection[Consumer],
    *,
    limit: int,
    after: ScopeKey | None,
) -> Claimed:
    """Claim up to `limit` commands for a worker that knows these kinds, fair over scopes.

    What is found to be superseded, late or out of attempts is closed or quarantined on the way and not handed out (V7, V19):
    it is counted, since whoever waited for it may be claimable now.
    """
    found = tx.commands.claimable(consumers, now=tx.now, limit=limit, after=after)
    states = tx.commands.targets({command.target for command in found})
    expires_at = after_ms(tx.now, env.settings.command_lease_ms)
    changes = []
    for command in found:
        revision = states.get(command.target, TargetState(target=command.target)).revision
        changes.append(_claim_or_close(command, revision, worker_id, tx.now, expires_at, env.limits.command_attempts_max))
    record_tx(tx, changes)
    if changes:
        env.crash.reach("delivery.claiming")
    taken = [change.command for change in changes if change.what is HistoryEvent.CLAIMED]
    return Claimed(commands=taken, put_aside=len(changes) - len(taken))


def _claim_or_close(
    command: Command, revision: int, worker_id: WorkerId, now: Instant, expires_at: Instant, attempts_max: int
) -> Change:
    by = str(worker_id)
    late = command.intent.not_after is not None and command.intent.not_after <= now
    if next_step(command, revision=revision, now=now, reading=None) is Step.DISCARD:
        return Change(command=command.closed(CommandStatus.DISCARDED, now, _SUPERSEDED), what=HistoryEvent.DISCARDED, by=by)
    if late and not command.may_have_begun:
        return Change(command=command.closed(CommandStatus.EXPIRED, now, _LATE), what=HistoryEvent.EXPIRED, by=by)
    if command.attempts >= attempts_max:
        why = f"{command.attempts} attempts are used up; the last: {command.reason or 'its worker was lost'}"
        return Change(command=command.quarantined(why), what=HistoryEvent.QUARANTINED, by=by)
    return Change(command=command.taken(worker_id, expires_at), what=HistoryEvent.CLAIMED, by=by)


def renew_claims_tx(tx: Transaction, claims: dict[EventId, Claim], *, lease_ms: int) -> set[EventId]:
    """Extend the claims that are still live under the same worker and fence; return those that are lost (CC-38)."""
    now, expires_at = tx.now, after_ms(tx.now, lease_ms)
    held = [c for c in tx.commands.lock_many(claims).values() if c.holds(claims[c.event_id], now)]
    tx.commands.save_many([command.renewed(expires_at) for command in held])
    return set(claims) - {command.event_id for command in held}


def release_claims_tx(tx: Transaction, claims: dict[EventId, Claim]) -> None:
    """Hand claims back before they end: whoever comes next reads the receipt first, as after a death."""
    held = [c for c in tx.commands.lock_many(claims).values() if c.holds(claims[c.event_id], tx.now)]
    tx.commands.save_many([command.renewed(tx.now) for command in held])
    if held:
        tx.ring(COMMANDS)


def act_tx(tx: Transaction, env: Environment, claimed: Command, reading: Reading) -> tuple[Step | None, Command]:
    """Judge a reading of the owner's receipt under the command's lock, and store what follows from it (V8, V10…V13, V18).

    Returns the step and the command as stored. None: the claim is lost, and nothing was written. After `ADMIT` the mark
    `started_fence` is stored ahead of the admission, and the caller may now ask the owner.
    """
    command = tx.commands.lock(claimed.event_id)
    claim = claimed.claim
    if command is None or claim is None or not command.holds(claim, tx.read_clock()):
        return None, command or claimed
    revision = (tx.commands.target(command.target) or TargetState(target=command.target)).revision
    step = next_step(command, revision=revision, now=tx.now, reading=reading)
    by = str(claim.worker_id)
    if isinstance(reading, AdmissionReceipt):
        settled = settle_tx(tx, command, reading, by=by)
        env.crash.reach("delivery.acting")
        return step, settled
    why = reading.why if isinstance(reading, Unreadable) else ""
    match step:
        case Step.ADMIT:
            change = Change(command=command.started(), what=HistoryEvent.STARTED, by=by)
        case Step.DISCARD:
            ended = command.closed(CommandStatus.DISCARDED, tx.now, _SUPERSEDED)
            change = Change(command=ended, what=HistoryEvent.DISCARDED, by=by)
        case Step.EXPIRE:
            change = Change(command=command.closed(CommandStatus.EXPIRED, tx.now, _LATE), what=HistoryEvent.EXPIRED, by=by)
        case Step.DEFER:
            until = _again_at(env, tx.now, command)
            change = Change(command=command.deferred(until, why), what=HistoryEvent.DEFERRED, by=by)
        case _:
            change = _unknown(env, tx.now, command, why or "an admission may have begun; no receipt shows how it ended", by)
    record_tx(tx, [change])
    env.crash.reach("delivery.acting")
    return step, change.command


def answered_tx(tx: Transaction, claimed: Command, receipt: AdmissionReceipt) -> Command | None:
    """Settle a delivery from the answer of its admission (V15). None: the claim is lost; nothing was written (K15)."""
    if (command := _still_ours(tx, claimed)) is None:
        return None
    return settle_tx(tx, command, receipt, by=str(claimed.worker_id))


def unanswered_tx(tx: Transaction, env: Environment, claimed: Command, why: str) -> Command | None:
    """Keep a command as unknown: its admission began, and its answer is lost (V17). None: the claim is lost."""
    if (command := _still_ours(tx, claimed)) is None:
        return None
    change = _unknown(env, tx.now, command, why, str(claimed.worker_id))
    record_tx(tx, [change])
    return change.command


def undone_tx(tx: Transaction, env: Environment, claimed: Command, why: str) -> Command | None:
    """Offer a command again whose admission certainly rolled back: its owner could not decide. None: the claim is lost."""
    if (command := _still_ours(tx, claimed)) is None:
        return None
    if command.is_uncertain:
        change = _unknown(env, tx.now, command, why, str(claimed.worker_id))
    else:
        undone = command.undone(_again_at(env, tx.now, command), why)
        change = Change(command=undone, what=HistoryEvent.DEFERRED, by=str(claimed.worker_id))
    record_tx(tx, [change])
    return change.command


def _still_ours(tx: Transaction, claimed: Command) -> Command | None:
    """Lock a command and return it if nobody has claimed it since.

    That the lease has ended meanwhile does not matter here: what is told is a fact about an admission of this fence.
    """
    command = tx.commands.lock(claimed.event_id)
    if command is None or command.status is not CommandStatus.CLAIMED or command.fence != claimed.fence:
        return None
    return command


def settle_tx(tx: Transaction, command: Command, receipt: AdmissionReceipt, *, by: str) -> Command:
    """Settle a locked, open command from its owner's receipt, accepted or rejected alike (V12, V20).

    Raises `InvalidInput` for a receipt of another command.
    """
    if receipt.command_key != command.key:
        raise InvalidInput(field="receipt.command_key", value=receipt.command_key, rule=f"is not the key of {command.key}")
    settled = command.closed(CommandStatus.SETTLED, tx.now, receipt.reason)
    record_tx(tx, [Change(command=settled, what=HistoryEvent.SETTLED, by=by)])
    tx.commands.add_settlements([Settlement(event_id=command.event_id, receipt=receipt, fence=command.fence, at=tx.now)])
    return settled


def push_receipt_tx(tx: Transaction, event_id: EventId, receipt: AdmissionReceipt, *, by: str) -> Command:
    """Settle a command from a receipt that its owner brings by itself (V20). One that is settled already stays as it is.

    Raises `NotFound`, `InvalidInput` for another command's receipt, or `Refused` for a command of which no admission began.
    """
    command = tx.commands.lock(event_id)
    if command is None:
        raise NotFound("command", event_id)
    if command.status is CommandStatus.SETTLED:
        return command
    if not (command.is_open and command.may_have_begun):
        raise Refused(
            f"command {event_id} is {command.status}: no admission of it began, so no receipt of it can be true",
            event_id=event_id,
            status=str(command.status),
        )
    return settle_tx(tx, command, receipt, by=by)


def quarantine_tx(tx: Transaction, event_id: EventId, *, why: str, by: str) -> Command:
    """Take a command that nobody delivers out of its target's way (V19): for one whose kind no worker knows, say.

    Raises `NotFound`, or `Refused` for one that is claimed, ended or quarantined already.
    """
    command = _locked(tx, event_id)
    if command.status not in (CommandStatus.PENDING, CommandStatus.UNKNOWN):
        raise Refused(f"command {event_id} is {command.status}; only pending and unknown ones can be quarantined by hand")
    quarantined = command.quarantined(why)
    record_tx(tx, [Change(command=quarantined, what=HistoryEvent.QUARANTINED, by=by)])
    return quarantined


def requeue_tx(tx: Transaction, event_id: EventId, *, why: str, by: str) -> Command:
    """Offer a quarantined command again (V21). Only if it certainly never began: uncertainty ends by a receipt alone.

    Raises `NotFound`, or `Refused` that says why not.
    """
    command = _locked(tx, event_id)
    if command.status is not CommandStatus.QUARANTINED:
        raise Refused(f"command {event_id} is {command.status}; only quarantined ones can be requeued", event_id=event_id)
    if command.is_uncertain:
        raise Refused(
            f"command {event_id} may have taken effect: it ends by its owner's receipt alone; "
            "`quiesce queue reconcile` has that read again",
            event_id=event_id,
        )
    requeued = command.requeued(tx.now, why)
    record_tx(tx, [Change(command=requeued, what=HistoryEvent.REQUEUED, by=by)])
    tx.ring(COMMANDS)
    return required(tx.commands.get(event_id), "a command that is locked is there")


def reconcile_tx(tx: Transaction, event_id: EventId, *, why: str, by: str) -> Command:
    """Have the owner of a quarantined, uncertain command asked for its receipt again; it is not admitted again by that.

    Raises `NotFound`, or `Refused` for one that is not quarantined, or that is certain and may be requeued.
    """
    command = _locked(tx, event_id)
    if command.status is not CommandStatus.QUARANTINED:
        raise Refused(
            f"command {event_id} is {command.status}; only quarantined ones can be reconciled by hand", event_id=event_id
        )
    if not command.is_uncertain:
        raise Refused(f"command {event_id} is not uncertain: requeue it", event_id=event_id)
    reconciling = command.to_reconcile(tx.now, why)
    record_tx(tx, [Change(command=reconciling, what=HistoryEvent.RECONCILING, by=by)])
    tx.ring(COMMANDS)
    return reconciling


def record_tx(tx: Transaction, changes: Sequence[Change]) -> None:
    """Store changed commands with their history; free the places of those that ended, and let through who waited for them."""
    if not changes:
        return
    tx.commands.save_many([change.command for change in changes])
    tx.commands.add_history([_line(change, tx.now) for change in changes])
    leaves = (CommandStatus.UNKNOWN, CommandStatus.QUARANTINED)
    moved = [c.command for c in changes if not c.command.is_open or c.command.status in leaves or c.what is HistoryEvent.REQUEUED]
    if moved:
        let_through_tx(tx, {command.target for command in moved})
    if ended := [command.intent for command in moved if not command.is_open]:
        tx.intents.give_back(places_of(ended))


def places_of(intents: Iterable[Intent]) -> dict[ScopeKey, int]:
    """Count the places that these intents take, by scope."""
    places: dict[ScopeKey, int] = {}
    for intent in intents:
        key = (intent.tenant, intent.scope)
        places[key] = places.get(key, 0) + 1
    return places


def _locked(tx: Transaction, event_id: EventId) -> Command:
    command = tx.commands.lock(event_id)
    if command is None:
        raise NotFound("command", event_id)
    return command


def _unknown(env: Environment, now: Instant, command: Command, why: str, by: str) -> Change:
    unknown = command.unknown(_again_at(env, now, command), why)
    return Change(command=unknown, what=HistoryEvent.UNKNOWN, by=by)


def _again_at(env: Environment, now: Instant, command: Command) -> Instant:
    """Return when the next reading is due: the wait doubles with every failure in a row, up to a bound."""
    wait_ms = env.settings.defer_ms * 2 ** min(command.failures, 20)
    return after_ms(now, min(wait_ms, env.settings.defer_ms_max))


def _line(change: Change, now: Instant) -> HistoryLine:
    fence = Fence(change.command.fence)
    reason = change.command.reason
    return HistoryLine(event_id=change.command.event_id, what=change.what, fence=fence, by=change.by, reason=reason, at=now)
