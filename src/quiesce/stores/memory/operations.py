"""The journal of operations in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation, OperationStatus
from quiesce.stores.memory.state import State


class MemoryOperations:
    """Implements `ports.operations.Operations`."""

    def __init__(self, state: State) -> None:
        self._journal = state.operations

    def put_many(self, operations: Sequence[Operation]) -> None:
        """See the port."""
        for operation in operations:
            stored = self.get(operation.run_id, operation.position)
            if stored is None or not stored.has_result:
                self._journal.of(operation.run_id).put(operation.position, operation)

    def consume_many(self, consumed: Sequence[tuple[RunId, Position]]) -> None:
        """See the port."""
        for run_id, position in consumed:
            stored = self.get(run_id, position)
            if stored is not None and stored.status is OperationStatus.COMMITTED:
                self._journal.of(run_id).put(position, replace(stored, status=OperationStatus.CONSUMED))

    def get(self, run_id: RunId, position: Position) -> Operation | None:
        """See the port."""
        return self._journal.of(run_id).get(position)

    def get_many(self, keys: Sequence[tuple[RunId, Position]]) -> list[Operation]:
        """See the port."""
        return [stored for key in dict.fromkeys(keys) if (stored := self.get(*key)) is not None]

    def of_run(self, run_id: RunId) -> list[Operation]:
        """See the port."""
        return list(self._journal.of(run_id))

    def unresolved(self, run_ids: Collection[RunId]) -> list[Operation]:
        """See the port."""
        return [operation for operation in self._journal.of_all(run_ids) if operation.may_have_acted]
