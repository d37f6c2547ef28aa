"""Canonical JSON: the bytes of RFC 8785, or a refusal that names the place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from quiesce.domain.canonical import Json, canonical, digest, digest_of, parse
from quiesce.domain.errors import InvalidPayload, PayloadTooLarge
from quiesce.domain.limits import DEFAULT_LIMITS

INTEGER_MAX = 2**53 - 1
texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers(-INTEGER_MAX, INTEGER_MAX) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values: st.SearchStrategy[Json] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
"""Any JSON value that the canonical form can hold."""

WRONG: dict[str, tuple[object, str]] = {
    "NaN": (math.nan, "finite"),
    "infinity": (math.inf, "finite"),
    "minus infinity": (-math.inf, "finite"),
    "a lone surrogate": ("\ud800", "surrogate"),
    "2**53": (2**53, r"2\*\*53"),
    "-(2**53)": (-(2**53), r"2\*\*53"),
    "bytes": (b"raw", "no JSON form"),
    "a set": ({1}, "no JSON form"),
    "an object": (object(), "no JSON form"),
    "a function": (len, "no JSON form"),
}


@given(values)
def test_the_bytes_are_those_of_rfc_8785(value: Json) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(values)
@example(2.0**53)
@example(5.250882256963482e16)
def test_what_is_parsed_is_the_value_and_has_the_same_canonical_form(value: Json) -> None:
    parsed = parse(canonical(value))
    assert parsed == value
    assert canonical(parsed) == canonical(value)


@given(values)
def test_the_order_of_keys_makes_no_difference(value: Json) -> None:
    assert canonical(_reversed(value)) == canonical(value)


@given(values, values)
def test_values_have_one_digest_exactly_if_they_have_one_form(one: Json, other: Json) -> None:
    assert (digest_of(one) == digest_of(other)) is (canonical(one) == canonical(other))


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    ("path", "wrap"),
    [
        ("payload", lambda wrong: wrong),
        ("payload.a", lambda wrong: {"a": wrong}),
        ("payload.a[1].b", lambda wrong: {"a": [0, {"b": wrong}]}),
        ("payload[0]", lambda wrong: (wrong,)),
        ("payload[2]", lambda wrong: [0.5, "behind a float", wrong]),
        ("payload.z", lambda wrong: {"ключ": 1, "z": wrong}),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(name: str, path: str, wrap: object) -> None:
    wrong, rule = WRONG[name]
    assert callable(wrap)
    with pytest.raises(InvalidPayload, match=rule) as caught:
        canonical(wrap(wrong))
    assert caught.value.details["field"] == path
    assert caught.value.code == "PAYLOAD_INVALID"


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"a", ("a",)])
def test_keys_must_be_text(key: object) -> None:
    with pytest.raises(InvalidPayload, match="must be text"):
        canonical({"a": {key: 1}})


def test_a_lone_surrogate_in_a_key_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="surrogate"):
        canonical({"\udfff": 1})


def test_the_name_of_the_field_begins_the_path() -> None:
    with pytest.raises(InvalidPayload, match=r"^input\.a: "):
        canonical({"a": math.nan}, field="input")


def test_a_nul_character_is_held_faithfully() -> None:
    assert canonical("\x00") == b'"\\u0000"'
    assert parse(canonical({"\x00": "\x00"})) == {"\x00": "\x00"}


def test_tuples_count_as_lists_and_booleans_are_no_numbers() -> None:
    assert canonical((1, (True, None))) == b"[1,[true,null]]"


def test_keys_are_sorted_by_utf_16_units() -> None:
    # The emoji is two surrogates (from 0xD800) and so comes before U+FB33, although its code point is greater.
    assert canonical({"\ufb33": 1, "😀": 2}) == '{"😀":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1"), (-0.0, "0"), (1e21, "1e+21"), (1e-7, "1e-7"), (0.1, "0.1"), (333333333.33333329, "333333333.3333333")],
)
def test_floats_are_written_as_ecmascript_does(number: float, text: str) -> None:
    assert canonical(number) == text.encode()


def test_an_integer_subclass_is_written_as_a_number() -> None:
    class Seven(int):
        def __repr__(self) -> str:
            return "seven"

    assert canonical([Seven(7)]) == b"[7]"


def test_the_size_is_bounded_to_the_byte() -> None:
    limits = replace(DEFAULT_LIMITS, payload_bytes_max=10)
    assert len(canonical("x" * 8, limits=limits)) == 10
    with pytest.raises(PayloadTooLarge, match="at most 10 bytes"):
        canonical("x" * 9, limits=limits)
    with pytest.raises(PayloadTooLarge):
        canonical("é" * 5, limits=limits)


def test_the_depth_is_bounded() -> None:
    limits = replace(DEFAULT_LIMITS, payload_depth_max=2)
    assert canonical([["deep"]], limits=limits) == b'[["deep"]]'
    with pytest.raises(InvalidPayload, match="too deeply") as caught:
        canonical([[["deeper"]]], limits=limits)
    assert caught.value.details["field"] == "payload[0][0]"


def test_an_endless_value_is_refused_and_not_followed() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidPayload, match="too deeply"):
        canonical(endless)


def test_a_digest_names_its_algorithm() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def _reversed(value: Json) -> Json:
    """Return an equal value whose objects list their keys the other way round."""
    if isinstance(value, dict):
        return {key: _reversed(item) for key, item in reversed(value.items())}
    if isinstance(value, list):
        return [_reversed(item) for item in value]
    return value
