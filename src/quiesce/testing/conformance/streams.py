"""Stream ledgers: numbers of their own, one frozen frontier, reading by number."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvariantBroken
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.runs import Run, Wait, WaitKind
from quiesce.domain.streams import Draft, EventKind, Glance, StreamEvent, StreamState, first_chain, gap_draft, status_draft
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class StreamsContract(StoreContract):
    """`Streams`."""

    def test_a_ledger_begins_at_number_zero(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.run()
        store.add(run)
        expected = StreamState(run_id=run.id, stored_seq=0, chain=first_chain(run.id))
        assert store.read(lambda tx: tx.streams.state(run.id)) == expected
        assert store.read(lambda tx: tx.streams.read(run.id, after=0, limit=10)) == []

    def test_a_run_without_a_ledger_has_no_state(self, store: StoreUnderTest, make: Samples) -> None:
        assert store.read(lambda tx: tx.streams.state(RunId(make.id()))) is None

    def test_states_returns_those_that_exist(self, store: StoreUnderTest, make: Samples) -> None:
        one, two, other = make.running(), make.running(), make.running()
        store.add(one, two, other)
        _append(store, *make.texts(two, "a"))
        found = store.read(lambda tx: tx.streams.states([two.id, one.id, RunId(make.id())]))
        assert {run_id: state.stored_seq for run_id, state in found.items()} == {one.id: 0, two.id: 1}
        assert store.read(lambda tx: tx.streams.states([])) == {}

    @proves("C101", "C34")
    def test_a_glance_changes_with_whatever_a_reader_may_wait_for(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)

        def glance() -> Glance:
            found = store.read(lambda tx: tx.streams.glances([run.id, other.id, RunId(make.id())]))
            assert set(found) == {run.id, other.id}
            return found[run.id]

        seen = [glance()]
        assert (seen[0].stored_seq, seen[0].status, seen[0].fence) == (0, "running", run.fence)
        _append(store, *make.texts(run, "a"))
        seen.append(glance())
        assert seen[-1].stored_seq == 1
        wait = Wait(kind=WaitKind.WAKE, subject="one", position=Position("1"))
        for changed in (
            run.parked((wait,)),
            run.parked((replace(wait, subject="two"),)),
            run.woken(),
            replace(run, fence=Fence(run.fence + 1)),
        ):
            store.transact(partial(_save, run=changed))
            seen.append(glance())
        assert len({(g.stored_seq, g.status, g.fence, g.waits) for g in seen}) == len(seen)
        assert glance() == seen[-1]
        assert store.read(lambda tx: tx.streams.glances([])) == {}

    @proves("ST-01", "ST-03")
    def test_events_are_read_back_as_they_were_appended(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        drafts = [
            Draft(channel="text", payload=canonical("hello"), namespace="sub/graph", operation=Position("1.1")),
            Draft(channel="log", payload=canonical({"note": 1}), state_bearing=False),
            gap_draft(3, 4, "process lost"),
            status_draft("taken_over", attempt=2),
        ]
        events = make.events(run, *drafts)
        _append(store, *events)
        assert _read(store, run.id) == list(events)

    @proves("TR-13")
    def test_the_state_follows_the_last_event(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        first = make.texts(run, "a", "b")
        _append(store, *first)
        second = make.texts(run, "c", after=first[-1])
        _append(store, *second)
        assert _state(store, run.id) == StreamState(run_id=run.id, stored_seq=3, chain=second[-1].chain)

    def test_the_ledgers_of_two_runs_are_apart(self, store: StoreUnderTest, make: Samples) -> None:
        one, two = make.running(), make.running()
        store.add(one, two)
        of_one, of_two = make.texts(one, "a", "b"), make.texts(two, "c")
        _append(store, of_one[0], of_two[0], of_one[1])
        assert _read(store, one.id) == list(of_one)
        assert _read(store, two.id) == list(of_two)

    @proves("ST-01")
    def test_an_event_stored_already_is_passed_over(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        events = make.texts(run, "a", "b", "c")
        _append(store, *events[:2])
        _append(store, *events)
        assert _read(store, run.id) == list(events)
        assert _state(store, run.id).stored_seq == 3
        _append(store, events[0])
        assert _state(store, run.id).chain == events[2].chain

    def test_the_state_follows_the_highest_number_in_whatever_order_events_come(
        self, store: StoreUnderTest, make: Samples
    ) -> None:
        run = make.running()
        store.add(run)
        events = make.texts(run, "a", "b", "c")
        _append(store, *reversed(events))
        assert _read(store, run.id) == list(events)
        assert _state(store, run.id) == StreamState(run_id=run.id, stored_seq=3, chain=events[2].chain)

    @proves("ST-01")
    def test_a_number_taken_by_other_content_is_refused(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        stored = make.texts(run, "a", "b")
        _append(store, *stored)
        before = store.everything_of(run)
        others = make.texts(run, "a", "B", "c")
        with pytest.raises(InvariantBroken):
            _append(store, others[2], others[1])
        assert store.everything_of(run) == before

    @proves("ST-14")
    def test_a_reservation_is_recorded_and_never_lowered(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        for asked, recorded in ((256, 256), (10, 256), (512, 512)):
            _reserve(store, run.id, asked)
            assert _state(store, run.id).reserved_seq == recorded
        assert _state(store, run.id).stored_seq == 0

    @proves("ST-13")
    @pytest.mark.parametrize("exact", [True, False])
    def test_the_frontier_is_frozen_once(self, store: StoreUnderTest, make: Samples, exact: bool) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        store.transact(lambda tx: tx.streams.freeze(run.id, 7, exact=exact))
        store.transact(lambda tx: tx.streams.freeze(run.id, 9, exact=not exact))
        assert (_state(store, run.id).frozen_seq, _state(store, run.id).frozen_exact) == (7, exact)
        assert _state(store, other.id).frozen_seq is None

    def test_a_frontier_frozen_at_zero_is_frozen(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        store.transact(lambda tx: tx.streams.freeze(run.id, 0, exact=True))
        store.transact(lambda tx: tx.streams.freeze(run.id, 5, exact=True))
        assert _state(store, run.id).frozen_seq == 0

    @proves("ST-15")
    def test_readers_page_by_number(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        events = make.texts(run, *(str(n) for n in range(1, 8)))
        _append(store, *events)
        assert _read(store, run.id, after=0, limit=3) == list(events[:3])
        assert _read(store, run.id, after=3, limit=3) == list(events[3:6])
        assert _read(store, run.id, after=6, limit=3) == [events[6]]
        assert _read(store, run.id, after=7, limit=3) == []
        assert _read(store, run.id, after=100, limit=3) == []

    @proves("TR-17")
    def test_only_state_bearing_data_counts_towards_a_gap(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        text = Draft(channel="text", payload=canonical("x"))
        drafts = [text, replace(text, state_bearing=False), gap_draft(9, 9, "lost"), status_draft("running"), text]
        odd = replace(text, kind=EventKind.SUPERSEDED)
        _append(store, *make.events(run, *drafts, odd))
        for after, count in ((0, 2), (1, 1), (4, 1), (5, 0), (50, 0)):
            assert _count(store, run.id, after) == count
        assert _count(store, RunId(make.id()), 0) == 0


def _append(store: StoreUnderTest, *events: StreamEvent) -> None:
    store.transact(lambda tx: tx.streams.append_many(events))


def _read(store: StoreUnderTest, run_id: RunId, *, after: int = 0, limit: int = 100) -> list[StreamEvent]:
    return store.read(lambda tx: tx.streams.read(run_id, after=after, limit=limit))


def _reserve(store: StoreUnderTest, run_id: RunId, upto: int) -> None:
    store.transact(lambda tx: tx.streams.reserve(run_id, upto))


def _count(store: StoreUnderTest, run_id: RunId, after: int) -> int:
    return store.read(lambda tx: tx.streams.count_state_bearing(run_id, after=after))


def _state(store: StoreUnderTest, run_id: RunId) -> StreamState:
    state = store.read(lambda tx: tx.streams.state(run_id))
    assert state is not None
    return state


def _save(tx: Transaction, *, run: Run) -> None:
    tx.runs.lock(run.id)
    tx.runs.save(run)
