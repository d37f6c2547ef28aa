"""Checkpoints, inside one transaction. Rows are added and never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.ids import CheckpointId, RunId


class Checkpoints(Protocol):
    """Rows of checkpoints."""

    def add_many(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Add checkpoints; one whose id is stored already is passed over."""

    def get(self, checkpoint_id: CheckpointId) -> Checkpoint | None:
        """Return one checkpoint."""

    def last(self, run_id: RunId) -> Checkpoint | None:
        """Return the checkpoint of a run with the highest number: D."""

    def of_run(self, run_id: RunId) -> list[Checkpoint]:
        """Return all checkpoints of a run, in order."""
