"""What is known about effects apart from the journal: artifacts, late results, and people's decisions.

These records are append-only and need no fence: an effect that happened is true whoever learns of it, and when. Of a run
that has ended they change what the policy says at use, not what the run did (G-34, G-35). A run that goes on, and would have
to ask what became of a call, takes the call's own late result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.domain.boundary import Actor
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactReceipt:
    """A file or report saved by a run, with the digest that readback checks (RR-27)."""

    run_id: RunId
    name: str
    path: str
    """Relative to the session's artifact directory."""
    digest: str
    bytes: int
    saved_at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the form stored in receipts and shown."""
        return {"name": self.name, "path": self.path, "digest": self.digest, "bytes": self.bytes, "run_id": self.run_id}


class EvidenceKind(StrEnum):
    """What a record says about an operation."""

    LATE_RESULT = "late_result"
    """The call's own answer, arrived after its holder was fenced out: it happened (a ToolReceipt)."""
    LATE_PROPOSAL = "late_proposal"
    """A model's answer after the cancel: kept, without force (RR-33)."""
    PROBE = "probe"
    """What the destination answered when asked."""
    DECISION = "decision"
    """A person's recorded decision."""
    CONTRADICTION = "contradiction"
    """What a client saw is not what is stored. Stands at the position `STREAM`, of which a decision is about all before it."""


STREAM: Final = Position("stream")
"""Where records about a run's stream stand: no operation has this position."""


class Verdict(StrEnum):
    """What evidence or decision says of an effect."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    GIVE_UP = "give_up"
    """Go on without knowing; the uncertainty stays on record."""
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One record about one operation. `body`: canonical JSON (result, proposal, or the person's grounds)."""

    run_id: RunId
    position: Position
    number: int
    """Order of the records of this operation, from 1."""
    kind: EvidenceKind
    verdict: Verdict
    actor: Actor
    body: bytes
    at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the facts that reading verbs show."""
        return {
            "run_id": self.run_id,
            "operation": self.position,
            "kind": str(self.kind),
            "verdict": str(self.verdict),
            "actor": self.actor.to_json(),
            "at": self.at,
        }


def open_contradictions(records: Sequence[Evidence]) -> list[Evidence]:
    """Return the contradictions of a run's stream that no decision has answered since."""
    about = [record for record in records if record.position == STREAM]
    answered = max((record.number for record in about if record.kind is EvidenceKind.DECISION), default=0)
    return [record for record in about if record.kind is EvidenceKind.CONTRADICTION and record.number > answered]
