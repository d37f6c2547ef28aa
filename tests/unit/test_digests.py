"""H1 over a checkpoint and H2, the hash chain over a stream. H3 is with the receipt, in `test_terminal`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.canonical import canonical
from quiesce.domain.checkpoints import h1_of_nothing
from quiesce.domain.ids import CheckpointId, RunId
from quiesce.domain.streams import (
    Draft,
    EventKind,
    StreamEvent,
    first_chain,
    gap_draft,
    gap_range,
    next_chain,
    status_draft,
    superseded_draft,
)
from quiesce.testing.samples import Samples

Shown = tuple[EventKind, str]
streams = st.lists(st.tuples(st.sampled_from(EventKind), st.text(max_size=4)), min_size=1, max_size=12)
"""What a reader was shown: kind and payload of each event."""


def chain_values(run_id: RunId, shown: list[Shown]) -> list[str]:
    """Return h(0), h(1), … as a client computes them from what it was shown."""
    chain = [first_chain(run_id)]
    for seq, (kind, payload) in enumerate(shown, start=1):
        chain.append(next_chain(chain[-1], seq, kind, canonical(payload)))
    return chain


@pytest.mark.req("TR-13", "TR-15")
@given(streams, st.data())
def test_two_streams_agree_up_to_exactly_the_event_before_they_differ(shown: list[Shown], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(shown) - 1))
    kind, payload = shown[at]
    other = [*shown[:at], (kind, payload + "!"), *shown[at + 1 :]]
    run_id = RunId("r")
    ours, theirs = chain_values(run_id, shown), chain_values(run_id, other)
    assert ours[: at + 1] == theirs[: at + 1]
    assert all(a != b for a, b in zip(ours[at + 1 :], theirs[at + 1 :], strict=True))


@pytest.mark.req("TR-13")
@given(streams)
def test_the_chain_of_a_stream_is_the_one_its_reader_computes(shown: list[Shown]) -> None:
    make = Samples()
    run = make.running()
    drafts = [Draft(channel="text", payload=canonical(payload), kind=kind) for kind, payload in shown]
    assert [event.chain for event in make.events(run, *drafts)] == chain_values(run.id, shown)[1:]


@given(streams)
def test_no_value_of_a_chain_comes_twice(shown: list[Shown]) -> None:
    chain = chain_values(RunId("r"), shown)
    assert len(set(chain)) == len(chain)


def test_a_chain_begins_with_its_run_and_depends_on_number_and_kind() -> None:
    assert first_chain(RunId("a")) != first_chain(RunId("b"))
    values = {
        next_chain("h", 1, EventKind.DATA, b"1"),
        next_chain("h", 2, EventKind.DATA, b"1"),
        next_chain("h", 1, EventKind.GAP, b"1"),
        next_chain("h", 1, EventKind.DATA, b"2"),
        next_chain("g", 1, EventKind.DATA, b"1"),
    }
    assert len(values) == 5


def test_what_a_filter_looks_at_does_not_enter_the_chain() -> None:
    draft = Draft(channel="text", payload=canonical("a"))
    make = Samples()
    run = make.running()
    (plain,) = make.events(run, draft)
    (elsewhere,) = make.events(run, replace(draft, channel="log", namespace="sub", state_bearing=False))
    assert plain.chain == elsewhere.chain


@pytest.mark.req("TR-12")
def test_h1_changes_with_id_parent_state_and_covered_number() -> None:
    make = Samples()
    run = make.running()
    first = make.checkpoint(run, state={"a": 1}, covered_seq=3)
    variants = [
        first,
        replace(first, id=CheckpointId(make.id())),
        replace(first, parent_id=CheckpointId(make.id())),
        replace(first, state=canonical({"a": 2})),
        replace(first, covered_seq=4),
    ]
    assert len({checkpoint.h1() for checkpoint in variants}) == len(variants)
    assert first.h1() == replace(first).h1() == first.to_json()["durable_state_digest"]


@pytest.mark.req("TR-11")
def test_h1_of_nothing_is_a_digest_of_its_own_for_each_run() -> None:
    make = Samples()
    run = make.running()
    nothing = {h1_of_nothing(run.id), h1_of_nothing(make.running().id), make.checkpoint(run).h1()}
    assert len(nothing) == 3
    assert all(value.startswith("sha256:") for value in nothing)


def sealed(draft: Draft) -> StreamEvent:
    make = Samples()
    return make.events(make.running(), draft)[0]


@pytest.mark.req("ST-01")
def test_events_about_numbers_name_their_range_and_bear_no_state() -> None:
    for draft in (gap_draft(4, 9, "lost"), superseded_draft(4, 9, None, "tried again")):
        assert gap_range(sealed(draft)) == (4, 9)
        assert not draft.state_bearing


def test_an_event_without_a_range_accounts_for_itself() -> None:
    assert gap_range(sealed(Draft(channel="text", payload=canonical("no object")))) == (1, 1)
    assert gap_range(sealed(status_draft("running"))) == (1, 1)
