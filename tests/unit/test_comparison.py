"""Comparison of surfaces: against the plain comparison of lists, over all small streams and over many random ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.boundary import Frontier, GapKind, measure
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.comparison import (
    Comparison,
    Mark,
    Numbers,
    Relation,
    Seen,
    compare_seen,
    compare_surfaces,
)
from quiesce.domain.errors import InvalidInput, InvariantBroken
from quiesce.domain.ids import Fence, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.streams import Draft, EventKind, StreamEvent, first_chain, gap_draft

RUN = RunId("01a22e53-e882-7459-aa43-e5a180bf2a73")
OTHER = RunId("01a22e53-e882-7459-aa43-e5a180bf2a74")


def chained(drafts: Sequence[tuple[int, Draft]], *, run_id: RunId = RUN) -> list[StreamEvent]:
    """Number and chain events as a holder does."""
    events: list[StreamEvent] = []
    for seq, draft in drafts:
        previous = events[-1].chain if events else first_chain(run_id)
        events.append(draft.sealed(run_id=run_id, seq=seq, previous=previous, fence=Fence(1), now=Instant(0)))
    return events


def said(words: Sequence[object], *, run_id: RunId = RUN) -> list[StreamEvent]:
    drafts = [Draft(channel="messages", payload=canonical(word)) for word in words]
    return chained(list(enumerate(drafts, 1)), run_id=run_id)


@dataclass
class Kept:
    """A ledger that is a list, and counts how often it is asked."""

    events: list[StreamEvent]
    emitted_seq: int | None = None
    run_id: RunId = RUN
    asked: list[int] = field(default_factory=list)

    @property
    def numbers(self) -> Numbers:
        stored = self.events[-1].seq if self.events else 0
        emitted = stored if self.emitted_seq is None else self.emitted_seq
        return Numbers(covered_seq=0, stored_seq=stored, emitted_seq=emitted, emitted_exact=True, state_bearing_stored=stored)

    def at(self, seq: int) -> Mark:
        self.asked.append(seq)
        last = max((e.seq for e in self.events if e.seq <= seq), default=0)
        chains = {0: first_chain(self.run_id), **{e.seq: e.chain for e in self.events}}
        return Mark(seq=last, chain=chains[last])


def seen(events: Sequence[StreamEvent]) -> Seen:
    client = Seen(events[0].run_id if events else RUN)
    for event in events:
        client.take(event)
    return client


def common(one: Sequence[object], other: Sequence[object]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


STREAMS = [words for length in range(5) for words in itertools.product("ab", repeat=length)]


@pytest.mark.req("TR-15", "TR-13")
@pytest.mark.parametrize("stored", STREAMS, ids="".join)
def test_of_all_small_streams_each_relation_and_number_is_that_of_the_lists(stored: tuple[str, ...]) -> None:
    ledger = Kept(said(stored))
    for shown in STREAMS:
        found = compare_seen(ledger, seen(said(shown)).marks())
        same = common(stored, shown)
        if same < min(len(stored), len(shown)):
            wanted = Comparison(relation=Relation.DIVERGED, agreed_through=same, diverged_at=same + 1)
        elif len(shown) > len(stored):
            wanted = Comparison(relation=Relation.DIVERGED, agreed_through=same, diverged_at=len(stored) + 1, never_left=True)
        elif len(shown) < len(stored):
            wanted = Comparison(relation=Relation.DURABLE_AHEAD, events=len(stored) - len(shown), agreed_through=same)
        else:
            wanted = Comparison(relation=Relation.EQUAL, agreed_through=same)
        assert found == wanted
        assert found.is_exact == (wanted.relation is Relation.DIVERGED)


@pytest.mark.req("TR-15")
@pytest.mark.parametrize("stored", STREAMS, ids="".join)
def test_one_mark_alone_speaks_for_everything_below_it(stored: tuple[str, ...]) -> None:
    ledger = Kept(said(stored))
    for shown in STREAMS:
        found = compare_seen(ledger, [seen(said(shown)).mark])
        differs = shown != stored[: len(shown)]
        assert (found.relation is Relation.DIVERGED) == differs
        if not differs:
            assert found.agreed_through == len(shown)


words = st.lists(st.sampled_from("abc"), max_size=60)


@pytest.mark.req("TR-15")
@given(stored=words, shown=words, at=st.integers(0, 60), data=st.data())
def test_of_any_marks_the_first_that_differs_is_found(stored: list[str], shown: list[str], at: int, data: st.DataObject) -> None:
    shown = [*stored[:at], *shown]
    whole = seen(said(shown)).marks()
    marks = data.draw(st.lists(st.sampled_from(whole), min_size=1, unique=True))
    found = compare_seen(Kept(said(stored)), marks)
    same = common(stored, shown)
    numbers = sorted(mark.seq for mark in marks)
    agreeing = [n for n in numbers if n <= same]
    differing = [n for n in numbers if same < n <= len(stored)]
    assert found.agreed_through == max(agreeing, default=0)
    if differing:
        assert (found.diverged_at, found.never_left) == (differing[0], False)
    elif numbers[-1] > len(stored):
        assert (found.diverged_at, found.never_left) == (len(stored) + 1, True)
    else:
        assert found.relation is (Relation.EQUAL if numbers[-1] == len(stored) else Relation.DURABLE_AHEAD)


@pytest.mark.req("TR-15")
def test_a_difference_among_thousands_is_found_by_halving() -> None:
    stored = said(range(4096))
    shown = said([*range(2500), "other", *range(2501, 4096)])
    ledger = Kept(stored)
    found = compare_seen(ledger, seen(shown).marks())
    assert (found.diverged_at, found.agreed_through, found.is_exact) == (2501, 2500, True)
    assert len(ledger.asked) < 30


@pytest.mark.req("TR-15")
def test_the_stream_of_another_run_differs_from_the_start() -> None:
    found = compare_seen(Kept(said("ab")), seen(said("ab", run_id=OTHER)).marks())
    assert (found.relation, found.diverged_at, found.agreed_through) == (Relation.DIVERGED, 0, 0)


# -- numbers that died with their process -------------------------------------------------------------------------------------

BEFORE = said("ab")
DIED = said("abxy")
"""What a client saw of a process that had reserved the numbers 3 to 6, stored two, and died."""
AFTER = chained(
    [
        *((e.seq, Draft(channel="messages", payload=e.payload)) for e in BEFORE),
        (7, gap_draft(3, 6, "died")),
        (8, Draft(channel="messages", payload=canonical("c"))),
    ]
)


@pytest.mark.req("TR-15", "ST-14")
@pytest.mark.parametrize("ledger", [Kept(BEFORE, emitted_seq=6), Kept(AFTER)], ids=["just died", "taken over"])
def test_what_was_seen_and_died_unstored_can_be_judged_by_nobody(ledger: Kept) -> None:
    found = compare_seen(ledger, seen(DIED).marks())
    assert found == Comparison(relation=Relation.VISIBLE_AHEAD, events=2, agreed_through=2, unjudged=(3, 4))


@pytest.mark.req("TR-15", "ST-14")
@pytest.mark.parametrize("ledger", [Kept(BEFORE, emitted_seq=6), Kept(AFTER)], ids=["just died", "taken over"])
def test_a_difference_below_what_died_is_found_all_the_same(ledger: Kept) -> None:
    found = compare_seen(ledger, seen(said("aqxy")).marks())
    assert (found.relation, found.diverged_at, found.is_exact) == (Relation.DIVERGED, 2, True)


@pytest.mark.req("TR-15", "ST-14")
def test_a_number_beyond_what_can_have_left_is_a_contradiction() -> None:
    within = compare_seen(Kept(BEFORE, emitted_seq=6), seen(said("abwxyz")).marks())
    beyond = compare_seen(Kept(BEFORE, emitted_seq=6), seen(said("abwxyz!")).marks())
    assert (within.relation, within.events, within.unjudged) == (Relation.VISIBLE_AHEAD, 4, (3, 6))
    assert (beyond.relation, beyond.diverged_at, beyond.never_left) == (Relation.DIVERGED, 7, True)


@pytest.mark.req("TR-15", "ST-15")
def test_a_client_that_saw_what_died_and_then_the_gap_holds_what_is_stored() -> None:
    client = seen(DIED)
    for event in AFTER[2:]:
        client.take(event)
    assert [mark.seq for mark in client.marks()] == [0, 1, 2, 7, 8]
    assert compare_seen(Kept(AFTER), client.marks()) == Comparison(relation=Relation.EQUAL, agreed_through=8)


@pytest.mark.req("TR-15")
def test_marks_in_a_hole_do_not_hide_a_difference_below_them() -> None:
    stored = chained([*((e.seq, Draft(channel="messages", payload=e.payload)) for e in said("abcd")), (9, gap_draft(5, 8, "d"))])
    strange = seen(said("aQcdwxyz9")).marks()
    assert compare_seen(Kept(stored), strange).diverged_at == 2
    assert compare_seen(Kept(stored), strange[3:]).diverged_at == 3


# -- D and V ------------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-15", "TR-17")
def test_the_surfaces_differ_exactly_where_a_receipt_has_a_gap() -> None:
    for covered, stored, emitted in itertools.product(range(5), repeat=3):
        for bearing in range(max(0, stored - covered) + 1):
            numbers = Numbers(
                covered_seq=covered,
                stored_seq=stored,
                emitted_seq=emitted,
                emitted_exact=True,
                state_bearing_stored=bearing,
            )
            found = compare_surfaces(numbers)
            if covered > max(stored, emitted):
                assert (found.relation, found.diverged_at) == (Relation.DIVERGED, max(stored, emitted) + 1)
                continue
            frontier = Frontier(
                covered_seq=covered,
                stored_seq=stored,
                emitted_seq=max(emitted, covered),
                emitted_exact=True,
                state_bearing_stored=bearing,
                pending_writes=0,
            )
            _, gap = measure(frontier)
            assert (found.relation is Relation.VISIBLE_AHEAD) == (gap.kind is not GapKind.NONE)
            if found.relation is Relation.VISIBLE_AHEAD:
                assert found.events == gap.state_bearing
            elif stored > emitted:
                assert (found.relation, found.events) == (Relation.DURABLE_AHEAD, stored - emitted)
            else:
                assert found.relation is Relation.EQUAL


# -- what a client hands in ---------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-13")
def test_a_client_computes_the_chain_from_what_it_was_given_and_from_its_json() -> None:
    events = said(["é", 1.0, {"b": 1, "a": [None]}, "𝄞"])
    client = Seen(RUN)
    for event in events:
        client.take_json(event.to_json())
    assert [mark.chain for mark in client.marks()[1:]] == [event.chain for event in events]
    resumed = Seen(RUN, start=seen(events[:2]).mark)
    for event in events[2:]:
        resumed.take(event)
    assert resumed.mark == client.mark


@pytest.mark.parametrize(("taken", "strange"), [([0], 2), ([0], 0), ([], 1), ([0, 1], 0)])
def test_what_is_no_beginning_of_a_stream_is_refused(taken: list[int], strange: int) -> None:
    events = said("abc")
    client = seen([events[index] for index in taken])
    with pytest.raises(InvalidInput, match="not all of the stream was seen"):
        client.take(events[strange])


def test_a_gap_that_reaches_below_what_was_seen_is_refused() -> None:
    client = Seen(RUN, start=Mark(seq=4, chain=DIED[3].chain))
    with pytest.raises(InvalidInput, match="does not follow 4"):
        client.take(AFTER[2])
    assert parse(AFTER[2].payload) == {"from": 3, "to": 6, "reason": "died"}
    assert AFTER[2].kind is EventKind.GAP


@pytest.mark.parametrize("frame", [{}, {"seq": "1"}, {"seq": True}, {"seq": 1}, {"seq": 1, "kind": "odd", "payload": 1}])
def test_a_frame_of_another_form_is_refused(frame: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Seen(RUN).take_json(frame)


HASH = first_chain(RUN).removeprefix("sha256:")


def test_a_mark_is_read_with_and_without_the_name_of_its_digest() -> None:
    assert Mark.parse(f"7:{HASH}") == Mark.parse(f"7:sha256:{HASH}") == Mark(seq=7, chain=f"sha256:{HASH}")


@pytest.mark.parametrize(
    "text", ["", "7", HASH, f":{HASH}", f"-1:{HASH}", f"x:{HASH}", f"7:{HASH[:-1]}", f"7:{HASH.upper()}!", "٣:" + HASH]
)
def test_what_is_no_mark_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput):
        Mark.parse(text)


def test_no_marks_and_two_values_for_one_number_are_refused() -> None:
    ledger = Kept(said("ab"))
    with pytest.raises(InvalidInput, match="must hold a mark"):
        compare_seen(ledger, [])
    with pytest.raises(InvalidInput, match="two different chain values"):
        compare_seen(ledger, [seen(said("a")).mark, seen(said("b")).mark])
    with pytest.raises(InvalidInput, match="seq"):
        compare_seen(ledger, [Mark(seq=-1, chain=first_chain(RUN))])


def test_a_divergence_has_a_number_and_nothing_else_has_one() -> None:
    with pytest.raises(InvariantBroken):
        Comparison(relation=Relation.DIVERGED)
    with pytest.raises(InvariantBroken):
        Comparison(relation=Relation.EQUAL, diverged_at=3)
