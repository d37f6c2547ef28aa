"""Runs: the durable logical execution of one agent on one input, and who may write to it.

    pending ──▶ running ⇄ waiting
       │           │         │
       └───────────┴─────────┴──▶ settling ──▶ completed | cancelled | failed

Keeps: question, bindings, absolute deadline and budget limits never change after submission (RR-15…RR-19). The fence rises
with every claim and once more when a cancel is admitted; a write by a holder carries it and is refused when it is old, as
a value (`Admission`). A run that settles still takes *evidence* from the holder that was fenced out (output already
emitted, results of calls already dispatched), until its frontier is frozen; it takes nothing that begins anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from quiesce.domain.budgets import Budget
from quiesce.domain.ids import Fence, Position, RunId, ThreadId, WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.streams import Visibility


class RunStatus(StrEnum):
    """Execution state of a run."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    SETTLING = "settling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED})

TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.SETTLING}),
    RunStatus.RUNNING: frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.SETTLING}),
    RunStatus.WAITING: frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SETTLING}),
    RunStatus.SETTLING: TERMINAL,
    RunStatus.COMPLETED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
    RunStatus.FAILED: frozenset(),
}
"""`running → running` is a take-over after expiry."""


class Durability(StrEnum):
    """When steps and checkpoints become durable. Dispatches, results of calls and cancels always are at once (ST-16)."""

    SYNC = "sync"
    """Before the next step begins."""
    ASYNC = "async"
    """While the next step runs."""
    EXIT = "exit"
    """At the end of the attempt, or with the next write that must be durable."""


class WaitKind(StrEnum):
    """What a waiting run waits for."""

    TIMER = "timer"
    CHILD = "child"
    WAKE = "wake"
    """A wake of this name, from outside."""
    ANSWER = "answer"
    """A person's answer to the question of this id, at most until it expires."""
    UNKNOWN = "unknown"
    """Evidence or a decision about an effect that may have happened."""
    TURN = "turn"
    """Its turn in the thread of this id: the head's boundary."""
    CHOICE = "choice"
    """A choice about the receipt of this id: the thread's last run ended such that going on needs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that a run waits for.

    `subject`: a child's run id, a wake's name, a question's, thread's or receipt's id, or the position of the operation.
    """

    kind: WaitKind
    subject: str
    position: Position
    due_at: Instant | None = None

    def to_json(self) -> dict[str, str | int | None]:
        """Return the form stored and shown."""
        return {"kind": str(self.kind), "subject": self.subject, "position": self.position, "due_at": self.due_at}

    @classmethod
    def from_json(cls, row: Mapping[str, str | int | None]) -> Wait:
        """Read back `to_json`."""
        due = row["due_at"]
        return cls(
            kind=WaitKind(str(row["kind"])),
            subject=str(row["subject"]),
            position=Position(str(row["position"])),
            due_at=None if due is None else Instant(int(due)),
        )


class Admission(StrEnum):
    """What the fence of a write entitles to."""

    HOLDER = "holder"
    """The run's own fence: everything."""
    EVIDENCE = "evidence"
    """Fenced out by a cancel whose drain is still open: output already emitted, results of what was dispatched."""
    STALE = "stale"
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. `input` and `bindings` are canonical JSON."""

    id: RunId
    thread_id: ThreadId
    number: int
    """Order within the thread, from 1."""
    tenant: str
    subject: str
    """Who submitted it; part of the authority it acts under."""
    key: str | None
    fingerprint: str
    agent: str
    input: bytes
    bindings: bytes
    parent_id: RunId | None
    root_id: RunId
    status: RunStatus
    fence: Fence
    worker_id: WorkerId | None
    attempt: int
    drain_fence: Fence | None
    """While settling: the fence that may still deliver evidence."""
    settle_at: Instant | None
    """While settling: from then on anybody finishes the settlement."""
    waits: tuple[Wait, ...]
    due_at: Instant | None
    deadline_at: Instant | None
    durability: Durability
    visibility: Visibility
    budget: Budget
    created_at: Instant
    ended_at: Instant | None

    @property
    def is_terminal(self) -> bool:
        """Whether a terminal boundary is published."""
        return self.status in TERMINAL

    @property
    def is_active(self) -> bool:
        """Whether it may still execute: neither ended nor settling."""
        return self.status not in TERMINAL and self.status is not RunStatus.SETTLING

    def admits(self, fence: Fence) -> Admission:
        """Return what a write that carries `fence` may do now."""
        if self.status is RunStatus.RUNNING and fence == self.fence:
            return Admission.HOLDER
        if self.status is RunStatus.SETTLING and self.drain_fence is not None and fence == self.drain_fence:
            return Admission.EVIDENCE
        return Admission.STALE

    def is_claimable(self, now: Instant, *, holder_is_live: bool) -> bool:
        """Return whether a worker may take it at `now`: pending, due, or running under a lease that ran out."""
        match self.status:
            case RunStatus.PENDING:
                return True
            case RunStatus.WAITING:
                return self.due_at is not None and self.due_at <= now
            case RunStatus.RUNNING:
                return not holder_is_live
            case _:
                return False

    def claimed(self, worker_id: WorkerId) -> Run:
        """Return the run as taken by a worker: the fence grows, a new attempt opens."""
        return replace(
            self,
            status=RunStatus.RUNNING,
            fence=Fence(self.fence + 1),
            worker_id=worker_id,
            attempt=self.attempt + 1,
            waits=(),
            due_at=None,
        )

    def released(self) -> Run:
        """Return the run as handed back, to be claimed again."""
        return replace(self, status=RunStatus.PENDING, worker_id=None, waits=(), due_at=None)

    def parked(self, waits: tuple[Wait, ...]) -> Run:
        """Return the run as waiting, without process and lease; due at the earliest timer among `waits`."""
        due = min((w.due_at for w in waits if w.due_at is not None), default=None)
        return replace(self, status=RunStatus.WAITING, worker_id=None, waits=waits, due_at=due)

    def woken(self) -> Run:
        """Return the run as claimable at once."""
        return replace(self, status=RunStatus.PENDING, waits=(), due_at=None)

    def fenced_for_settlement(self, *, settle_at: Instant) -> Run:
        """Return the run with its end accepted (X): fence raised, eligibility gone, a drain open for a live holder."""
        return replace(
            self,
            status=RunStatus.SETTLING,
            fence=Fence(self.fence + 1),
            drain_fence=self.fence if self.worker_id is not None else None,
            settle_at=settle_at,
            waits=(),
            due_at=None,
        )

    def ended(self, status: RunStatus, now: Instant) -> Run:
        """Return the run as terminal: nobody holds it and nothing may be written to it."""
        return replace(self, status=status, worker_id=None, drain_fence=None, settle_at=None, ended_at=now)
