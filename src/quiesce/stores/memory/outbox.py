"""The outbox in memory."""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.instant import Instant
from quiesce.domain.publication import OutboxMessage
from quiesce.stores.memory.state import State


class MemoryOutbox:
    """Implements `ports.publication.Outbox`."""

    def __init__(self, state: State) -> None:
        self._messages = state.outbox

    def append(self, message: OutboxMessage) -> None:
        """See the port."""
        if message.id not in self._messages:
            self._messages.put(message.id, message)

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """See the port."""
        found = (message for message in self._messages if message.delivered_at is None)
        return sorted(found, key=lambda m: (m.due_at, m.id))[:limit]

    def claim(self, *, now: Instant, until: Instant, limit: int) -> list[OutboxMessage]:
        """See the port."""
        due = [message for message in self.pending(limit=len(self._messages)) if message.due_at <= now][:limit]
        taken = [replace(message, due_at=until, attempts=message.attempts + 1) for message in due]
        for message in taken:
            self._messages.put(message.id, message)
        return sorted(taken, key=lambda message: (message.created_at, message.id))

    def postpone(self, message_id: str, *, attempts: int, due_at: Instant, failure: str) -> None:
        """See the port."""
        message = self._messages.get(message_id)
        if message is not None and message.delivered_at is None and message.attempts == attempts:
            self._messages.put(message_id, replace(message, due_at=due_at, failure=failure))

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """See the port."""
        message = self._messages.get(message_id)
        if message is not None and message.delivered_at is None:
            self._messages.put(message_id, replace(message, delivered_at=at))
