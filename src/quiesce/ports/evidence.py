"""Artifacts, evidence about effects, and the outbox, inside one transaction. Append-only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quiesce.domain.evidence import ArtifactReceipt, Evidence
from quiesce.domain.ids import RunId


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
