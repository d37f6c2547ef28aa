"""Ids: UUIDv7, ordered by time and along parentage."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import parse_run_id, uuid7
from quiesce.domain.instant import Instant

instants = st.integers(0, 2**47 * 1000).map(Instant)
random_bytes = st.binary(min_size=10, max_size=10)


@given(instants, random_bytes)
def test_an_id_is_a_uuid_of_version_7(now: Instant, random: bytes) -> None:
    parsed = uuid.UUID(uuid7(now, random))
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == now // 1000


@given(instants, instants, random_bytes, random_bytes)
def test_ids_sort_by_the_millisecond_of_their_making(a: Instant, b: Instant, x: bytes, y: bytes) -> None:
    if a // 1000 < b // 1000:
        assert uuid7(a, x) < uuid7(b, y)


@given(instants, random_bytes, random_bytes)
def test_ids_of_one_millisecond_differ_with_their_random_bits(now: Instant, x: bytes, y: bytes) -> None:
    def used(random: bytes) -> int:
        bits = int.from_bytes(random, "big")
        return (bits >> 62 & 0xFFF) << 62 | bits & (2**62 - 1)

    assert (uuid7(now, x) == uuid7(now, y)) is (used(x) == used(y))


@given(instants, instants, random_bytes, random_bytes)
def test_an_id_made_after_another_is_greater_whatever_the_clocks_say(
    parents: Instant, childs: Instant, x: bytes, y: bytes
) -> None:
    parent = uuid7(parents, x)
    child = uuid7(childs, y, after=parent)
    assert child > parent
    assert uuid.UUID(child).version == 7


@given(instants, random_bytes)
def test_after_makes_no_difference_to_a_clock_that_is_ahead_anyway(now: Instant, random: bytes) -> None:
    earlier = uuid7(Instant(now), b"\x00" * 10)
    later = Instant(now + 2000)
    assert uuid7(later, random, after=earlier) == uuid7(later, random)


@given(st.uuids())
def test_a_run_id_is_read_in_any_spelling_of_its_uuid(value: uuid.UUID) -> None:
    assert parse_run_id(str(value).upper()) == parse_run_id(value.hex) == str(value)


@pytest.mark.parametrize("text", ["", "7", "not-a-uuid", "0" * 33, "run:7"])
def test_what_is_no_uuid_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^thread: "):
        parse_run_id(text, field="thread")
