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

from quiesce.domain.boundary import Actor, CancelScope, Cause, Frontier, Gap, Reason, TerminalDurability
from quiesce.domain.canonical import ALGORITHM, canonical, digest
from quiesce.domain.ids import CheckpointId, OccurrenceId, OutcomeId, ReceiptId, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.resume import ResumePolicy
from quiesce.domain.runs import RunStatus


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
