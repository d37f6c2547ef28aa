"""The outbox over named queries."""

from __future__ import annotations

from quiesce.domain.instant import Instant
from quiesce.domain.publication import OutboxMessage
from quiesce.stores.sql.queries import Queries, Row


class SqlOutbox:
    """Implements `ports.publication.Outbox`."""

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
            due_at=message.due_at,
            attempts=message.attempts,
            failure=message.failure,
            delivered_at=message.delivered_at,
        )

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """See the port."""
        return [_message_of(row) for row in self._queries.many("pending_messages", limit=limit)]

    def claim(self, *, now: Instant, until: Instant, limit: int) -> list[OutboxMessage]:
        """See the port."""
        rows = self._queries.many("claim_messages", now=now, until=until, limit=limit)
        return sorted(map(_message_of, rows), key=lambda message: (message.created_at, message.id))

    def postpone(self, message_id: str, *, attempts: int, due_at: Instant, failure: str) -> None:
        """See the port."""
        self._queries.run("postpone_message", id=message_id, attempts=attempts, due_at=due_at, failure=failure)

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """See the port."""
        self._queries.run("mark_delivered", id=message_id, at=at)


def _message_of(row: Row) -> OutboxMessage:
    id_, topic, run_id, body, created_at, due_at, attempts, failure, delivered_at = row
    return OutboxMessage(
        id=id_,
        topic=topic,
        run_id=run_id,
        body=body,
        created_at=created_at,
        due_at=due_at,
        attempts=attempts,
        failure=failure,
        delivered_at=delivered_at,
    )
