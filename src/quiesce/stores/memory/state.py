"""What the memory store holds: tables of frozen domain records, with an undo log.

Keeps one invariant: after `State.rollback` every table holds what it held at the last `State.commit`. Rows are never
changed in place, so a row handed out stays as it was. Knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Generic, TypeVar

from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.commands import Capacity, Intent, IntentId, Target
from quiesce.domain.continuations import Continuation, Scope, StandingPolicy
from quiesce.domain.deliveries import AdmissionReceipt, Command, CommandKey, EventId, HistoryLine, Settlement, TargetState
from quiesce.domain.evidence import ArtifactReceipt, Evidence
from quiesce.domain.ids import CheckpointId, OccurrenceId, Position, ReceiptId, RunId, ThreadId, WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction, InteractionId
from quiesce.domain.mailbox import EntryId, MailboxEntry
from quiesce.domain.operations import Operation
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.runs import Run
from quiesce.domain.schedules import Fire, Schedule, ScheduleId
from quiesce.domain.streams import StreamEvent, StreamState
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import Thread
from quiesce.domain.workers import Attempt, Worker

Undo = list[Callable[[], None]]
G = TypeVar("G")
K = TypeVar("K")
V = TypeVar("V")


class Table(Generic[K, V]):
    """Rows by key, in the order in which the keys were first stored."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self._rows: dict[K, V] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        """Return whether there is such a row."""
        return key in self._rows

    def __iter__(self) -> Iterator[V]:
        """Iterate over the rows."""
        return iter(self._rows.values())

    def get(self, key: K) -> V | None:
        """Return the row, if there is one."""
        return self._rows.get(key)

    def put(self, key: K, row: V) -> None:
        """Store the row, new or in place of the old one."""
        self._undo.append(partial(self._restore, key, self._rows.get(key)))
        self._rows[key] = row

    def drop(self, key: K) -> None:
        """Remove the row, if there is one."""
        if key in self._rows:
            self._undo.append(partial(self._restore, key, self._rows.pop(key)))

    def as_dict(self) -> dict[K, V]:
        """Return a copy."""
        return dict(self._rows)

    def _restore(self, key: K, row: V | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


class Family(Generic[G, K, V]):
    """One table per group (mostly per run), so that reading one group does not walk the others."""

    def __init__(self, undo: Undo) -> None:
        self._undo = undo
        self._tables: dict[G, Table[K, V]] = {}

    def of(self, group: G) -> Table[K, V]:
        """Return the table of a group, which may be empty."""
        return self._tables.setdefault(group, Table(self._undo))

    def of_all(self, groups: Collection[G]) -> Iterator[V]:
        """Iterate over the rows of several groups, group by group."""
        return (row for group in groups for row in self.of(group))

    def as_dict(self) -> dict[G, list[V]]:
        """Return a copy: the rows of each group that has any."""
        return {group: list(table) for group, table in self._tables.items() if len(table)}


class State:
    """All tables of a store."""

    def __init__(self) -> None:
        undo: Undo = []
        self._undo = undo
        self.runs: Table[RunId, Run] = Table(undo)
        self.attempts: Family[RunId, int, Attempt] = Family(undo)
        self.threads: Table[ThreadId, Thread] = Table(undo)
        self.queues: Family[ThreadId, int, RunId] = Family(undo)
        self.continuations: Table[RunId, Continuation] = Table(undo)
        self.standing_policies: Family[tuple[str, Scope, str], int, StandingPolicy] = Family(undo)
        self.workers: Table[WorkerId, Worker] = Table(undo)
        self.operations: Family[RunId, Position, Operation] = Family(undo)
        self.streams: Table[RunId, StreamState] = Table(undo)
        self.events: Family[RunId, int, StreamEvent] = Family(undo)
        self.checkpoints: Table[CheckpointId, Checkpoint] = Table(undo)
        self.checkpoints_of: Family[RunId, int, Checkpoint] = Family(undo)
        self.occurrences: Table[RunId, Occurrence] = Table(undo)
        self.outcomes: Table[RunId, PersistenceOutcome] = Table(undo)
        self.outcome_of: Table[OccurrenceId, PersistenceOutcome] = Table(undo)
        self.receipts: Table[RunId, TerminalReceipt] = Table(undo)
        self.receipt_by_id: Table[ReceiptId, TerminalReceipt] = Table(undo)
        self.last_receipt_of: Table[ThreadId, TerminalReceipt] = Table(undo)
        self.artifacts: Table[tuple[RunId, str], ArtifactReceipt] = Table(undo)
        self.evidence: Family[RunId, tuple[Position, int], Evidence] = Family(undo)
        self.outbox: Table[str, OutboxMessage] = Table(undo)
        self.intents: Table[IntentId, Intent] = Table(undo)
        self.intent_by_key: Table[tuple[str, str, str], IntentId] = Table(undo)
        self.scopes: Table[tuple[str, str], Capacity] = Table(undo)
        self.targets: Table[Target, TargetState] = Table(undo)
        self.commands: Table[EventId, Command] = Table(undo)
        self.command_of: Table[IntentId, EventId] = Table(undo)
        self.settlements: Table[EventId, Settlement] = Table(undo)
        self.history: Family[EventId, int, HistoryLine] = Family(undo)
        self.admissions: Table[CommandKey, AdmissionReceipt] = Table(undo)
        self.mailbox: Family[RunId, EntryId, MailboxEntry] = Family(undo)
        self.mailbox_run_of: Table[EntryId, RunId] = Table(undo)
        self.interactions: Table[InteractionId, Interaction] = Table(undo)
        self.schedules: Table[ScheduleId, Schedule] = Table(undo)
        self.fires: Family[ScheduleId, Instant, Fire] = Family(undo)

    @property
    def is_changed(self) -> bool:
        """Whether anything was written since the last commit."""
        return bool(self._undo)

    def commit(self) -> None:
        """Make what was written final."""
        self._undo.clear()

    def rollback(self) -> None:
        """Take back what was written since the last commit, newest first."""
        while self._undo:
            self._undo.pop()()

    def snapshot(self) -> dict[str, object]:
        """Return a copy of everything: by table, its rows by key, or by group in the order of their storing."""
        return {
            "runs": self.runs.as_dict(),
            "attempts": self.attempts.as_dict(),
            "threads": self.threads.as_dict(),
            "queues": self.queues.as_dict(),
            "continuations": self.continuations.as_dict(),
            "standing_policies": self.standing_policies.as_dict(),
            "workers": self.workers.as_dict(),
            "operations": self.operations.as_dict(),
            "streams": self.streams.as_dict(),
            "events": self.events.as_dict(),
            "checkpoints": self.checkpoints_of.as_dict(),
            "occurrences": self.occurrences.as_dict(),
            "outcomes": self.outcomes.as_dict(),
            "receipts": self.receipts.as_dict(),
            "artifacts": self.artifacts.as_dict(),
            "evidence": self.evidence.as_dict(),
            "outbox": self.outbox.as_dict(),
            "intents": self.intents.as_dict(),
            "scopes": self.scopes.as_dict(),
            "targets": self.targets.as_dict(),
            "commands": self.commands.as_dict(),
            "settlements": self.settlements.as_dict(),
            "history": self.history.as_dict(),
            "admissions": self.admissions.as_dict(),
            "mailbox": self.mailbox.as_dict(),
            "interactions": self.interactions.as_dict(),
            "schedules": self.schedules.as_dict(),
            "fires": self.fires.as_dict(),
        }
