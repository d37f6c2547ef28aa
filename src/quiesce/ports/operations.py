"""The journal of operations, inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation


class Operations(Protocol):
    """Rows of operations, keyed by run and position."""

    def put_many(self, operations: Sequence[Operation]) -> None:
        """Store positions, in order; an existing row is replaced.

        A row that holds a result is never replaced (RR-31): a `put` for it changes nothing.
        """

    def consume_many(self, consumed: Sequence[tuple[RunId, Position]]) -> None:
        """Mark committed operations as consumed; others are left alone."""

    def get(self, run_id: RunId, position: Position) -> Operation | None:
        """Return one operation."""

    def get_many(self, keys: Sequence[tuple[RunId, Position]]) -> list[Operation]:
        """Return those that exist, in any order."""

    def of_run(self, run_id: RunId) -> list[Operation]:
        """Return the whole journal of a run, by the order in which its rows were first stored."""

    def unresolved(self, run_ids: Collection[RunId]) -> list[Operation]:
        """Return the calls of these runs whose outside effect may have happened without a stored result."""
