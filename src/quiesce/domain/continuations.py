"""Continuations: under which recorded choice a run may build on the one before it.

The policy of a boundary (`resume.py`) says what going on needs; this module says whether what was offered suffices. Nothing
is ever continued without a record: each run of a thread but the first has one `Continuation`, which names the receipt it
rests on, the rule, what the new run builds on, what was given up, and who decided.

Keeps: a choice counts for the receipt that it names and no other; `block` and `none` are never overruled, by nobody; lost
output is given up only by a choice that says `restart` (TR-36, TR-37); a standing policy never does more than
it says. The newest facts decide: policy and choice are compared where they are used, never where they were read (G-27).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from quiesce.domain.boundary import Actor
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import ReceiptId, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.resume import Policy, ResumePolicy
from quiesce.domain.terminal import TerminalReceipt


class OnGap(StrEnum):
    """What may be done, without asking again, where the last run left a gap."""

    BLOCK = "block"
    """Nothing: somebody has to choose."""
    RECONCILE = "reconcile"
    """Go on if everything that was seen is kept."""
    RESTART = "restart"
    """Go on from the last checkpoint even if something that was seen is lost; the record names it."""


class Carry(StrEnum):
    """What the new run builds on."""

    CHECKPOINT = "checkpoint"
    """The head's last checkpoint, and nothing beyond it."""
    KEEP_PARTIAL = "keep_partial"
    """The head's last checkpoint, with what was seen beyond it attached: marked as partial, never completed state."""
    ROLLBACK = "rollback"
    """What the head itself was built on: nothing of the head. Its receipt and its stream stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A caller's explicit choice about one receipt. `policy`: reconcile or restart; None accepts only what is allowed."""

    receipt_id: ReceiptId
    policy: OnGap | None = None
    carry: Carry = Carry.KEEP_PARTIAL
    basis: str | None = None
    """The facts on which the caller decided, as a thread's view names them; other facts refuse the choice."""

    def __post_init__(self) -> None:
        """Refuse a choice of nothing."""
        if self.policy is OnGap.BLOCK:
            raise InvalidInput(field="policy", value="block", rule="must be reconcile or restart: block chooses nothing")


class Scope(StrEnum):
    """Whom a standing policy stands for; the first that is declared counts."""

    MESSAGE = "message"
    """One queued message, said with it."""
    THREAD = "thread"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPolicy:
    """A choice made ahead, and by whom. Each use of it is on record."""

    tenant: str
    scope: Scope
    name: str
    """The run, thread or agent that it stands for."""
    number: int
    """Order of the declarations for this name, from 1; the newest counts."""
    on_gap: OnGap
    carry: Carry
    declared_by: str
    declared_at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the form stored in a continuation and shown."""
        return {
            "scope": str(self.scope),
            "name": self.name,
            "number": self.number,
            "on_gap": str(self.on_gap),
            "carry": str(self.carry),
            "declared_by": self.declared_by,
            "declared_at": self.declared_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """What the user may have seen and the new run does not build on: numbers of the head's stream, with their digest."""

    run_id: RunId
    first_seq: int
    last_seq: int
    digest: str
    is_exact: bool
    """Whether the digest covers all of it; else what was stored of it."""

    def to_json(self) -> dict[str, object]:
        """Return the form stored and shown."""
        return {
            "run_id": self.run_id,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "digest": self.digest,
            "is_exact": self.is_exact,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> GivenUp:
        """Read back `to_json`."""
        return cls(
            run_id=RunId(str(row["run_id"])),
            first_seq=int(str(row["first_seq"])),
            last_seq=int(str(row["last_seq"])),
            digest=str(row["digest"]),
            is_exact=bool(row["is_exact"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The record of one use of a boundary: written with the new run's turn, never changed. One per run, one per receipt."""

    run_id: RunId
    thread_id: ThreadId
    tenant: str
    head_run_id: RunId
    receipt_id: ReceiptId
    rule: str
    policy: Policy
    """As of this use, from the newest facts."""
    basis: str
    """Digest of these facts."""
    carry: Carry
    base_run_id: RunId | None
    """The run that the new one builds on; None after a rollback to the thread's beginning."""
    gave_up: GivenUp | None
    standing: Mapping[str, object] | None
    """The standing policy that chose, if nobody was asked."""
    actor: Actor
    at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the record as reading verbs show it."""
        return {
            "run_id": self.run_id,
            "thread_id": self.thread_id,
            "head_run_id": self.head_run_id,
            "receipt_id": self.receipt_id,
            "rule": self.rule,
            "policy": str(self.policy),
            "basis": self.basis,
            "carry": str(self.carry),
            "base_run_id": self.base_run_id,
            "gave_up": None if self.gave_up is None else self.gave_up.to_json(),
            "standing": None if self.standing is None else dict(self.standing),
            "actor": self.actor.to_json(),
            "at": self.at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The new run may go on, building on `carry`; `standing` says which policy chose, None that a caller did or none had to."""

    carry: Carry
    standing: StandingPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """It may not. `needs`: the choices that would do, none if no choice can."""

    why: str
    needs: tuple[OnGap, ...] = ()


def permit(now: ResumePolicy, choice: Choice | None, standing: Sequence[StandingPolicy]) -> Granted | Withheld:
    """Decide whether a run may build on a boundary whose policy, as of the newest facts, is `now`.

    `standing`: what is declared, the most specific first; only the first counts. Pure and total. A rollback gives up
    everything seen of the head, kept or lost; lost output it gives up only under `restart`, like anybody.
    """
    match now.policy:
        case Policy.NONE:
            return Withheld(why="its boundary is not published yet")
        case Policy.BLOCK:
            return Withheld(why=f"{now.rule}: {now.admissible}")
        case Policy.ALLOW:
            return Granted(carry=_without_gap(choice, standing), standing=_of_message(choice, standing))
        case Policy.RECONCILE | Policy.RESTART:
            needs = (OnGap.RECONCILE, OnGap.RESTART) if now.policy is Policy.RECONCILE else (OnGap.RESTART,)
            if choice is not None and choice.policy is not None:
                carry = _carried(now.policy, choice.policy, choice.carry)
                why = f"{choice.policy} was offered, and what was seen is lost in part: {now.admissible}"
                return Withheld(why=why, needs=needs) if carry is None else Granted(carry=carry)
            declared = standing[0] if standing else None
            carry = None if declared is None else _carried(now.policy, declared.on_gap, declared.carry)
            if carry is None:
                return Withheld(why=f"{now.rule}: {now.admissible}", needs=needs)
            return Granted(carry=carry, standing=declared)


def _carried(now: Policy, offered: OnGap, carry: Carry) -> Carry | None:
    """Return what is carried under an offer; None if the offer does not suffice."""
    if offered is OnGap.BLOCK or (now is Policy.RESTART and offered is not OnGap.RESTART):
        return None
    if carry is Carry.ROLLBACK:
        return Carry.ROLLBACK
    return Carry.CHECKPOINT if offered is OnGap.RESTART else Carry.KEEP_PARTIAL


def _without_gap(choice: Choice | None, standing: Sequence[StandingPolicy]) -> Carry:
    message = _of_message(choice, standing)
    wanted = choice.carry if choice is not None else message.carry if message is not None else None
    return Carry.ROLLBACK if wanted is Carry.ROLLBACK else Carry.CHECKPOINT


def _of_message(choice: Choice | None, standing: Sequence[StandingPolicy]) -> StandingPolicy | None:
    """Return what was said with the message itself: the only standing word that moves a head without a gap."""
    if choice is not None or not standing or standing[0].scope is not Scope.MESSAGE:
        return None
    return standing[0] if standing[0].carry is Carry.ROLLBACK else None


def given_up(receipt: TerminalReceipt, carry: Carry) -> GivenUp | None:
    """Return what a continuation of this receipt gives up; None if it builds on everything that may have been seen."""
    frontier, gap = receipt.frontier, receipt.gap
    first = 1 if carry is Carry.ROLLBACK else gap.first_seq
    last = max(frontier.emitted_seq, frontier.stored_seq) if carry is Carry.ROLLBACK else gap.last_seq
    if carry is Carry.KEEP_PARTIAL or first is None or last is None or last < first:
        return None
    return GivenUp(run_id=receipt.run_id, first_seq=first, last_seq=last, digest=receipt.h2, is_exact=receipt.h2_exact)
