"""C, F and P: why a run ends, where its visible frontier was frozen, and what was established about durability.

Keeps: a cause is stored and never inferred; each reason names a different decision-maker (C20); durability and gap follow
from the numbers alone. `terminal.py` binds these facts into the receipt, T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.domain.ids import OccurrenceId, OutcomeId, RunId
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
    """The worker was stopped for good (`close(end_runs=True)`) and nobody else was to take over."""


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
