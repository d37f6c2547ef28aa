"""What is stored of a run when an attempt begins, and what of its stream a replay has already shown.

A replay shows nothing twice: what the code emits again in the same order is recognised and passed over. It hides nothing
either: where the code emits something else than what readers have seen, the difference is announced (`superseded`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from quiesce.domain.canonical import Json, parse
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.ids import RunId
from quiesce.domain.operations import Operation, OperationKind
from quiesce.domain.runs import Run
from quiesce.domain.streams import Draft, EventKind, StreamEvent, StreamState, first_chain, gap_range
from quiesce.domain.workers import AttemptEnd
from quiesce.ports.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the store holds of a run when an attempt begins, read in one view."""

    operations: list[Operation]
    checkpoint: Checkpoint | None
    stream: StreamState
    ancestors: tuple[RunId, ...]
    uncovered: list[StreamEvent]
    """Events beyond the last checkpoint."""
    left_in_order: bool
    """Whether whoever held the run before had stored everything it had shown."""


def read_stored(tx: Transaction, run: Run, page: int) -> Stored:
    """Read what an attempt begins from."""
    checkpoint = tx.checkpoints.last(run.id)
    covered = checkpoint.covered_seq if checkpoint else 0
    uncovered: list[StreamEvent] = []
    while batch := tx.streams.read(run.id, after=uncovered[-1].seq if uncovered else covered, limit=page):
        uncovered.extend(batch)
    ancestors: list[RunId] = []
    parent_id = run.parent_id
    while parent_id is not None and (parent := tx.runs.get(parent_id)) is not None:
        ancestors.append(parent.id)
        parent_id = parent.parent_id
    state = tx.streams.state(run.id) or StreamState(run_id=run.id, stored_seq=0, chain=first_chain(run.id))
    return Stored(
        operations=tx.operations.of_run(run.id),
        checkpoint=checkpoint,
        stream=state,
        ancestors=tuple(ancestors),
        uncovered=uncovered,
        left_in_order=state.reserved_seq <= state.stored_seq or left_in_order(tx, run.id, before=run.attempt),
    )


def left_in_order(tx: Transaction, run_id: RunId, *, before: int) -> bool:
    """Return whether the last attempt with a number below `before` ended by itself: then everything shown was stored."""
    ends = [attempt.end for attempt in tx.runs.attempts(run_id) if attempt.number < before]
    return not ends or ends[-1] in (AttemptEnd.PARKED, AttemptEnd.RELEASED)


class Past:
    """What earlier attempts emitted, by scope: so that a replay shows nothing twice (and hides nothing that differs)."""

    def __init__(self, stored: Stored) -> None:
        self.counts: dict[str, int] = {}
        mark = _checkpoint_mark(stored)
        self._base = _numbers(mark, "emitted")
        self._begun = _numbers(mark, "since")
        """First numbers of tries that had not ended at the last checkpoint, by scope."""
        self._covered = stored.checkpoint.covered_seq if stored.checkpoint else 0
        self._left: dict[str, deque[StreamEvent]] = {}
        self._shown: dict[str, tuple[int, int]] = {}
        for event in stored.uncovered:
            if event.kind is EventKind.DATA:
                self._left.setdefault(event.operation or "", deque()).append(event)
            elif event.kind is EventKind.SUPERSEDED:
                self._replace(event)

    def _replace(self, superseded: StreamEvent) -> None:
        """Forget the events that an earlier attempt has announced as replaced."""
        facts = parse(superseded.payload)
        operation = facts.get("operation") if isinstance(facts, dict) else None
        scope = operation if isinstance(operation, str) else ""
        first, last = gap_range(superseded)
        self._left[scope] = deque(e for e in self._left.get(scope, ()) if not first <= e.seq <= last)
        if first <= self._begun.get(scope, 0):
            del self._begun[scope]

    def meet(self, draft: Draft) -> tuple[bool, tuple[int, int] | None]:
        """Return whether an emit is stored already, and the range of stored events that it contradicts, if any."""
        scope = draft.operation or ""
        count = self.counts.get(scope, 0)
        self.counts[scope] = count + 1
        if count < self._base.get(scope, 0):
            return True, None
        left = self._left.get(scope)
        if not left:
            return False, None
        if (left[0].channel, left[0].payload) == (draft.channel, draft.payload):
            left.popleft()
            return True, None
        return False, self.supersede(scope, keep_count=True)

    def keep(self, scope: str, seq: int) -> None:
        """Note a number that this attempt gave within a step or call: another try of it begins anew."""
        first, _ = self._shown.get(scope, (seq, seq))
        self._shown[scope] = (first, seq)

    def since(self) -> dict[str, int]:
        """Return the first number of what each scope's present try has emitted: for a checkpoint, which covers a part of it."""
        shown = {scope: first for scope, (first, _) in self._shown.items()}
        left = {scope: events[0].seq for scope, events in self._left.items() if scope and events}
        return {**shown, **left, **self._begun}

    def supersede(self, scope: str, *, keep_count: bool = False) -> tuple[int, int] | None:
        """Forget what earlier tries of a scope emitted; return the range of its numbers, or None if that was nothing.

        With `keep_count`, only the rest of what earlier attempts stored.
        """
        if not keep_count:
            self.counts[scope] = 0
            self._base.pop(scope, None)
        left = self._left.pop(scope, None)
        ranges = [(left[0].seq, left[-1].seq)] if left else []
        if not keep_count and (begun := self._begun.pop(scope, None)) is not None:
            ranges.insert(0, (begun, self._covered))
        if not keep_count and (shown := self._shown.pop(scope, None)) is not None:
            ranges.append(shown)
        return (ranges[0][0], ranges[-1][1]) if ranges else None


def _checkpoint_mark(stored: Stored) -> Mapping[str, Json]:
    """Return what the operation of the last checkpoint has remembered of the stream."""
    marks = [o for o in stored.operations if o.kind is OperationKind.CHECKPOINT and o.has_result and o.result]
    for mark in reversed(marks):
        facts = parse(mark.result or b"null")
        if isinstance(facts, dict) and stored.checkpoint and facts.get("checkpoint_id") == stored.checkpoint.id:
            return facts
    return {}


def _numbers(mark: Mapping[str, Json], name: str) -> dict[str, int]:
    table = mark.get(name)
    return {k: v for k, v in table.items() if isinstance(v, int)} if isinstance(table, dict) else {}
