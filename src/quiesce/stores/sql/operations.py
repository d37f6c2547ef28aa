"""The journal of operations over named queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus, ResultKind, Try
from quiesce.stores.sql.codec import EMPTY_LIST, EMPTY_OBJECT, amounts, decode, encode
from quiesce.stores.sql.queries import Params, Queries, Row


class SqlOperations:
    """Implements `ports.operations.Operations`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def put_many(self, operations: Sequence[Operation]) -> None:
        """See the port."""
        self._queries.run_many("put_operations", [_params(operation) for operation in _last_of_each(operations)])

    def consume_many(self, consumed: Sequence[tuple[RunId, Position]]) -> None:
        """See the port."""
        self._queries.run_many("consume_operations", _keys(consumed))

    def get(self, run_id: RunId, position: Position) -> Operation | None:
        """See the port."""
        row = self._queries.one("get_operation", run_id=run_id, position=position)
        return None if row is None else operation_of(row)

    def get_many(self, keys: Sequence[tuple[RunId, Position]]) -> list[Operation]:
        """See the port."""
        return [operation_of(row) for row in self._queries.many_of("get_operations", _keys(keys))]

    def of_run(self, run_id: RunId) -> list[Operation]:
        """See the port."""
        return [operation_of(row) for row in self._queries.many("operations_of_run", run_id=run_id)]

    def unresolved(self, run_ids: Collection[RunId]) -> list[Operation]:
        """See the port."""
        rows = self._queries.many_of("unresolved_operations", [{"run_id": run_id} for run_id in dict.fromkeys(run_ids)])
        return [operation_of(row) for row in rows]


def operation_of(row: Row) -> Operation:
    """Map a row of the table `operation`; its last column, the ordinal, only sorts."""
    run_id, position, kind, name, fingerprint, arguments, policy, status, fence, sealed_at = row[:10]
    due_at, result_kind, result, settled_at, reserved, used, tries, _ordinal = row[10:]
    return Operation(
        run_id=run_id,
        position=position,
        kind=OperationKind(kind),
        name=name,
        fingerprint=fingerprint,
        arguments=arguments,
        policy=EffectPolicy(policy),
        status=OperationStatus(status),
        fence=fence,
        sealed_at=sealed_at,
        due_at=due_at,
        result_kind=None if result_kind is None else ResultKind(result_kind),
        result=result,
        settled_at=settled_at,
        reserved=amounts(reserved),
        used=amounts(used),
        tries=() if tries == EMPTY_LIST else tuple(_try_of(row) for row in decode(tries)),
    )


def _try_of(row: dict[str, int | str | None]) -> Try:
    number, fence, started_at, ended_at, error = (row[key] for key in ("number", "fence", "started_at", "ended_at", "error"))
    return Try(
        number=int(number or 0),
        fence=Fence(int(fence or 0)),
        started_at=Instant(int(started_at or 0)),
        error=None if error is None else str(error),
        ended_at=None if ended_at is None else Instant(int(ended_at)),
    )


def _params(operation: Operation) -> Params:
    return {
        "run_id": operation.run_id,
        "position": operation.position,
        "kind": operation.kind.value,
        "name": operation.name,
        "fingerprint": operation.fingerprint,
        "arguments": operation.arguments,
        "policy": operation.policy.value,
        "status": operation.status.value,
        "fence": operation.fence,
        "sealed_at": operation.sealed_at,
        "due_at": operation.due_at,
        "result_kind": None if operation.result_kind is None else operation.result_kind.value,
        "result": operation.result,
        "settled_at": operation.settled_at,
        "reserved": encode(operation.reserved) if operation.reserved else EMPTY_OBJECT,
        "used": encode(operation.used) if operation.used else EMPTY_OBJECT,
        "tries": encode([asdict(one) for one in operation.tries]) if operation.tries else EMPTY_LIST,
    }


def _last_of_each(operations: Sequence[Operation]) -> Collection[Operation]:
    """Return what putting the rows one after the other would leave: a statement may not touch a position twice.

    Their order is that of the first row of each position; a row after one with a result changes nothing.
    """
    kept: dict[tuple[RunId, Position], Operation] = {}
    for operation in operations:
        key = (operation.run_id, operation.position)
        earlier = kept.get(key)
        if earlier is None or not earlier.has_result:
            kept[key] = operation
    return kept.values()


def _keys(keys: Sequence[tuple[RunId, Position]]) -> list[Params]:
    return [{"run_id": run_id, "position": position} for run_id, position in dict.fromkeys(keys)]
