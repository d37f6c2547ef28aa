"""The outbox, inside one transaction: messages stored with the facts that they announce, and their delivery."""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.instant import Instant
from quiesce.domain.publication import OutboxMessage


class Outbox(Protocol):
    """Rows of messages."""

    def append(self, message: OutboxMessage) -> None:
        """Add a message; one whose id is stored already is passed over."""

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """Return undelivered messages, the longest due first. Not locked."""

    def claim(self, *, now: Instant, until: Instant, limit: int) -> list[OutboxMessage]:
        """Take messages that are due, the longest first, each for one attempt; return them as they are then.

        Until `until` nobody else takes them. Those that another transaction takes at the same time are passed over. Costs the
        same however many were delivered.
        """

    def postpone(self, message_id: str, *, attempts: int, due_at: Instant, failure: str) -> None:
        """Record that this attempt failed, unless the message was delivered or taken again since."""

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """Record a delivery, once."""
