"""Publication: messages stored with the facts that they announce, and how far their delivery is.

Keeps: a message is stored in the transaction of its fact, or not at all; its delivery is a fact of its own and changes nothing
of a run, a command or a receipt (NO-04, NO-06). Delivered at least once: whoever gets a message knows it again by its id.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.canonical import Json, parse
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A message on its way to whoever is to be told. `body` is canonical JSON."""

    id: str
    topic: str
    run_id: RunId
    body: bytes
    created_at: Instant
    due_at: Instant
    """From then on it may be delivered (again); while it is being delivered, when others may try."""
    attempts: int = 0
    failure: str = ""
    """What the last attempt failed with: the name of the error, nothing of its text."""
    delivered_at: Instant | None = None

    @classmethod
    def new(cls, *, id: str, topic: str, run_id: RunId, body: bytes, created_at: Instant) -> OutboxMessage:  # noqa: A002
        """Make a message that may be delivered from now on."""
        return cls(id=id, topic=topic, run_id=run_id, body=body, created_at=created_at, due_at=created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a subscriber is given. The same `id` may come again, and says the same each time."""

    id: str
    topic: str
    run_id: RunId
    body: Json
    created_at: Instant
    attempt: int

    @classmethod
    def of(cls, message: OutboxMessage) -> Notice:
        """Return what is told of a message."""
        return cls(
            id=message.id,
            topic=message.topic,
            run_id=message.run_id,
            body=parse(message.body),
            created_at=message.created_at,
            attempt=message.attempts,
        )
