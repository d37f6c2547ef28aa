"""Mailboxes of runs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiesce.domain.errors import invariant, required
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.mailbox import EntryId, EntryKind, EntryStatus, MailboxEntry
from quiesce.stores.memory.state import State


class MemoryMailbox:
    """Implements `ports.mailbox.Mailbox`."""

    def __init__(self, state: State) -> None:
        self._mailbox = state.mailbox
        self._runs_of = state.mailbox_run_of

    def add(self, entry: MailboxEntry) -> MailboxEntry:
        """See the port."""
        invariant(self.by_key(entry.run_id, entry.kind, entry.key) is None, "a key names one entry of its run")
        invariant(self.get(entry.id) is None, "an entry is added once")
        mailbox = self._mailbox.of(entry.run_id)
        numbered = replace(entry, number=len(mailbox) + 1)
        mailbox.put(entry.id, numbered)
        self._runs_of.put(entry.id, entry.run_id)
        return numbered

    def get(self, entry_id: EntryId) -> MailboxEntry | None:
        """See the port."""
        run_id = self._runs_of.get(entry_id)
        return None if run_id is None else self._mailbox.of(run_id).get(entry_id)

    def by_key(self, run_id: RunId, kind: EntryKind, key: str) -> MailboxEntry | None:
        """See the port."""
        return next((e for e in self._mailbox.of(run_id) if (e.kind, e.key) == (kind, key)), None)

    def queued(self, run_id: RunId, kind: EntryKind, *, name: str = "", limit: int) -> list[MailboxEntry]:
        """See the port."""
        return [e for e in self._queued(run_id) if (e.kind, e.name) == (kind, name)][:limit]

    def count_queued(self, run_id: RunId) -> int:
        """See the port."""
        return len(self._queued(run_id))

    def of_run(self, run_id: RunId) -> list[MailboxEntry]:
        """See the port."""
        return list(self._mailbox.of(run_id))

    def save_many(self, entries: Sequence[MailboxEntry]) -> None:
        """See the port."""
        for entry in entries:
            stored = required(self.get(entry.id), "an entry that is saved is there")
            invariant(stored.status is EntryStatus.QUEUED, "an entry ends once")
            ended = replace(
                stored,
                status=entry.status,
                position=entry.position,
                checkpoint_id=entry.checkpoint_id,
                receipt_id=entry.receipt_id,
                ended_at=entry.ended_at,
            )
            self._mailbox.of(stored.run_id).put(entry.id, ended)

    def return_all(self, run_id: RunId, receipt_id: ReceiptId, at: Instant) -> None:
        """See the port."""
        self.save_many([entry.returned(receipt_id, at) for entry in self._queued(run_id)])

    def _queued(self, run_id: RunId) -> list[MailboxEntry]:
        return [entry for entry in self._mailbox.of(run_id) if entry.status is EntryStatus.QUEUED]
