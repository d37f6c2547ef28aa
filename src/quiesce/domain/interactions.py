"""Interactions: what a run asks of a person, each with an identity of its own, and how it ended (A37).

    open ──▶ answered   (by a person; a "no" is an answer like any other)
      ├────▶ expired    (by the clock: nobody has said anything)
      └────▶ revoked    (the run that asked has ended)

A question belongs to one position of one run for ever, and its digest covers what was asked there and what it is about: an
answer to it is an answer to exactly that. It ends once. Silence is never stored as a person's word, nor as consent.

Knows nothing of how the question is shown or the run woken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NewType

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import Json, digest_of, parse
from quiesce.domain.errors import AlreadyAnswered, QuestionExpired, QuestionRevoked, Refused, invariant
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.instant import Instant, to_iso

InteractionId = NewType("InteractionId", str)

CLOCK: Final = Actor(kind=ActorKind.SERVICE, name="clock")
"""Who ends a question that nobody answered in time."""


class InteractionStatus(StrEnum):
    """What became of a question."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    REVOKED = "revoked"


TRANSITIONS: Final[Mapping[InteractionStatus, frozenset[InteractionStatus]]] = {
    InteractionStatus.OPEN: frozenset({InteractionStatus.ANSWERED, InteractionStatus.EXPIRED, InteractionStatus.REVOKED}),
    InteractionStatus.ANSWERED: frozenset(),
    InteractionStatus.EXPIRED: frozenset(),
    InteractionStatus.REVOKED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One question. `prompt`, `schema`, `about` and `answer` are canonical JSON; the answer fits the JSON Schema `schema`."""

    id: InteractionId
    run_id: RunId
    position: Position
    thread_id: ThreadId
    tenant: str
    prompt: bytes
    schema: bytes
    about: bytes
    """What exactly is decided (a call's arguments, say); `null` if the prompt says it all."""
    created_at: Instant
    expires_at: Instant | None = None
    status: InteractionStatus = InteractionStatus.OPEN
    answer: bytes | None = None
    answer_key: str | None = None
    ended_by: Actor | None = None
    """The person who answered, the clock, or whoever ended the run."""
    ended_at: Instant | None = None

    @property
    def digest(self) -> str:
        """What an answer is bound to: this place, these words, this matter."""
        return digest_of(
            {
                "run_id": self.run_id,
                "position": self.position,
                "prompt": parse(self.prompt),
                "schema": parse(self.schema),
                "about": parse(self.about),
            }
        )

    def is_open(self, now: Instant) -> bool:
        """Whether an answer still counts: once its time has passed it is over, whether or not anybody has noted that yet."""
        return self.status is InteractionStatus.OPEN and not self.is_due(now)

    def is_due(self, now: Instant) -> bool:
        """Whether its time has passed."""
        return self.expires_at is not None and self.expires_at <= now

    def answered(self, answer: bytes, by: Actor, key: str, at: Instant) -> Interaction:
        """Return it as answered by a person."""
        return replace(self._ended(InteractionStatus.ANSWERED, by, at), answer=answer, answer_key=key)

    def expired(self, at: Instant) -> Interaction:
        """Return it as ended by the clock."""
        return self._ended(InteractionStatus.EXPIRED, CLOCK, at)

    def revoked(self, by: Actor, at: Instant) -> Interaction:
        """Return it as pointless: its run has ended."""
        return self._ended(InteractionStatus.REVOKED, by, at)

    def _ended(self, status: InteractionStatus, by: Actor, at: Instant) -> Interaction:
        invariant(status in TRANSITIONS[self.status], f"a question goes from {self.status} to {status}")
        return replace(self, status=status, ended_by=by, ended_at=at)

    def refusal(self) -> Refused:
        """Return the error for an answer that comes too late: it says who was first, with what, or when it ended and why."""
        by = "somebody" if self.ended_by is None else self.ended_by.name
        facts = {"interaction_id": self.id, "status": str(self.status), "by": by}
        if self.status is InteractionStatus.ANSWERED:
            shown = (self.answer or b"null").decode()
            at = None if self.ended_at is None else to_iso(self.ended_at)
            return AlreadyAnswered(
                f"already answered by {by}: {shown[:200]}", **facts, answer=parse(self.answer or b"null"), answered_at=at
            )
        if self.status is InteractionStatus.REVOKED:
            return QuestionRevoked(f"revoked: run {self.run_id} was ended by {by}", **facts, run_id=self.run_id)
        return self.expiry()

    def expiry(self) -> QuestionExpired:
        """Return the error that says when the time for an answer ended."""
        at = "" if self.expires_at is None else to_iso(self.expires_at)
        return QuestionExpired(f"question {self.id} expired at {at}", interaction_id=self.id, expired_at=at, by=CLOCK.name)

    def to_json(self) -> dict[str, Json]:
        """Return the form that reading verbs show."""
        return {
            "interaction_id": self.id,
            "run_id": self.run_id,
            "thread_id": self.thread_id,
            "operation": self.position,
            "prompt": parse(self.prompt),
            "schema": parse(self.schema),
            "about": parse(self.about),
            "digest": self.digest,
            "created_at": to_iso(self.created_at),
            "expires_at": None if self.expires_at is None else to_iso(self.expires_at),
            "status": str(self.status),
            "answer": None if self.answer is None else parse(self.answer),
            "ended_by": None if self.ended_by is None else {"kind": str(self.ended_by.kind), "name": self.ended_by.name},
            "ended_at": None if self.ended_at is None else to_iso(self.ended_at),
        }
