"""What a thread left, as values: its turns, what was seen beyond a checkpoint, and what may be done next.

Keeps: a state never stands without the number of the stream that it contains; what was seen beyond it is called partial and
never state (TR-28, TR-31, ST-12).
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.boundary import Cause
from quiesce.domain.canonical import Json, parse
from quiesce.domain.continuations import Continuation, OnGap
from quiesce.domain.ids import CheckpointId, Position, ReceiptId, RunId, ThreadId
from quiesce.domain.resume import ResumePolicy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import StreamEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What was seen beyond a run's last checkpoint: provenance, never completed state."""

    run_id: RunId
    first_seq: int
    last_seq: int
    digest: str
    """The value of the event chain at `last_seq`, if that is stored."""
    events: tuple[StreamEvent, ...]
    """The stored state-bearing events among these numbers that nothing has replaced."""

    @property
    def text(self) -> str:
        """The words among them, as they were shown: payloads that are text, or have a `text`."""
        return "".join(_words(parse(event.payload)) for event in self.events)

    def of_operation(self, position: Position | None) -> Partial:
        """Return the part of it that one operation emitted."""
        mine = tuple(e for e in self.events if e.operation == position)
        return Partial(run_id=self.run_id, first_seq=self.first_seq, last_seq=self.last_seq, digest=self.digest, events=mine)

    def to_json(self) -> dict[str, object]:
        """Return the form that reading verbs show."""
        return {
            "run_id": self.run_id,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "digest": self.digest,
            "is_partial": True,
            "text": self.text,
            "events": [event.to_json() for event in self.events],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of a thread, as history shows it."""

    run_id: RunId
    number: int
    agent: str
    input: Json
    status: RunStatus
    cause: Cause | None
    receipt_id: ReceiptId | None
    result: Json
    state: Json
    """The state of its last checkpoint; None without one."""
    checkpoint_id: CheckpointId | None
    cursor: int
    """The number of its stream up to which that state, or its result, contains what was shown."""
    emitted_seq: int
    is_behind: bool
    """Whether something was seen that the state does not contain."""
    partial: Partial | None
    continuation: Continuation | None
    """Under which record it took its turn; None for the first of a thread, and while it is queued."""
    is_built_on: bool = True
    """Whether the thread's head builds on it. A run that was rolled back, or never had its turn, stays and is not."""

    def to_json(self) -> dict[str, object]:
        """Return the form that `history --json` shows."""
        return {
            "run_id": self.run_id,
            "number": self.number,
            "agent": self.agent,
            "input": self.input,
            "status": str(self.status),
            "terminal_cause": None if self.cause is None else str(self.cause),
            "receipt_id": self.receipt_id,
            "result": self.result,
            "state": self.state,
            "checkpoint_id": self.checkpoint_id,
            "cursor": self.cursor,
            "emitted_seq": self.emitted_seq,
            "is_behind": self.is_behind,
            "is_built_on": self.is_built_on,
            "partial": None if self.partial is None else self.partial.to_json(),
            "continuation": None if self.continuation is None else self.continuation.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadView:
    """A thread as a caller needs it before the next message: its state, what was seen beyond it, and what may be done."""

    thread_id: ThreadId
    version: str
    """Changes whenever anything else of this view does."""
    status: str
    """`idle`, `busy` (a run has its turn), or `choice` (idle, and going on needs one)."""
    head: Turn | None
    queued: tuple[RunId, ...]
    policy: ResumePolicy | None
    """Of the head's boundary, as of now; None while there is none."""
    basis: str | None
    choices: tuple[OnGap, ...]
    """What going on would have to say; nothing if it needs no word, or none would do."""
    unresolved: tuple[tuple[RunId, Position], ...]

    @property
    def head_run_id(self) -> RunId | None:
        """The run that has, or had last, its turn."""
        return None if self.head is None else self.head.run_id

    @property
    def receipt_id(self) -> ReceiptId | None:
        """The receipt that a continuation would rest on."""
        return None if self.head is None else self.head.receipt_id

    @property
    def state(self) -> Json:
        """The state that is durable."""
        return None if self.head is None else self.head.state

    @property
    def cursor(self) -> int:
        """The number of the head's stream up to which the state contains what was shown."""
        return 0 if self.head is None else self.head.cursor

    @property
    def emitted_seq(self) -> int:
        """The number up to which the head's stream may have been seen."""
        return 0 if self.head is None else self.head.emitted_seq

    @property
    def is_behind(self) -> bool:
        """Whether something was seen that the state does not contain."""
        return self.head is not None and self.head.is_behind

    def to_json(self) -> dict[str, object]:
        """Return the form that `thread --json` shows."""
        return {
            "thread_id": self.thread_id,
            "version": self.version,
            "status": self.status,
            "head": None if self.head is None else self.head.to_json(),
            "queued": list(self.queued),
            "policy": None if self.policy is None else str(self.policy.policy),
            "rule": None if self.policy is None else self.policy.rule,
            "admissible": None if self.policy is None else self.policy.admissible,
            "basis": self.basis,
            "choices": [str(choice) for choice in self.choices],
            "unresolved": [{"run_id": run_id, "operation": position} for run_id, position in self.unresolved],
        }


def _words(payload: Json) -> str:
    if isinstance(payload, dict):
        payload = payload.get("text")
    return payload if isinstance(payload, str) else ""
