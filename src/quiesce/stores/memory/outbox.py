"""The outbox in memory."""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.evidence import OutboxMessage
from quiesce.domain.instant import Instant
from quiesce.stores.memory.state import State


class MemoryOutbox:
    """Implements `ports.evidence.Outbox`."""

    def __init__(self, state: State) -> None:
        self._messages = state.outbox

    def append(self, message: OutboxMessage) -> None:
        """See the port."""
        if message.id not in self._messages:
            self._messages.put(message.id, message)

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """See the port."""
        found = (message for message in self._messages if message.delivered_at is None)
        return sorted(found, key=lambda m: (m.created_at, m.id))[:limit]

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """See the port."""
        message = self._messages.get(message_id)
        if message is not None and message.delivered_at is None:
            self._messages.put(message_id, replace(message, delivered_at=at))
