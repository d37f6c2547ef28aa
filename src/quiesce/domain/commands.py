"""Commands as their producers seal them: who asks what of whom, under which identity and order (CC-10…CC-14).

    staged ──▶ relayed        (accepted as a command; see `deliveries.py`)
       ├─────▶ withdrawn      (by its producer, before it was relayed)
       └─────▶ expired        (its `not_after` passed before it was relayed)

An intent is a fact of its producer's own transaction. It has no number and cannot be claimed; what it holds is never
changed again. The same producer key with the same meaning is the same intent; with another meaning it is a conflict. A
*target* is what an owner decides about; its *revision* is its incarnation, and changes only when earlier commands lose
their meaning (G-10).

Knows nothing of delivery, of owners or of what a command does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from quiesce.domain.canonical import digest_of
from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant
from quiesce.domain.limits import Limits
from quiesce.domain.texts import check_text

IntentId = NewType("IntentId", str)

DEFAULT_SCOPE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Kind:
    """What sort of command: a name and a version that its consumers must know, and its place among others of its target.

    `is_barrier`: while it is unknown or quarantined, later commands of its target wait. `overtakes`: monotone and
    idempotent, as a cancel is: it waits for no earlier command of its target, and may use the scope's reserve (G-09, G-31).
    """

    name: str
    version: int = 1
    is_barrier: bool = True
    overtakes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Target:
    """What an owner decides about. `owner` names the owner's class, `id` the thing within it."""

    owner: str
    id: str


class IntentStatus(StrEnum):
    """Where an intent stands."""

    STAGED = "staged"
    RELAYED = "relayed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


INTENT_TRANSITIONS: Final[Mapping[IntentStatus, frozenset[IntentStatus]]] = {
    IntentStatus.STAGED: frozenset({IntentStatus.RELAYED, IntentStatus.WITHDRAWN, IntentStatus.EXPIRED}),
    IntentStatus.RELAYED: frozenset(),
    IntentStatus.WITHDRAWN: frozenset(),
    IntentStatus.EXPIRED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A sealed command. `payload` is canonical JSON. `producer` and `producer_key` are its identity within a tenant.

    `subject`: on whose authority. `due_at`: not to be relayed before. `not_after`: not to be admitted any more then; the
    command then expires, which is not its owner's refusal.
    """

    id: IntentId
    tenant: str
    scope: str
    producer: str
    producer_key: str
    subject: str
    target: Target
    revision: int
    kind: Kind
    payload: bytes
    due_at: Instant
    not_after: Instant | None
    staged_at: Instant
    status: IntentStatus = IntentStatus.STAGED
    ended_at: Instant | None = None

    def meaning(self) -> dict[str, object]:
        """Return the fields that make it this request and no other: what the fingerprint covers (CC-14)."""
        return {
            "scope": self.scope,
            "subject": self.subject,
            "target": [self.target.owner, self.target.id, self.revision],
            "kind": [self.kind.name, self.kind.version, self.kind.is_barrier, self.kind.overtakes],
            "payload": self.payload.decode(),
            "due_at": None if self.due_at == self.staged_at else self.due_at,
            "not_after": self.not_after,
        }

    @property
    def fingerprint(self) -> str:
        """Digest of the meaning: formatting and key order do not matter, every field does."""
        return digest_of(self.meaning())

    def differences(self, other: Intent) -> list[str]:
        """Name the fields in which two intents do not mean the same (for the message of a conflict, never their values)."""
        mine, theirs = self.meaning(), other.meaning()
        return [name for name in mine if mine[name] != theirs[name]]

    def check(self, limits: Limits) -> None:
        """Raise `InvalidInput` for a field that is missing or breaks a limit (CC-10)."""
        texts = {
            "tenant": self.tenant,
            "scope": self.scope,
            "producer": self.producer,
            "subject": self.subject,
            "kind": self.kind.name,
            "target.owner": self.target.owner,
        }
        for field, value in texts.items():
            check_text(field, value, limits.name_chars_max)
        for field, value in {"producer_key": self.producer_key, "target.id": self.target.id}.items():
            check_text(field, value, limits.key_chars_max)
        if self.revision < 0:
            raise InvalidInput(field="revision", value=self.revision, rule="must be 0 or more")
        if self.kind.version < 1:
            raise InvalidInput(field="kind.version", value=self.kind.version, rule="must be 1 or more")
        if self.not_after is not None and self.not_after <= self.due_at:
            raise InvalidInput(field="not_after", value=self.not_after, rule="must lie behind due_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Room of a scope: a bound for all unfinished commands, and a reserve on top for those that may overtake (CC-24).

    Intents that are staged, and commands that are pending, claimed, unknown or quarantined, each take a place.
    """

    tenant: str
    scope: str
    bound: int
    reserve: int
    used: int

    def has_room(self, *, overtakes: bool) -> bool:
        """Whether one more command finds a place."""
        return self.used < self.bound + (self.reserve if overtakes else 0)
