"""Inspection: what is known of a run, and the three questions after a change of process (RR-44).

What may continue, what may only be read again, what must stop: computed from stored facts by the same functions that
recovery uses, so the answer and the deed cannot differ. Read-only.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.canonical import Json, parse
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.errors import NotFound
from quiesce.domain.evidence import ArtifactReceipt, Evidence
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant, to_iso
from quiesce.domain.interactions import Interaction
from quiesce.domain.operations import Operation, Recovery, recover
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import StreamState
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.workers import Attempt
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import is_held

PROMPT_CHARS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything stored of a run, in one view."""

    run: Run
    is_held: bool
    now: Instant
    attempts: list[Attempt]
    operations: list[Operation]
    checkpoint: Checkpoint | None
    stream: StreamState | None
    occurrence: Occurrence | None
    outcome: PersistenceOutcome | None
    receipt: TerminalReceipt | None
    artifacts: list[ArtifactReceipt]
    evidence: list[Evidence]
    children: list[Run]
    questions: list[Interaction]

    def authority(self) -> dict[str, list[dict[str, object]]]:
        """Return the three lists: `may_continue`, `read_only`, `must_stop`, each item with the reason in one word."""
        lists: dict[str, list[dict[str, object]]] = {"may_continue": [], "read_only": [], "must_stop": []}
        for operation in self.operations:
            which, why = _authority_of(operation, self.run, self.now)
            lists[which].append({"operation": operation.position, "name": operation.name, "why": why})
        for child in self.children:
            which = "may_continue" if child.is_active else "read_only"
            lists[which].append({"operation": None, "name": f"child {child.id}", "why": str(child.status)})
        return lists

    def explain(self) -> str:
        """Say in one sentence what the run waits for, or why nothing moves."""
        run = self.run
        match run.status:
            case RunStatus.PENDING:
                return "It waits for a worker that knows agent " + repr(run.agent) + "."
            case RunStatus.RUNNING:
                return "A live worker advances it." if self.is_held else "Its worker is gone; any worker may take it over."
            case RunStatus.WAITING:
                return "It waits for " + "; ".join(self._wait_words()) + ". It holds no process."
            case RunStatus.SETTLING:
                stage = "its outcome is established" if self.outcome else "no outcome is established yet"
                reason = self.occurrence.reason if self.occurrence else "an end"
                return f"Its end ({reason}) is accepted and no boundary is published: {stage}."
            case _:
                policy = self.receipt.policy if self.receipt else None
                return f"It is {run.status}. " + (f"Policy {policy.policy}: {policy.admissible}." if policy else "")

    def _wait_words(self) -> list[str]:
        words: list[str] = []
        for wait in self.run.waits:
            at = f" until {to_iso(wait.due_at)}" if wait.due_at is not None else ""
            match wait.kind:
                case WaitKind.UNKNOWN:
                    words.append(f"a decision about operation {wait.position}, whose outcome is unknown (quiesce reconcile)")
                case WaitKind.CHILD:
                    words.append(f"child run {wait.subject}")
                case WaitKind.ANSWER:
                    words.append(f"an answer{at} to {self._prompt_of(wait)} (quiesce answer {wait.subject} --value JSON)")
                case WaitKind.TURN:
                    words.append(f"its turn in thread {wait.subject}")
                case WaitKind.CHOICE:
                    words.append(
                        f"a choice about receipt {wait.subject}, the end of the run before it in thread {self.run.thread_id} "
                        f"(quiesce continue {shlex.quote(self.run.thread_id)})"
                    )
                case WaitKind.WAKE:
                    words.append(f"a wake {wait.subject!r}{at} (quiesce wake {self.run.id} {shlex.quote(wait.subject)})")
                case _:
                    words.append(f"a timer at operation {wait.position}{at}")
        return words

    def _prompt_of(self, wait: Wait) -> str:
        prompt = next((q.prompt.decode() for q in self.questions if q.id == wait.subject), "a question")
        return prompt if len(prompt) <= PROMPT_CHARS_SHOWN else prompt[:PROMPT_CHARS_SHOWN] + "…"

    def to_json(self) -> dict[str, object]:
        """Return the view as `inspect --json` shows it."""
        run = self.run
        return {
            "run_id": run.id,
            "thread_id": run.thread_id,
            "agent": run.agent,
            "status": str(run.status),
            "is_settling": run.status is RunStatus.SETTLING,
            "input": parse(run.input),
            "bindings": parse(run.bindings),
            "subject": run.subject,
            "key": run.key,
            "parent_id": run.parent_id,
            "fence": run.fence,
            "is_held": self.is_held,
            "deadline_at": None if run.deadline_at is None else to_iso(run.deadline_at),
            "created_at": to_iso(run.created_at),
            "ended_at": None if run.ended_at is None else to_iso(run.ended_at),
            "durability": str(run.durability),
            "visibility": str(run.visibility),
            "waits": [w.to_json() for w in run.waits],
            "explanation": self.explain(),
            "authority": self.authority(),
            "attempts": [
                {
                    "number": a.number,
                    "fence": a.fence,
                    "worker": a.worker_name,
                    "end": None if a.end is None else str(a.end),
                }
                for a in self.attempts
            ],
            "operations": [o.to_json() for o in self.operations],
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_json(),
            "stream": self._stream_json(),
            "usage": run.budget.to_json(),
            "artifacts": [a.to_json() for a in self.artifacts],
            "evidence": [e.to_json() for e in self.evidence],
            "questions": [q.to_json() for q in self.questions],
            "children": [{"run_id": c.id, "agent": c.agent, "status": str(c.status)} for c in self.children],
            "receipt": None if self.receipt is None else self.receipt.to_json(),
        }

    def _stream_json(self) -> Json:
        if self.stream is None:
            return None
        return {
            "stored_seq": self.stream.stored_seq,
            "covered_seq": self.checkpoint.covered_seq if self.checkpoint else 0,
            "frozen_seq": self.stream.frozen_seq,
        }


def _authority_of(operation: Operation, run: Run, now: Instant) -> tuple[str, str]:
    if operation.has_result:
        return "read_only", str(operation.status)
    recovery = recover(operation, now=now)
    if recovery in (Recovery.PARK, Recovery.PROBE) and operation.may_have_acted:
        return "must_stop", "TOOL_OUTCOME_UNKNOWN"
    if not run.is_active:
        return ("must_stop", "run ended") if operation.may_have_acted else ("read_only", "run ended")
    return "may_continue", str(recovery)


def inspect_tx(tx: Transaction, run_id: RunId, *, tenant: str = "local") -> Inspection:
    """Read everything stored of a run. Raises `NotFound`."""
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    occurrence = tx.terminal.occurrence(run_id)
    return Inspection(
        run=run,
        is_held=is_held(tx, run),
        now=tx.now,
        attempts=tx.runs.attempts(run_id),
        operations=tx.operations.of_run(run_id),
        checkpoint=tx.checkpoints.last(run_id),
        stream=tx.streams.state(run_id),
        occurrence=occurrence,
        outcome=tx.terminal.outcome(occurrence.id) if occurrence else None,
        receipt=tx.terminal.receipt(run_id),
        artifacts=tx.evidence.artifacts([run_id]),
        evidence=tx.evidence.of_run(run_id),
        children=tx.runs.children(run_id),
        questions=tx.interactions.of_run(run_id),
    )
