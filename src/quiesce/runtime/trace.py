"""The trace of a run: what is on record of it, in the order of time; what is missing; what is unknown.

Keeps: it is read from facts that others own, stored nowhere, and read by nobody who decides anything: without it every decision
stays the same (NO-07). What nobody recorded is said to be missing, and an outcome that nobody knows to be unknown; neither is
shown as if it had been captured. It holds no arguments, results or payloads, which may be private.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from quiesce.domain.instant import Instant, to_iso
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.workers import Attempt
from quiesce.ports.store import Transaction
from quiesce.runtime.inspection import Inspection, inspect_tx

PAGE = 500


class Capture(StrEnum):
    """What a line of a trace rests on."""

    CAPTURED = "captured"
    """A stored fact says so."""
    MISSING = "missing"
    """Something was there, and no record of it."""
    UNKNOWN = "unknown"
    """Whether it took place is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """One line. `at` is None for what has no instant: what is missing has none of its own."""

    at: Instant | None
    what: str
    subject: str
    capture: Capture = Capture.CAPTURED

    def to_json(self) -> dict[str, object]:
        """Return the form that `trace --json` shows."""
        at = None if self.at is None else to_iso(self.at)
        return {"at": at, "what": self.what, "subject": self.subject, "capture": str(self.capture)}


def trace_tx(tx: Transaction, run: Run) -> list[TraceLine]:
    """Return the trace of a run, oldest first; what has no instant comes last."""
    seen = inspect_tx(tx, run.id, tenant=run.tenant)
    lines = [*_beginning(tx, run), *_holders(seen), *_operations(seen), *_words(tx, run), *_people(tx, seen), *_end(seen)]
    known = [line for line in lines if line.at is not None]
    return [*sorted(known, key=lambda line: line.at or 0), *(line for line in lines if line.at is None)]


def _beginning(tx: Transaction, run: Run) -> Iterator[TraceLine]:
    yield TraceLine(at=run.created_at, what="submitted", subject=f"{run.agent}, by {run.subject}")
    record = tx.continuations.of_run(run.id)
    if record is not None:
        how = f"{record.policy} ({record.rule}), {record.carry}, behind receipt {record.receipt_id}"
        yield TraceLine(at=record.at, what="turn taken", subject=how)


def _holders(seen: Inspection) -> Iterator[TraceLine]:
    for attempt in seen.attempts:
        who = f"attempt {attempt.number}, {attempt.worker_name}, fence {attempt.fence}"
        yield TraceLine(at=attempt.opened_at, what="claimed", subject=who)
        yield from _end_of(attempt, who, is_open=seen.is_held and attempt is seen.attempts[-1])


def _end_of(attempt: Attempt, who: str, *, is_open: bool) -> Iterator[TraceLine]:
    if attempt.closed_at is not None and attempt.end is not None:
        yield TraceLine(at=attempt.closed_at, what=str(attempt.end), subject=who)
    elif not is_open:
        yield TraceLine(at=None, what="no record of how it ended", subject=who, capture=Capture.MISSING)


def _operations(seen: Inspection) -> Iterator[TraceLine]:
    for operation in seen.operations:
        what = f"{operation.position} {operation.name}"
        yield TraceLine(at=operation.sealed_at, what=f"{operation.kind} sealed", subject=what)
        for each in operation.tries:
            yield TraceLine(at=each.started_at, what=f"try {each.number}", subject=f"{what}, fence {each.fence}")
            if each.error is not None:
                yield TraceLine(at=each.ended_at, what=f"try {each.number} gave no result", subject=what)
        if operation.settled_at is not None:
            how = operation.result_kind or operation.status
            yield TraceLine(at=operation.settled_at, what=f"{operation.kind} committed: {how}", subject=what)
        elif _is_doubtful(operation, seen):
            yield TraceLine(at=None, what="whether it took place", subject=what, capture=Capture.UNKNOWN)


def _is_doubtful(operation: Operation, seen: Inspection) -> bool:
    if operation.kind is not OperationKind.CALL or not operation.may_have_acted:
        return False
    return operation.status is OperationStatus.UNKNOWN or not seen.is_held


def _words(tx: Transaction, run: Run) -> Iterator[TraceLine]:
    """Tell of the stream: its first and last event, what was replaced, and numbers that died with their process."""
    first: StreamEvent | None = None
    last: StreamEvent | None = None
    after = 0
    while page := tx.streams.read(run.id, after=after, limit=PAGE):
        first = first or page[0]
        last = page[-1]
        after = last.seq
        for event in page:
            if event.kind is EventKind.SUPERSEDED:
                span = "events {} to {}".format(*gap_range(event))
                yield TraceLine(at=event.emitted_at, what="replaced by what follows", subject=span)
            elif event.kind is EventKind.GAP:
                span = "events {} to {}".format(*gap_range(event))
                yield TraceLine(at=None, what="no record of what was shown", subject=span, capture=Capture.MISSING)
    if first is not None and last is not None:
        yield TraceLine(at=first.emitted_at, what="first event", subject=f"event {first.seq}")
        yield TraceLine(at=last.emitted_at, what="last event stored", subject=f"event {last.seq}")
    for checkpoint in tx.checkpoints.of_run(run.id):
        covers = f"checkpoint {checkpoint.number} covers event {checkpoint.covered_seq}"
        yield TraceLine(at=checkpoint.created_at, what="checkpoint", subject=covers)


def _people(tx: Transaction, seen: Inspection) -> Iterator[TraceLine]:
    for question in seen.questions:
        yield TraceLine(at=question.created_at, what="asked", subject=f"question {question.id}")
        if question.ended_at is not None:
            who = question.ended_by.name if question.ended_by is not None else "?"
            yield TraceLine(at=question.ended_at, what=str(question.status), subject=f"question {question.id}, by {who}")
    for entry in tx.mailbox.of_run(seen.run.id):
        yield TraceLine(at=entry.arrived_at, what=f"{entry.kind} arrived", subject=f"entry {entry.number}, from {entry.subject}")
        if entry.ended_at is not None:
            yield TraceLine(at=entry.ended_at, what=f"{entry.kind} {entry.status}", subject=f"entry {entry.number}")
    for record in seen.evidence:
        who = f"operation {record.position}, by {record.actor.name}"
        yield TraceLine(at=record.at, what=f"{record.kind}: {record.verdict}", subject=who)
    for child in seen.children:
        yield TraceLine(at=child.created_at, what="child submitted", subject=f"{child.agent} {child.id}")


def _end(seen: Inspection) -> Iterator[TraceLine]:
    if seen.occurrence is not None:
        by = f"{seen.occurrence.cause} ({seen.occurrence.reason}), by {seen.occurrence.actor.name}"
        yield TraceLine(at=seen.occurrence.at, what="end accepted (C)", subject=by)
    if seen.outcome is not None:
        how = f"{seen.outcome.durability}, by {seen.outcome.established_by}"
        yield TraceLine(at=seen.outcome.at, what="outcome established (P)", subject=how)
        frontier = seen.outcome.frontier
        if not frontier.emitted_exact and frontier.emitted_seq > frontier.stored_seq:
            span = f"events {frontier.stored_seq + 1} to {frontier.emitted_seq}"
            yield TraceLine(at=None, what="whether they were shown", subject=span, capture=Capture.UNKNOWN)
    if seen.receipt is not None:
        yield TraceLine(
            at=seen.receipt.published_at, what="receipt published (T)", subject=f"{seen.receipt.status} {seen.receipt.id}"
        )
    for artifact in seen.artifacts:
        yield TraceLine(at=artifact.saved_at, what="artifact saved", subject=artifact.name)
