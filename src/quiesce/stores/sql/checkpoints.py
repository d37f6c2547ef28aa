"""Checkpoints over named queries."""

from __future__ import annotations

from collections.abc import Sequence

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.ids import CheckpointId, RunId
from quiesce.stores.sql.queries import Params, Queries, Row


class SqlCheckpoints:
    """Implements `ports.checkpoints.Checkpoints`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add_many(self, checkpoints: Sequence[Checkpoint]) -> None:
        """See the port."""
        self._queries.run_many("add_checkpoints", [_params(checkpoint) for checkpoint in checkpoints])

    def get(self, checkpoint_id: CheckpointId) -> Checkpoint | None:
        """See the port."""
        row = self._queries.one("get_checkpoint", id=checkpoint_id)
        return None if row is None else _checkpoint_of(row)

    def last(self, run_id: RunId) -> Checkpoint | None:
        """See the port."""
        row = self._queries.one("last_checkpoint", run_id=run_id)
        return None if row is None else _checkpoint_of(row)

    def of_run(self, run_id: RunId) -> list[Checkpoint]:
        """See the port."""
        return [_checkpoint_of(row) for row in self._queries.many("checkpoints_of_run", run_id=run_id)]


def _params(checkpoint: Checkpoint) -> Params:
    return {
        "id": checkpoint.id,
        "run_id": checkpoint.run_id,
        "thread_id": checkpoint.thread_id,
        "number": checkpoint.number,
        "parent_id": checkpoint.parent_id,
        "state": checkpoint.state,
        "covered_seq": checkpoint.covered_seq,
        "is_final": checkpoint.is_final,
        "fence": checkpoint.fence,
        "created_at": checkpoint.created_at,
    }


def _checkpoint_of(row: Row) -> Checkpoint:
    id_, run_id, thread_id, number, parent_id, state, covered_seq, is_final, fence, created_at = row
    return Checkpoint(
        id=id_,
        run_id=run_id,
        thread_id=thread_id,
        number=number,
        parent_id=parent_id,
        state=state,
        covered_seq=covered_seq,
        is_final=bool(is_final),
        fence=fence,
        created_at=created_at,
    )
