"""Mailboxes of runs over named queries. What an entry holds is written once; the schema itself refuses to change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiesce.domain.errors import invariant, required
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.mailbox import EntryId, EntryKind, EntryStatus, MailboxEntry
from quiesce.stores.sql.queries import Queries, Row


class SqlMailbox:
    """Implements `ports.mailbox.Mailbox`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add(self, entry: MailboxEntry) -> MailboxEntry:
        """See the port."""
        row = self._queries.one(
            "add_entry",
            id=entry.id,
            run_id=entry.run_id,
            kind=entry.kind.value,
            name=entry.name,
            key=entry.key,
            subject=entry.subject,
            body=entry.body,
            arrived_at=entry.arrived_at,
        )
        return replace(entry, number=required(row, "a key names one entry of its run")[0])

    def get(self, entry_id: EntryId) -> MailboxEntry | None:
        """See the port."""
        row = self._queries.one("get_entry", id=entry_id)
        return None if row is None else _entry_of(row)

    def by_key(self, run_id: RunId, kind: EntryKind, key: str) -> MailboxEntry | None:
        """See the port."""
        row = self._queries.one("entry_by_key", run_id=run_id, kind=kind.value, key=key)
        return None if row is None else _entry_of(row)

    def queued(self, run_id: RunId, kind: EntryKind, *, name: str = "", limit: int) -> list[MailboxEntry]:
        """See the port."""
        rows = self._queries.many("queued_entries", run_id=run_id, kind=kind.value, name=name, limit=limit)
        return [_entry_of(row) for row in rows]

    def count_queued(self, run_id: RunId) -> int:
        """See the port."""
        return int(required(self._queries.one("count_queued_entries", run_id=run_id), "a count has one row")[0])

    def of_run(self, run_id: RunId) -> list[MailboxEntry]:
        """See the port."""
        return [_entry_of(row) for row in self._queries.many("entries_of_run", run_id=run_id)]

    def save_many(self, entries: Sequence[MailboxEntry]) -> None:
        """See the port."""
        rows = [
            {
                "id": entry.id,
                "status": entry.status.value,
                "position": entry.position,
                "checkpoint_id": entry.checkpoint_id,
                "receipt_id": entry.receipt_id,
                "ended_at": entry.ended_at,
            }
            for entry in entries
        ]
        invariant(self._queries.run_many("end_entries", rows) == len(rows), "an entry ends once")

    def return_all(self, run_id: RunId, receipt_id: ReceiptId, at: Instant) -> None:
        """See the port."""
        self._queries.run("return_entries", run_id=run_id, receipt_id=receipt_id, at=at)


def _entry_of(row: Row) -> MailboxEntry:
    (id_, run_id, number, kind, name, key, subject, body, arrived_at, status) = row[:10]
    position, checkpoint_id, receipt_id, ended_at = row[10:]
    return MailboxEntry(
        id=id_,
        run_id=run_id,
        number=number,
        kind=EntryKind(kind),
        name=name,
        key=key,
        subject=subject,
        body=body,
        arrived_at=arrived_at,
        status=EntryStatus(status),
        position=position,
        checkpoint_id=checkpoint_id,
        receipt_id=receipt_id,
        ended_at=ended_at,
    )
