"""The outbox over named queries."""

from __future__ import annotations

from quiesce.domain.evidence import OutboxMessage
from quiesce.domain.instant import Instant
from quiesce.stores.sql.queries import Queries, Row


class SqlOutbox:
    """Implements `ports.evidence.Outbox`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def append(self, message: OutboxMessage) -> None:
        """See the port."""
        self._queries.run(
            "append_message",
            id=message.id,
            topic=message.topic,
            run_id=message.run_id,
            body=message.body,
            created_at=message.created_at,
            delivered_at=message.delivered_at,
        )

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """See the port."""
        return [_message_of(row) for row in self._queries.many("pending_messages", limit=limit)]

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """See the port."""
        self._queries.run("mark_delivered", id=message_id, at=at)


def _message_of(row: Row) -> OutboxMessage:
    id_, topic, run_id, body, created_at, delivered_at = row
    return OutboxMessage(id=id_, topic=topic, run_id=run_id, body=body, created_at=created_at, delivered_at=delivered_at)
