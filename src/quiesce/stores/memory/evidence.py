"""Artifacts and evidence in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from quiesce.domain.evidence import ArtifactReceipt, Evidence
from quiesce.domain.ids import RunId
from quiesce.stores.memory.state import State


class MemoryEvidence:
    """Implements `ports.evidence.EvidenceLog`."""

    def __init__(self, state: State) -> None:
        self._artifacts = state.artifacts
        self._evidence = state.evidence

    def add_artifacts(self, artifacts: Sequence[ArtifactReceipt]) -> None:
        """See the port."""
        for artifact in artifacts:
            key = (artifact.run_id, artifact.name)
            if key not in self._artifacts:
                self._artifacts.put(key, artifact)

    def artifacts(self, run_ids: Collection[RunId]) -> list[ArtifactReceipt]:
        """See the port."""
        return [artifact for artifact in self._artifacts if artifact.run_id in run_ids]

    def add(self, evidence: Evidence) -> Evidence:
        """See the port."""
        earlier = sum(stored.position == evidence.position for stored in self.of_run(evidence.run_id))
        numbered = replace(evidence, number=earlier + 1)
        self._evidence.of(evidence.run_id).put((numbered.position, numbered.number), numbered)
        return numbered

    def of_run(self, run_id: RunId) -> list[Evidence]:
        """See the port."""
        return list(self._evidence.of(run_id))
