"""Checkpoints in memory."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.errors import invariant
from quiesce.domain.ids import CheckpointId, RunId
from quiesce.stores.memory.state import State


class MemoryCheckpoints:
    """Implements `ports.checkpoints.Checkpoints`."""

    def __init__(self, state: State) -> None:
        self._by_id = state.checkpoints
        self._of_run = state.checkpoints_of

    def add_many(self, checkpoints: Sequence[Checkpoint]) -> None:
        """See the port."""
        for checkpoint in checkpoints:
            if checkpoint.id not in self._by_id:
                numbered = self._of_run.of(checkpoint.run_id)
                invariant(checkpoint.number not in numbered, "the checkpoints of a run have numbers of their own")
                numbered.put(checkpoint.number, checkpoint)
                self._by_id.put(checkpoint.id, checkpoint)

    def get(self, checkpoint_id: CheckpointId) -> Checkpoint | None:
        """See the port."""
        return self._by_id.get(checkpoint_id)

    def last(self, run_id: RunId) -> Checkpoint | None:
        """See the port."""
        return max(self._of_run.of(run_id), key=attrgetter("number"), default=None)

    def of_run(self, run_id: RunId) -> list[Checkpoint]:
        """See the port."""
        return sorted(self._of_run.of(run_id), key=attrgetter("number"))
