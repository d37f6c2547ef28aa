"""The terminal boundary: C·X → F → P → T → H, and what may follow it.

    C  occurrence: why the run ends, who wants it; in the same transaction the run is fenced (X)
    F  the visible frontier is frozen: nothing with a higher number leaves any more
    P  the persistence outcome: what became durable, what was seen beyond it, whether clean-up was done
    T  the receipt, the terminal status, outbox entry; one transaction, never taken back
    H  readers may treat state and history as authoritative

Keeps: T names exactly one C and one P, both of its own run (TR-58). C without P is indeterminate and never shown as
terminal. The policy in a receipt is advice as of T; `resume_policy` is pure and is asked again whenever it is used.
Three facts stay apart (TR-01): D the checkpoint, V the frozen frontier, T this record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from quiesce.domain.canonical import ALGORITHM, canonical, digest
from quiesce.domain.ids import CheckpointId, OccurrenceId, OutcomeId, ReceiptId, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.runs import RunStatus


class Cause(StrEnum):
    """Why a run ended, stored and never inferred (TR-05). One per run."""

    COMPLETED = "completed"
    EXPLICIT_CANCEL = "explicit_cancel"
    TRANSPORT_INTERRUPTED = "transport_interrupted"
    FAILED = "failed"


class Reason(StrEnum):
    """The finer word beside the cause; each names a different decision-maker (C20)."""

    FINISHED = "finished"
    USER_CANCEL = "user_cancel"
    PARENT_CANCEL = "parent_cancel"
    SUPERSEDED = "superseded"
    """A newer message took over the thread."""
    CLIENT_LEFT = "client_left"
    """The client left and had asked for an end in that case."""
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    REPLAY_MISMATCH = "replay_mismatch"
    DEADLINE = "deadline"
    BUDGET = "budget"
    PROCESS_LOST = "process_lost"
    """Attempts used up: each holder died."""
    WORKER_SHUTDOWN = "worker_shutdown"
    """The worker was stopped and nobody else was to take over."""


CAUSE_OF: Final[Mapping[Reason, Cause]] = {
    Reason.FINISHED: Cause.COMPLETED,
    Reason.USER_CANCEL: Cause.EXPLICIT_CANCEL,
    Reason.PARENT_CANCEL: Cause.EXPLICIT_CANCEL,
    Reason.SUPERSEDED: Cause.EXPLICIT_CANCEL,
    Reason.CLIENT_LEFT: Cause.TRANSPORT_INTERRUPTED,
    Reason.AGENT_ERROR: Cause.FAILED,
    Reason.TOOL_ERROR: Cause.FAILED,
    Reason.REPLAY_MISMATCH: Cause.FAILED,
    Reason.DEADLINE: Cause.FAILED,
    Reason.BUDGET: Cause.FAILED,
    Reason.PROCESS_LOST: Cause.FAILED,
    Reason.WORKER_SHUTDOWN: Cause.FAILED,
}

STATUS_OF: Final[Mapping[Cause, RunStatus]] = {
    Cause.COMPLETED: RunStatus.COMPLETED,
    Cause.EXPLICIT_CANCEL: RunStatus.CANCELLED,
    Cause.TRANSPORT_INTERRUPTED: RunStatus.CANCELLED,
    Cause.FAILED: RunStatus.FAILED,
}

WORDS_OF_CANCELLED: Final[Mapping[str, str]] = {
    "cause": "explicit_cancel",
    "run": "cancelled",
    "agent_server": "interrupted",
    "wave": "stopped",
}
"""One thing, its word in each place (G-04). `Agent Server` clients call a cancelled run interrupted (TR-24)."""


class ActorKind(StrEnum):
    """What kind of actor ended a run."""

    USER = "user"
    RUN = "run"
    """The run itself or its parent run."""
    SERVICE = "service"
    """A worker, a clock, an operator's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who did it: kind and name (a subject, a run id, a worker's name)."""

    kind: ActorKind
    name: str

    def to_json(self) -> dict[str, str]:
        """Return the form stored and shown."""
        return {"kind": str(self.kind), "name": self.name}

    @classmethod
    def from_json(cls, row: Mapping[str, str]) -> Actor:
        """Read back `to_json`."""
        return cls(kind=ActorKind(row["kind"]), name=row["name"])


class CancelMode(StrEnum):
    """How a cancel treats the operation that is under way."""

    NOW = "now"
    """Interrupt it; wait for what cannot be interrupted up to the grace."""
    AFTER_STEP = "after_step"
    """Let it finish, up to the grace, and stop at the next boundary."""


class CancelScope(StrEnum):
    """Whom a cancel means."""

    RUN = "run"
    """The run alone; children go on."""
    TREE = "tree"
    """The run and all its active descendants (RR-30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """C: the accepted end of a run. For a cancel it is the owner's AdmissionReceipt. Written once per run."""

    id: OccurrenceId
    run_id: RunId
    cause: Cause
    reason: Reason
    actor: Actor
    text: str
    """The actor's own words, redacted by who wrote them; may be empty."""
    command_key: str
    """Identity of the request: the same key gives the same occurrence back."""
    mode: CancelMode
    scope: CancelScope
    grace_ms: int
    origin_id: OccurrenceId | None
    """For a child ended by its parent's cancel: the parent's occurrence."""
    never_started: bool
    at: Instant


class TerminalDurability(StrEnum):
    """What P established (TR-06)."""

    DURABLE = "durable"
    PARTIAL = "partial"
    ABANDONED = "abandoned"


class GapKind(StrEnum):
    """What lies between the last checkpoint and what may have been seen."""

    NONE = "none"
    RECOVERABLE = "recoverable"
    PART_LOST = "part_lost"
    LOST = "lost"
    CONTRADICTS = "contradicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The numbers of a stream at its frozen end, read back from the store."""

    covered_seq: int
    stored_seq: int
    emitted_seq: int
    emitted_exact: bool
    state_bearing_stored: int
    """Stored state-bearing data events beyond `covered_seq`."""
    pending_writes: int
    """Stored results of finished operations that no checkpoint contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The gap between D and V, inspectable: bounds, counts and digest rather than a boolean (TR-17)."""

    kind: GapKind
    first_seq: int | None = None
    last_seq: int | None = None
    state_bearing: int = 0
    stored_through: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the form stored and shown."""
        return {
            "kind": str(self.kind),
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "state_bearing": self.state_bearing,
            "stored_through": self.stored_through,
        }


def measure(f: Frontier) -> tuple[TerminalDurability, Gap]:
    """Establish durability and gap from the numbers alone.

    Only state-bearing events open a gap (G-25). Numbers that may have left and are not stored count as state-bearing:
    nobody can say that they were not.
    """
    missing = max(0, f.emitted_seq - max(f.stored_seq, f.covered_seq))
    if not missing and not f.state_bearing_stored:
        return TerminalDurability.DURABLE, Gap(kind=GapKind.NONE)
    kept = bool(f.state_bearing_stored or f.pending_writes)
    gap = Gap(
        kind=GapKind.RECOVERABLE if not missing else GapKind.PART_LOST if kept else GapKind.LOST,
        first_seq=f.covered_seq + 1,
        last_seq=max(f.emitted_seq, f.stored_seq),
        state_bearing=f.state_bearing_stored + missing,
        stored_through=f.stored_seq,
    )
    return (TerminalDurability.PARTIAL if kept else TerminalDurability.ABANDONED), gap


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceOutcome:
    """P: what was established about durability after a bounded drain. Names its C; written once per C."""

    id: OutcomeId
    run_id: RunId
    occurrence_id: OccurrenceId
    frontier: Frontier
    durability: TerminalDurability
    gap: Gap
    cleanup_attempted: bool
    cleanup_completed: bool
    escalated: bool
    established_by: str
    """`holder`, or `recovery` when another process had to."""
    at: Instant


class ToolState(StrEnum):
    """Where the operations of a run stand, as far as the policy asks."""

    IDLE = "idle"
    SEALED = "sealed"
    COMMITTED_UNCONSUMED = "committed_unconsumed"
    OUTCOME_UNKNOWN = "outcome_unknown"


class Policy(StrEnum):
    """What a continuation needs."""

    NONE = "none"
    """No boundary yet: behaves as block; only the settlement may go on."""
    ALLOW = "allow"
    RECONCILE = "reconcile"
    RESTART = "restart"
    BLOCK = "block"


class SameRun(StrEnum):
    """Whether the run itself may get another attempt."""

    NO = "no"
    YES = "yes"
    OUTCOME_OWNER = "if the outcome owner says so"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """The answer of `resume_policy`: rule, policy, whether the same run may go on, and what is admissible in words."""

    rule: str
    policy: Policy
    same_run: SameRun
    admissible: str


_BY_CAUSE: Final[Mapping[Cause, tuple[tuple[str, str], tuple[str, str], tuple[str, str], SameRun]]] = {
    Cause.COMPLETED: (
        ("R3", "terminal readback; new run on the thread"),
        ("R4", "attach the delta as provenance; then new run"),
        ("R5", "new run from the last checkpoint only with acceptance naming what was lost"),
        SameRun.NO,
    ),
    Cause.EXPLICIT_CANCEL: (
        ("R6", "new run on the thread; this run never continues; unconsumed results are listed, not consumed"),
        ("R7", "show and attach the partial evidence; then new run"),
        ("R8", "new run from the last checkpoint; acceptance names number range and digest given up"),
        SameRun.NO,
    ),
    Cause.TRANSPORT_INTERRUPTED: (
        ("R9", "continue at its position; the client rejoins by number"),
        ("R10", "replay the stored delta to the client, record, continue"),
        ("R11", "with acceptance, from the last checkpoint; the step runs again from its start"),
        SameRun.YES,
    ),
    Cause.FAILED: (
        ("R12", "another attempt if the outcome owner says so; else new run"),
        ("R13", "delta kept as partial evidence; another attempt if the outcome owner says so, else new run"),
        ("R14", "with acceptance; another attempt if the outcome owner says so, else new run"),
        SameRun.OUTCOME_OWNER,
    ),
}


def resume_policy(cause: Cause, durability: TerminalDurability | None, gap: GapKind, tools: ToolState) -> ResumePolicy:
    """Decide what may follow a terminal boundary: ordered rules R0…R14, first match wins.

    Pure and total; `durability` None means that no outcome is established. Depends on cause and facts only, never on how
    a stream closed (TR-39). The expanded table is checked in the tests, row by row.
    """
    if durability is None:
        return ResumePolicy(
            rule="R0", policy=Policy.NONE, same_run=SameRun.NO, admissible="no receipt yet: finish settlement; nothing else"
        )
    if gap is GapKind.CONTRADICTS:
        return ResumePolicy(
            rule="R1", policy=Policy.BLOCK, same_run=SameRun.NO, admissible="inspect; reconcile by an explicit record"
        )
    if tools is ToolState.OUTCOME_UNKNOWN:
        return ResumePolicy(
            rule="R2",
            policy=Policy.BLOCK,
            same_run=SameRun.NO,
            admissible="read the tool's receipt again; reconcile; no dispatch; report what is known",
        )
    clean, recoverable, lost, same_run = _BY_CAUSE[cause]
    match gap:
        case GapKind.NONE:
            return ResumePolicy(rule=clean[0], policy=Policy.ALLOW, same_run=same_run, admissible=clean[1])
        case GapKind.RECOVERABLE:
            return ResumePolicy(rule=recoverable[0], policy=Policy.RECONCILE, same_run=same_run, admissible=recoverable[1])
        case GapKind.PART_LOST | GapKind.LOST:
            return ResumePolicy(rule=lost[0], policy=Policy.RESTART, same_run=same_run, admissible=lost[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalReceipt:
    """T: the machine-readable end of a run (TR-02, TR-48). Append-only; a new reading is a new record (TR-16).

    `digest` is H3 over everything else, chained to the previous receipt of the thread.
    """

    id: ReceiptId
    run_id: RunId
    thread_id: ThreadId
    attempt: int
    occurrence_id: OccurrenceId
    outcome_id: OutcomeId
    cause: Cause
    reason: Reason
    reason_text: str
    actor: Actor
    status: RunStatus
    checkpoint_id: CheckpointId | None
    frontier: Frontier
    durability: TerminalDurability
    gap: Gap
    cleanup_attempted: bool
    cleanup_completed: bool
    escalated: bool
    scope: CancelScope
    never_started: bool
    unresolved: tuple[Mapping[str, object], ...]
    unconsumed: tuple[Mapping[str, object], ...]
    artifacts: tuple[Mapping[str, object], ...]
    usage: Mapping[str, Mapping[str, int | None]]
    policy: ResumePolicy
    h1: str
    h2: str
    h2_exact: bool
    store_durability: str
    previous_digest: str | None
    published_at: Instant
    digest: str = field(default="")

    def body(self) -> dict[str, object]:
        """Return every field but the digest, under its JSON name: what H3 is computed over."""
        return {
            "receipt_id": self.id,
            "run_id": self.run_id,
            "thread_id": self.thread_id,
            "attempt": self.attempt,
            "occurrence_id": self.occurrence_id,
            "outcome_id": self.outcome_id,
            "terminal_cause": str(self.cause),
            "terminal_reason": str(self.reason),
            "reason_text": self.reason_text,
            "actor": self.actor.to_json(),
            "terminal_status": str(self.status),
            "last_checkpoint_id": self.checkpoint_id,
            "last_stream_seq_emitted": self.frontier.emitted_seq,
            "last_stream_seq_durable": max(self.frontier.covered_seq, self.frontier.stored_seq),
            "covered_seq": self.frontier.covered_seq,
            "stored_seq": self.frontier.stored_seq,
            "emitted_exact": self.frontier.emitted_exact,
            "terminal_durability": str(self.durability),
            "gap": self.gap.to_json(),
            "cleanup_attempted": self.cleanup_attempted,
            "cleanup_completed": self.cleanup_completed,
            "escalated": self.escalated,
            "cancel_scope": str(self.scope),
            "never_started": self.never_started,
            "unresolved_operations": [dict(o) for o in self.unresolved],
            "unconsumed_results": [dict(o) for o in self.unconsumed],
            "artifacts": [dict(a) for a in self.artifacts],
            "usage": {unit: dict(row) for unit, row in self.usage.items()},
            "resume_policy": str(self.policy.policy),
            "resume_rule": self.policy.rule,
            "same_run_may_continue": str(self.policy.same_run),
            "admissible": self.policy.admissible,
            "durable_state_digest": self.h1,
            "visible_state_digest_at_abort": self.h2,
            "visible_state_digest_exact": self.h2_exact,
            "store_durability": self.store_durability,
            "previous_receipt_digest": self.previous_digest,
            "digest_algorithm": ALGORITHM,
            "published_at": self.published_at,
        }

    def to_json(self) -> dict[str, object]:
        """Return the whole receipt, with its own digest."""
        return {**self.body(), "terminal_receipt_digest": self.digest}

    def h3(self) -> str:
        """Return the digest that `digest` must equal; changing any field changes it (TR-14)."""
        return digest_of_body(self.body())


def digest_of_body(body: Mapping[str, object]) -> str:
    """Return H3 of a receipt's JSON form, whether or not the digest field is in it."""
    return digest(canonical({k: v for k, v in body.items() if k != "terminal_receipt_digest"}))


def tool_state(statuses: list[tuple[bool, str]]) -> ToolState:
    """Fold (may have acted, status) of all operations to what the policy asks; the gravest wins."""
    if any(unknown for unknown, _ in statuses):
        return ToolState.OUTCOME_UNKNOWN
    if any(status == "committed" for _, status in statuses):
        return ToolState.COMMITTED_UNCONSUMED
    if any(status in ("sealed", "dispatched") for _, status in statuses):
        return ToolState.SEALED
    return ToolState.IDLE


class Comparison(StrEnum):
    """How durable state and visible stream of a run compare (TR-15)."""

    EQUAL = "equal"
    VISIBLE_AHEAD = "visible_ahead"
    DURABLE_AHEAD = "durable_ahead"
    DIVERGED = "diverged"
