"""Artifacts, evidence about effects, and the outbox, inside one transaction. Append-only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quiesce.domain.evidence import ArtifactReceipt, Evidence, OutboxMessage
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant


class EvidenceLog(Protocol):
    """Rows of artifacts and evidence."""

    def add_artifacts(self, artifacts: Sequence[ArtifactReceipt]) -> None:
        """Add artifact receipts; a name that the run has saved already is passed over."""

    def artifacts(self, run_ids: Collection[RunId]) -> list[ArtifactReceipt]:
        """Return the artifacts of these runs, in the order of saving."""

    def add(self, evidence: Evidence) -> Evidence:
        """Add a record, numbered next of its operation; return it as stored."""

    def of_run(self, run_id: RunId) -> list[Evidence]:
        """Return the evidence about a run's operations, in the order of its arrival."""


class Outbox(Protocol):
    """Messages stored with the facts that they announce."""

    def append(self, message: OutboxMessage) -> None:
        """Add a message; one whose id is stored already is passed over."""

    def pending(self, *, limit: int) -> list[OutboxMessage]:
        """Return undelivered messages, oldest first."""

    def mark_delivered(self, message_id: str, at: Instant) -> None:
        """Record a delivery, once."""
