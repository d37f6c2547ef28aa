"""Stream ledgers in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvariantBroken, invariant
from quiesce.domain.ids import RunId
from quiesce.domain.streams import EventKind, Glance, StreamEvent, StreamState, first_chain
from quiesce.stores.memory.state import State


class MemoryStreams:
    """Implements `ports.streams.Streams`."""

    def __init__(self, state: State) -> None:
        self._states = state.streams
        self._events = state.events
        self._runs = state.runs

    def open(self, run_id: RunId) -> None:
        """See the port."""
        invariant(run_id not in self._states, "a ledger is opened once")
        self._states.put(run_id, StreamState(run_id=run_id, stored_seq=0, chain=first_chain(run_id)))

    def state(self, run_id: RunId) -> StreamState | None:
        """See the port."""
        return self._states.get(run_id)

    def states(self, run_ids: Collection[RunId]) -> dict[RunId, StreamState]:
        """See the port."""
        return {run_id: state for run_id in run_ids if (state := self.state(run_id)) is not None}

    def glances(self, run_ids: Collection[RunId]) -> dict[RunId, Glance]:
        """See the port."""
        runs = [run for run_id in run_ids if (run := self._runs.get(run_id)) is not None]
        return {
            run.id: Glance(
                stored_seq=self._last(run.id),
                status=str(run.status),
                fence=run.fence,
                waits=canonical([wait.to_json() for wait in run.waits]),
            )
            for run in runs
        }

    def append_many(self, events: Sequence[StreamEvent]) -> None:
        """See the port."""
        for event in events:
            stored = self._events.of(event.run_id).get(event.seq)
            if stored is None:
                self._append(event)
            else:
                invariant(stored.chain == event.chain, "a number is never given to another event")

    def reserve(self, run_id: RunId, upto: int) -> None:
        """See the port."""
        state = self._opened(run_id)
        self._states.put(run_id, replace(state, reserved_seq=max(state.reserved_seq, upto)))

    def freeze(self, run_id: RunId, seq: int, *, exact: bool) -> None:
        """See the port."""
        state = self._opened(run_id)
        if state.frozen_seq is None:
            self._states.put(run_id, replace(state, frozen_seq=seq, frozen_exact=exact))

    def read(self, run_id: RunId, *, after: int, limit: int) -> list[StreamEvent]:
        """See the port."""
        events = self._events.of(run_id)
        numbers = range(after + 1, self._last(run_id) + 1)
        found = (event for seq in numbers if (event := events.get(seq)) is not None)
        return [event for event, _ in zip(found, range(limit), strict=False)]

    def count_state_bearing(self, run_id: RunId, *, after: int) -> int:
        """See the port."""
        later = self.read(run_id, after=after, limit=self._last(run_id))
        return sum(event.state_bearing and event.kind is EventKind.DATA for event in later)

    def _append(self, event: StreamEvent) -> None:
        state = self._opened(event.run_id)
        self._events.of(event.run_id).put(event.seq, event)
        if event.seq > state.stored_seq:
            self._states.put(event.run_id, replace(state, stored_seq=event.seq, chain=event.chain))

    def _opened(self, run_id: RunId) -> StreamState:
        state = self.state(run_id)
        if state is None:
            raise InvariantBroken("a ledger is opened before it is written")
        return state

    def _last(self, run_id: RunId) -> int:
        state = self.state(run_id)
        return 0 if state is None else state.stored_seq
