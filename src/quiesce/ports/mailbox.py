"""The mailboxes of runs, inside one transaction. Who writes has locked the run; so taking, arriving and ending have one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.mailbox import EntryId, EntryKind, MailboxEntry


class Mailbox(Protocol):
    """Rows of what reached runs from outside."""

    def add(self, entry: MailboxEntry) -> MailboxEntry:
        """Add an entry, numbered next of its run; return it as stored. A second of its run, kind and key is an error."""

    def get(self, entry_id: EntryId) -> MailboxEntry | None:
        """Return an entry."""

    def by_key(self, run_id: RunId, kind: EntryKind, key: str) -> MailboxEntry | None:
        """Return the entry that this key names."""

    def queued(self, run_id: RunId, kind: EntryKind, *, name: str = "", limit: int) -> list[MailboxEntry]:
        """Return queued entries of this kind and name, in the order of their arrival.

        Costs the same however many entries of the run have ended.
        """

    def count_queued(self, run_id: RunId) -> int:
        """Return how many entries of a run are queued, of any kind."""

    def of_run(self, run_id: RunId) -> list[MailboxEntry]:
        """Return all entries of a run, in the order of their arrival."""

    def save_many(self, entries: Sequence[MailboxEntry]) -> None:
        """Store what became of queued entries. What they hold is never written again, and an end never replaced."""

    def return_all(self, run_id: RunId, receipt_id: ReceiptId, at: Instant) -> None:
        """Return what is still queued of a run: it ended, as this receipt says."""
