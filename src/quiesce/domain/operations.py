"""Operations: the journaled acts of a run, and what a restart may do with each (the heart of RR-09…RR-14).

    sealed ──▶ dispatched ──▶ committed ──▶ consumed
       ▲            │  ▲          ▲
       └─ back-off ─┘  └─ again   │
                    └──▶ unknown ─┘   (only by the destination's own evidence or a person's decision)

The dispatch mark is durable before the call leaves, so a stored position is never earlier than reality for "dispatched"
and never later than it for "committed". `recover` is the one function that says what may happen next; it depends on stored
facts only (RR-20). A new process gives no right to dispatch again (RR-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from quiesce.domain.budgets import Amounts
from quiesce.domain.canonical import digest
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS


class OperationKind(StrEnum):
    """What an operation is."""

    STEP = "step"
    """Code that may be repeated until its result is stored."""
    CALL = "call"
    """A tool, with an effect policy."""
    CHILD = "child"
    """A run started by this run."""
    TIMER = "timer"
    """A durable wait for an instant."""
    WAIT = "wait"
    """A durable wait for a wake of one name, at most until an instant."""
    QUESTION = "question"
    """A question to a person: done once it is stored; its own row says how it ended."""
    CORRECTION = "correction"
    """What a safe boundary took of a person's corrections, be it none."""
    CHECKPOINT = "checkpoint"
    """The agent's own completed state."""


class EffectPolicy(StrEnum):
    """What may be done with a call that was dispatched and whose result is not stored."""

    PURE = "pure"
    """No outside effect: repeat freely."""
    IDEMPOTENT = "idempotent"
    """The destination deduplicates by the call's key: again with the same key."""
    PROBE = "probe"
    """Ask the destination first: happened, absent, or cannot tell."""
    ONCE = "once"
    """Never again without a decision."""


class OperationStatus(StrEnum):
    """Stored position of an operation."""

    SEALED = "sealed"
    DISPATCHED = "dispatched"
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    CONSUMED = "consumed"


TRANSITIONS: Final[Mapping[OperationStatus | None, frozenset[OperationStatus]]] = {
    None: frozenset({OperationStatus.SEALED, OperationStatus.DISPATCHED, OperationStatus.COMMITTED, OperationStatus.CONSUMED}),
    OperationStatus.SEALED: frozenset({OperationStatus.SEALED, OperationStatus.DISPATCHED, OperationStatus.COMMITTED}),
    OperationStatus.DISPATCHED: frozenset(
        {OperationStatus.DISPATCHED, OperationStatus.SEALED, OperationStatus.UNKNOWN, OperationStatus.COMMITTED}
    ),
    OperationStatus.UNKNOWN: frozenset({OperationStatus.COMMITTED, OperationStatus.SEALED}),
    OperationStatus.COMMITTED: frozenset({OperationStatus.CONSUMED}),
    OperationStatus.CONSUMED: frozenset(),
}
"""From a stored position to the next. A committed result is never rewritten (RR-31).

`dispatched → sealed` is a back-off after a definite failure; a back-off after no answer stays dispatched, since that try may
have acted. `unknown → sealed` is a recorded decision "did not happen".
"""


class ResultKind(StrEnum):
    """How a committed operation ended."""

    OK = "ok"
    ERROR = "error"
    GIVEN_UP = "given_up"
    """A person decided to go on without knowing; the agent gets an error that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of an operation, for the log: which holder, when, how it failed."""

    number: int
    fence: Fence
    started_at: Instant
    error: str | None = None
    ended_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One journaled act. `arguments` and `result` are canonical JSON; `fingerprint` covers kind, name and arguments."""

    run_id: RunId
    position: Position
    kind: OperationKind
    name: str
    fingerprint: str
    arguments: bytes
    policy: EffectPolicy
    status: OperationStatus
    fence: Fence
    """Fence of the holder that wrote this position."""
    sealed_at: Instant
    due_at: Instant | None = None
    """Back-off: not to be tried again before."""
    result_kind: ResultKind | None = None
    result: bytes | None = None
    settled_at: Instant | None = None
    reserved: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    tries: tuple[Try, ...] = ()

    @property
    def key(self) -> str:
        """The idempotency key handed to the tool: from run and position, never from a model's text (C56)."""
        return f"{self.run_id}:{self.position}"

    @property
    def has_result(self) -> bool:
        """Whether the result is stored."""
        return self.status in (OperationStatus.COMMITTED, OperationStatus.CONSUMED)

    @property
    def may_have_acted(self) -> bool:
        """Whether an outside effect may have happened that no stored result tells of (TR-43, TR-64)."""
        if self.kind is not OperationKind.CALL or self.policy is EffectPolicy.PURE:
            return False
        return self.status in (OperationStatus.DISPATCHED, OperationStatus.UNKNOWN)

    def to_json(self) -> dict[str, object]:
        """Return the facts that `inspect` and receipts show: no arguments and no result, which may be private."""
        return {
            "run_id": self.run_id,
            "operation": self.position,
            "kind": str(self.kind),
            "name": self.name,
            "effect": str(self.policy),
            "status": str(self.status),
            "result": None if self.result_kind is None else str(self.result_kind),
            "key": self.key,
            "tries": len(self.tries),
        }


def fingerprint(kind: OperationKind, name: str, arguments: bytes) -> str:
    """Return the digest by which replay recognises an operation."""
    return digest(b"%b\n%b\n%b" % (kind.value.encode(), name.encode(), arguments))


class Recovery(StrEnum):
    """What the holder does with an operation that its code asks for."""

    BEGIN = "begin"
    """Nothing stored: seal it and go on."""
    DISPATCH = "dispatch"
    """Sealed: dispatch the sealed arguments; nothing is asked of a model again."""
    AGAIN = "again"
    """Dispatched by an earlier holder and safe to repeat under the same key."""
    WAIT = "wait"
    """Back-off not yet due."""
    PROBE = "probe"
    """Dispatched by an earlier holder: ask the destination."""
    PARK = "park"
    """It may have happened and nobody can say: unknown, the run waits for evidence or a decision."""
    READ = "read"
    """The result is stored: return it, call nothing."""


def recover(operation: Operation | None, *, now: Instant) -> Recovery:
    """Decide from stored facts alone what may happen with an operation when its code asks for it.

    Total over status × policy × back-off. A dispatched operation read here was dispatched by an *earlier* holder: the
    present one keeps what it dispatched itself in memory.
    """
    if operation is None:
        return Recovery.BEGIN
    if operation.has_result:
        return Recovery.READ
    if operation.status is OperationStatus.UNKNOWN:
        return Recovery.PROBE if operation.policy is EffectPolicy.PROBE else Recovery.PARK
    is_early = operation.due_at is not None and now < operation.due_at
    if operation.status is OperationStatus.SEALED:
        return Recovery.WAIT if is_early else Recovery.DISPATCH
    if operation.kind is not OperationKind.CALL:
        return Recovery.AGAIN
    match operation.policy:
        case EffectPolicy.PURE | EffectPolicy.IDEMPOTENT:
            return Recovery.WAIT if is_early else Recovery.AGAIN
        case EffectPolicy.PROBE:
            return Recovery.PROBE
        case EffectPolicy.ONCE:
            return Recovery.PARK


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed step or call is tried again: exponential back-off with a stored due time. Milliseconds.

    Only a definite failure is retried. A call with policy `once` is never retried, whatever is set here.
    """

    tries: int = 1
    first_delay_ms: int = 200
    factor: float = 2.0
    delay_max_ms: int = 60_000

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 1 <= self.tries <= DEFAULT_LIMITS.tries_max:
            raise InvalidInput(field="retry.tries", value=self.tries, rule=f"must be 1 to {DEFAULT_LIMITS.tries_max}")
        if self.first_delay_ms < 0 or self.delay_max_ms < 0 or self.factor < 1:
            raise InvalidInput(field="retry", value=self, rule="delays must be ≥ 0 and factor ≥ 1")

    def delay_ms(self, tries_made: int) -> int | None:
        """Return the delay before the next try after `tries_made` failed ones, or None when they are used up."""
        if tries_made >= self.tries:
            return None
        return min(self.delay_max_ms, round(self.first_delay_ms * self.factor ** max(0, tries_made - 1)))
