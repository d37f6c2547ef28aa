"""Stream ledgers over named queries.

The end of a stream (its last number and chain value) is read from its last event, so that appending costs one row and not
an update of a second one beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quiesce.domain.errors import InvariantBroken, invariant
from quiesce.domain.ids import RunId
from quiesce.domain.streams import EventKind, Glance, StreamEvent, StreamState, first_chain
from quiesce.stores.sql.queries import Params, Queries, Row


class SqlStreams:
    """Implements `ports.streams.Streams`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def open(self, run_id: RunId) -> None:
        """See the port."""
        self._queries.run("open_stream", run_id=run_id)

    def state(self, run_id: RunId) -> StreamState | None:
        """See the port."""
        return self.states([run_id]).get(run_id)

    def states(self, run_ids: Collection[RunId]) -> dict[RunId, StreamState]:
        """See the port."""
        rows = self._queries.many_of("stream_states", [{"run_id": run_id} for run_id in dict.fromkeys(run_ids)])
        return {row[0]: _state_of(row) for row in rows}

    def glances(self, run_ids: Collection[RunId]) -> dict[RunId, Glance]:
        """See the port."""
        rows = self._queries.many_of("glances", [{"run_id": run_id} for run_id in dict.fromkeys(run_ids)])
        return {row[0]: Glance(stored_seq=row[1] or 0, status=row[2], fence=row[3], waits=bytes(row[4])) for row in rows}

    def append_many(self, events: Sequence[StreamEvent]) -> None:
        """See the port."""
        if self._queries.run_many("append_events", [_params(event) for event in events]) < len(events):
            self._check_stored(events)

    def reserve(self, run_id: RunId, upto: int) -> None:
        """See the port."""
        invariant(self._queries.run("reserve_numbers", run_id=run_id, upto=upto) == 1, _UNOPENED)

    def freeze(self, run_id: RunId, seq: int, *, exact: bool) -> None:
        """See the port."""
        invariant(self._queries.run("freeze_stream", run_id=run_id, seq=seq, exact=exact) == 1, _UNOPENED)

    def read(self, run_id: RunId, *, after: int, limit: int) -> list[StreamEvent]:
        """See the port."""
        return [event_of(row) for row in self._queries.many("read_events", run_id=run_id, after=after, limit=limit)]

    def count_state_bearing(self, run_id: RunId, *, after: int) -> int:
        """See the port."""
        row = self._queries.one("count_state_bearing", run_id=run_id, after=after)
        return 0 if row is None else int(row[0])

    def _check_stored(self, events: Sequence[StreamEvent]) -> None:
        """Some numbers were taken: fine if by the same content, as when a write is handed in again."""
        rows = self._queries.many_of("events_at", [{"run_id": e.run_id, "seq": e.seq} for e in events])
        stored = {(run_id, seq): chain for run_id, seq, chain in rows}
        for event in events:
            chain = stored.get((event.run_id, event.seq))
            if chain is None:
                raise InvariantBroken(_UNOPENED)
            invariant(chain == event.chain, "a number is never given to another event")


_UNOPENED = "a ledger is opened before it is written"


def _params(event: StreamEvent) -> Params:
    return {
        "run_id": event.run_id,
        "seq": event.seq,
        "kind": event.kind.value,
        "channel": event.channel,
        "namespace": event.namespace,
        "operation": event.operation,
        "state_bearing": event.state_bearing,
        "payload": event.payload,
        "chain": event.chain,
        "fence": event.fence,
        "emitted_at": event.emitted_at,
    }


def event_of(row: Row) -> StreamEvent:
    """Map a row of the table `event`."""
    run_id, seq, kind, channel, namespace, operation, state_bearing, payload, chain, fence, emitted_at = row
    return StreamEvent(
        run_id=run_id,
        seq=seq,
        kind=EventKind(kind),
        channel=channel,
        namespace=namespace,
        operation=operation,
        state_bearing=bool(state_bearing),
        payload=payload,
        chain=chain,
        fence=fence,
        emitted_at=emitted_at,
    )


def _state_of(row: Row) -> StreamState:
    run_id, stored_seq, chain, reserved_seq, frozen_seq, frozen_exact = row
    return StreamState(
        run_id=run_id,
        stored_seq=stored_seq or 0,
        chain=chain or first_chain(run_id),
        reserved_seq=reserved_seq,
        frozen_seq=frozen_seq,
        frozen_exact=None if frozen_exact is None else bool(frozen_exact),
    )
