"""Deliveries: how a relayed command reaches its owner, and what each fact about it allows next (the heart of CC-39…CC-61).

    pending ──claim──▶ claimed ──┬─▶ settled          from the owner's receipt, and from nothing else
       ▲                         ├─▶ pending          deferred: the receipt could not be read, nothing was begun
       └── lease ends, defer ────┤
                                 ├─▶ unknown ──claim─▶ claimed     to read the receipt again, never to admit
                                 ├─▶ quarantined      attempts used up, or nobody knows this kind
                                 ├─▶ discarded        its target was superseded; nothing had begun
                                 └─▶ expired          its `not_after` passed; nothing had begun
    quarantined ──by hand──▶ pending if it is certain, unknown if it is not: its receipt is read again
    unknown, quarantined, and offered again from there ──owner's receipt──▶ settled

Three facts are kept apart and never stand for each other (CC-63): the command arrived (it has a number), its effect was
admitted (its owner's receipt), it is not known (an admission began and no receipt can be had). `next_step` is the one
function that says what may be done; it depends on stored facts and one reading of the receipt. Only an owner makes an
effect, and only its receipt settles.

Knows nothing of stores, clocks or what a command does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NewType

from quiesce.domain.commands import Intent, Target
from quiesce.domain.errors import InvalidInput, invariant
from quiesce.domain.ids import Fence, WorkerId
from quiesce.domain.instant import Instant

EventId = NewType("EventId", str)
CommandKey = NewType("CommandKey", str)
AdmissionId = NewType("AdmissionId", str)


class CommandStatus(StrEnum):
    """Where the delivery of a command stands. Says nothing of its effect."""

    PENDING = "pending"
    CLAIMED = "claimed"
    UNKNOWN = "unknown"
    QUARANTINED = "quarantined"
    SETTLED = "settled"
    DISCARDED = "discarded"
    EXPIRED = "expired"


_ENDS: Final = (CommandStatus.SETTLED, CommandStatus.DISCARDED, CommandStatus.EXPIRED)

TRANSITIONS: Final[Mapping[CommandStatus, frozenset[CommandStatus]]] = {
    CommandStatus.PENDING: frozenset({CommandStatus.CLAIMED, CommandStatus.QUARANTINED, *_ENDS}),
    CommandStatus.CLAIMED: frozenset(
        {CommandStatus.CLAIMED, CommandStatus.PENDING, CommandStatus.UNKNOWN, CommandStatus.QUARANTINED, *_ENDS}
    ),
    CommandStatus.UNKNOWN: frozenset({CommandStatus.CLAIMED, CommandStatus.QUARANTINED, CommandStatus.SETTLED}),
    CommandStatus.QUARANTINED: frozenset({CommandStatus.PENDING, CommandStatus.UNKNOWN, CommandStatus.SETTLED}),
    CommandStatus.SETTLED: frozenset(),
    CommandStatus.DISCARDED: frozenset(),
    CommandStatus.EXPIRED: frozenset(),
}
"""From a stored status to the next. A settlement is never rewritten; unknown never becomes discarded or expired by itself."""

TERMINAL: Final = frozenset(status for status, onward in TRANSITIONS.items() if not onward)


class Admission(StrEnum):
    """What an owner answered. Both are definite."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReceipt:
    """An owner's own proof that it accepted or refused a command. `effect_ref` names the effect in the owner's words."""

    id: AdmissionId
    command_key: CommandKey
    verdict: Admission
    reason: str
    effect_ref: str
    at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the form that goes over the wire and that reading verbs show."""
        return {
            "admission_id": self.id,
            "command_key": self.command_key,
            "verdict": str(self.verdict),
            "reason": self.reason,
            "effect_ref": self.effect_ref,
            "at": self.at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> AdmissionReceipt:
        """Read what an owner elsewhere sent. Raises `InvalidInput` for what is no receipt: never half of one."""
        try:
            return cls(
                id=AdmissionId(str(value["admission_id"])),
                command_key=CommandKey(str(value["command_key"])),
                verdict=Admission(str(value["verdict"])),
                reason=str(value["reason"]),
                effect_ref=str(value["effect_ref"]),
                at=Instant(int(str(value["at"]))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(field="receipt", value=sorted(value), rule=f"is no admission receipt: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The authoritative store holds no receipt under this key (CC-43).

    `excludes_in_flight`: nor can one appear from any admission begun under an earlier fence. A local owner says so, since
    such an admission has either committed or is refused by its fence; a remote one only if it can prove it (G-13).
    """

    excludes_in_flight: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """The receipt could not be read; never the same as absent (CC-44). `why` is short and holds no secret."""

    why: str


Reading = AdmissionReceipt | Absent | Unreadable


class Step(StrEnum):
    """What may be done next with a claimed command."""

    READ = "read"
    SETTLE = "settle"
    ADMIT = "admit"
    DEFER = "defer"
    KEEP_UNKNOWN = "keep_unknown"
    DISCARD = "discard"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One worker's time-limited right to deliver. No permission: the owner still decides (CC-36)."""

    fence: Fence
    worker_id: WorkerId
    expires_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A relayed command and the state of its delivery.

    `claimable_at`: when anybody may claim it: at once or after a deferral while pending, at the end of the lease while
    claimed, for the next reading while unknown; None while earlier commands of its target are in its way, and once it
    needs no claim any more. `started_fence`: the last fence under which an admission began, written ahead of it.
    `is_uncertain`: an answer was lost; never taken back. `attempts` counts the claims, `failures` the readings in a row
    that failed.
    """

    event_id: EventId
    intent: Intent
    number: int
    accepted_at: Instant
    status: CommandStatus
    claimable_at: Instant | None
    fence: Fence
    worker_id: WorkerId | None = None
    expires_at: Instant | None = None
    started_fence: Fence | None = None
    is_uncertain: bool = False
    attempts: int = 0
    failures: int = 0
    reason: str = ""
    ended_at: Instant | None = None

    @property
    def key(self) -> CommandKey:
        """The identity under which the owner deduplicates; the same over every delivery (CC-15)."""
        return CommandKey(f"control:{self.event_id}")

    @property
    def target(self) -> Target:
        """What its owner decides about."""
        return self.intent.target

    @property
    def is_open(self) -> bool:
        """Whether it still takes a place of its scope."""
        return self.status not in TERMINAL

    @property
    def may_have_begun(self) -> bool:
        """Whether an admission may have taken place that no receipt has shown."""
        return self.is_uncertain or self.started_fence is not None

    @property
    def claim(self) -> Claim | None:
        """The claim under which it stands, live or not."""
        if self.status is not CommandStatus.CLAIMED or self.worker_id is None or self.expires_at is None:
            return None
        return Claim(fence=self.fence, worker_id=self.worker_id, expires_at=self.expires_at)

    def holds(self, claim: Claim, now: Instant) -> bool:
        """Whether this very claim is still live: same worker, same fence, not expired (CC-34, CC-38)."""
        mine = self.claim
        return mine is not None and (mine.fence, mine.worker_id) == (claim.fence, claim.worker_id) and now < mine.expires_at

    def is_in_the_way(self, revision: int) -> bool:
        """Whether ordinary later commands of its target, which stands at `revision`, wait for it (G-09).

        One that is stuck stays in the way only as a barrier of the incarnation that its target still is: what becomes known
        of an earlier one decides nothing for the present one (G-10, G-11).
        """
        is_stuck = self.status in (CommandStatus.UNKNOWN, CommandStatus.QUARANTINED) or self.is_uncertain
        is_barrier = self.intent.kind.is_barrier and self.intent.revision >= revision
        return self.is_open and (is_barrier or not is_stuck)

    def blocks(self, later: Command, *, revision: int) -> bool:
        """Whether `later`, of the same target, waits for this one while the target stands at `revision`."""
        return self.is_in_the_way(revision) and not later.intent.kind.overtakes

    def taken(self, worker_id: WorkerId, expires_at: Instant) -> Command:
        """Give it to a worker: the fence grows with every claim (CC-30)."""
        return replace(
            self,
            status=CommandStatus.CLAIMED,
            fence=Fence(self.fence + 1),
            worker_id=worker_id,
            expires_at=expires_at,
            claimable_at=expires_at,
            attempts=self.attempts + 1,
        )

    def renewed(self, expires_at: Instant) -> Command:
        """Extend the claim."""
        return replace(self, expires_at=expires_at, claimable_at=expires_at)

    def started(self) -> Command:
        """Mark ahead that an admission begins under this claim (CC-46, G-12)."""
        return replace(self, started_fence=self.fence)

    def deferred(self, until: Instant, why: str) -> Command:
        """Put off another reading; nothing has begun (CC-45)."""
        invariant(not self.is_uncertain, "what is uncertain is never offered for a first admission again")
        return self._released(CommandStatus.PENDING, until, why)

    def undone(self, until: Instant, why: str) -> Command:
        """Put it off because its admission certainly rolled back: the mark goes, as if that admission had never begun.

        Nothing is left in doubt then, since an admission begins only once no earlier one can take effect any more.
        """
        return replace(self.deferred(until, why), started_fence=None)

    def unknown(self, until: Instant, why: str) -> Command:
        """Keep it as unknown; it may only be read again, and stays so over claims and restarts (CC-49…CC-53).

        Its readings are counted by themselves: those before it became unknown do not use them up.
        """
        attempts = self.attempts if self.is_uncertain else 0
        return replace(self._released(CommandStatus.UNKNOWN, until, why), is_uncertain=True, attempts=attempts)

    def quarantined(self, why: str) -> Command:
        """Hold it for a person. Neither success nor an end of its uncertainty (CC-57…CC-59)."""
        return self._released(CommandStatus.QUARANTINED, None, why)

    def requeued(self, now: Instant, why: str) -> Command:
        """Offer it again from quarantine, unless it is uncertain (V21). Unless it overtakes, it takes its place behind others."""
        invariant(not self.is_uncertain, "what is uncertain is never offered for a first admission again")
        claimable_at = now if self.intent.kind.overtakes else None
        return replace(self._released(CommandStatus.PENDING, claimable_at, why), attempts=0, failures=0)

    def to_reconcile(self, now: Instant, why: str) -> Command:
        """Have the receipt of one that is quarantined and uncertain read again: neither admitted again, nor less uncertain."""
        invariant(self.is_uncertain, "what is certain is offered again, not reconciled")
        return replace(self._released(CommandStatus.UNKNOWN, now, why), attempts=0, failures=0)

    def closed(self, status: CommandStatus, at: Instant, why: str = "") -> Command:
        """Close the delivery: settled, discarded or expired."""
        return replace(self._released(status, None, why), ended_at=at)

    def _released(self, status: CommandStatus, claimable_at: Instant | None, why: str) -> Command:
        invariant(status in TRANSITIONS[self.status], f"a command goes from {self.status} to {status}")
        failed = status in (CommandStatus.PENDING, CommandStatus.UNKNOWN) and self.status is CommandStatus.CLAIMED
        return replace(
            self,
            status=status,
            claimable_at=claimable_at,
            worker_id=None,
            expires_at=None,
            reason=why,
            failures=self.failures + 1 if failed else self.failures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the channel knows of a target: its revision and the last number it gave to a command for it."""

    target: Target
    revision: int = 0
    last_number: int = 0


class HistoryEvent(StrEnum):
    """What a line of a command's history says."""

    RELAYED = "relayed"
    CLAIMED = "claimed"
    STARTED = "started"
    DEFERRED = "deferred"
    UNKNOWN = "unknown"
    QUARANTINED = "quarantined"
    REQUEUED = "requeued"
    RECONCILING = "reconciling"
    SETTLED = "settled"
    DISCARDED = "discarded"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """One line of a command's history: append-only, a bounded number per claim (CC-70)."""

    event_id: EventId
    what: HistoryEvent
    fence: Fence
    by: str
    """The worker, or who else did it."""
    reason: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The end of a delivery: which receipt of the owner it was settled from, under which fence (0: pushed by the owner)."""

    event_id: EventId
    receipt: AdmissionReceipt
    fence: Fence
    at: Instant


class Effect(StrEnum):
    """What is known of a command's effect, whatever became of its delivery (CC-63)."""

    NOT_YET = "not_yet"
    """No admission has begun."""
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    """An admission began, and no receipt shows yet how it ended."""
    NEVER = "never"
    """The delivery was closed before any admission could have taken effect."""


def effect_of(command: Command, settlement: Settlement | None) -> Effect:
    """Say what is known of a command's effect: from its owner's receipt alone, never from how far the delivery is."""
    if settlement is not None:
        return Effect(settlement.receipt.verdict.value)
    if not command.is_open:
        return Effect.NEVER
    return Effect.UNKNOWN if command.may_have_begun else Effect.NOT_YET


def next_step(command: Command, *, revision: int, now: Instant, reading: Reading | None) -> Step:
    """Say what a claim's holder may do: the flow of a delivery as one pure function.

    `revision` is the target's present one, `reading` what was read of the owner's receipt under this claim (None: nothing
    yet). Source: the five situations of requirement CC-61, the transitions V7…V18, resolutions G-11 and G-13.
    """
    if isinstance(reading, AdmissionReceipt):
        return Step.SETTLE
    is_superseded = command.intent.revision < revision
    if is_superseded and not command.may_have_begun:
        return Step.DISCARD
    match reading:
        case None:
            return Step.READ
        case Unreadable():
            return Step.KEEP_UNKNOWN if command.may_have_begun else Step.DEFER
        case Absent(excludes_in_flight=excludes):
            begun_before = command.started_fence is not None and command.started_fence < command.fence
            if command.may_have_begun and not (excludes and begun_before):
                return Step.KEEP_UNKNOWN
            if is_superseded:
                return Step.DISCARD
            not_after = command.intent.not_after
            return Step.EXPIRE if not_after is not None and not_after <= now else Step.ADMIT
