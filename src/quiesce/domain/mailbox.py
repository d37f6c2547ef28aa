"""The mailbox of a run: what reaches it from outside, each once. Wakes that it waits for by name, corrections by a person.

    queued ──▶ applied     (taken by the run's own code, in the transaction that journals it)
       ├─────▶ withdrawn   (before it was applied)
       └─────▶ returned    (the run ended first; names the receipt of that end)

An entry has one addressee for ever: no child, no later run of the thread and no fork inherits it (C04, C06). The counts of
the four states always add up to what was ever accepted (C07). What it holds never changes.

Knows nothing of how an entry got here: by command, or by a call of the control service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NewType

from quiesce.domain.canonical import parse
from quiesce.domain.errors import invariant
from quiesce.domain.ids import CheckpointId, Position, ReceiptId, RunId
from quiesce.domain.instant import Instant, to_iso

EntryId = NewType("EntryId", str)


class EntryKind(StrEnum):
    """What reached the run."""

    WAKE = "wake"
    """A value under a name; kept until the run waits for that name."""
    CORRECTION = "correction"
    """A person's words; kept until the run's next safe boundary."""


class EntryStatus(StrEnum):
    """What became of it."""

    QUEUED = "queued"
    APPLIED = "applied"
    WITHDRAWN = "withdrawn"
    RETURNED = "returned"


TRANSITIONS: Final[Mapping[EntryStatus, frozenset[EntryStatus]]] = {
    EntryStatus.QUEUED: frozenset({EntryStatus.APPLIED, EntryStatus.WITHDRAWN, EntryStatus.RETURNED}),
    EntryStatus.APPLIED: frozenset(),
    EntryStatus.WITHDRAWN: frozenset(),
    EntryStatus.RETURNED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxEntry:
    """One entry. `name`: what a wake is for, "" for a correction. `body`: canonical JSON. `key`: its identity within the run.

    `position` and `checkpoint_id` say where it was applied: at which operation, and behind which stored state.
    """

    id: EntryId
    run_id: RunId
    number: int
    """Order of arrival within the run, from 1."""
    kind: EntryKind
    name: str
    key: str
    subject: str
    body: bytes
    arrived_at: Instant
    status: EntryStatus = EntryStatus.QUEUED
    position: Position | None = None
    checkpoint_id: CheckpointId | None = None
    receipt_id: ReceiptId | None = None
    ended_at: Instant | None = None

    def applied(self, position: Position, checkpoint_id: CheckpointId | None, at: Instant) -> MailboxEntry:
        """Return it as taken by the run's code at an operation."""
        return replace(self._ended(EntryStatus.APPLIED, at), position=position, checkpoint_id=checkpoint_id)

    def withdrawn(self, at: Instant) -> MailboxEntry:
        """Return it as taken back."""
        return self._ended(EntryStatus.WITHDRAWN, at)

    def returned(self, receipt_id: ReceiptId, at: Instant) -> MailboxEntry:
        """Return it as never applied: its run ended first."""
        return replace(self._ended(EntryStatus.RETURNED, at), receipt_id=receipt_id)

    def _ended(self, status: EntryStatus, at: Instant) -> MailboxEntry:
        invariant(status in TRANSITIONS[self.status], f"an entry goes from {self.status} to {status}")
        return replace(self, status=status, ended_at=at)

    def to_json(self) -> dict[str, object]:
        """Return the form that reading verbs show."""
        return {
            "entry_id": self.id,
            "run_id": self.run_id,
            "number": self.number,
            "kind": str(self.kind),
            "name": self.name,
            "subject": self.subject,
            "value": parse(self.body),
            "status": str(self.status),
            "operation": self.position,
            "checkpoint_id": self.checkpoint_id,
            "receipt_id": self.receipt_id,
            "arrived_at": to_iso(self.arrived_at),
            "ended_at": None if self.ended_at is None else to_iso(self.ended_at),
        }
