"""Sealed identity of commands: what makes two intents the same request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.canonical import canonical
from quiesce.domain.commands import INTENT_TRANSITIONS, Capacity, Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS

NOW = Instant(1_000_000)
STOP = Kind(name="stop", overtakes=True)


def an_intent(**changes: object) -> Intent:
    intent = Intent(
        id=IntentId("00000000-0000-7000-8000-000000000001"),
        tenant="local",
        scope="default",
        producer="console",
        producer_key="press-1",
        subject="ada",
        target=Target(owner="run", id="r-1"),
        revision=0,
        kind=STOP,
        payload=canonical({"why": "enough", "grace_ms": 5}),
        due_at=NOW,
        not_after=None,
        staged_at=NOW,
    )
    return replace(intent, **changes)  # type: ignore[arg-type]


@pytest.mark.req("CC-14")
def test_formatting_key_order_and_the_moment_of_staging_do_not_change_the_meaning() -> None:
    same = an_intent(
        id=IntentId("00000000-0000-7000-8000-000000000002"),
        payload=canonical({"grace_ms": 5, "why": "enough"}),
        staged_at=Instant(NOW + 5),
        due_at=Instant(NOW + 5),
    )
    assert same.fingerprint == an_intent().fingerprint
    assert an_intent().differences(same) == []


@pytest.mark.req("CC-10", "CC-13", "CC-14", "G-38")
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("scope", {"scope": "other"}),
        ("subject", {"subject": "eve"}),
        ("target", {"target": Target(owner="run", id="r-2")}),
        ("target", {"target": Target(owner="task", id="r-1")}),
        ("target", {"revision": 1}),
        ("kind", {"kind": Kind(name="wake", overtakes=True)}),
        ("kind", {"kind": Kind(name="stop", version=2, overtakes=True)}),
        ("kind", {"kind": Kind(name="stop")}),
        ("kind", {"kind": Kind(name="stop", overtakes=True, is_barrier=False)}),
        ("payload", {"payload": canonical({"why": "enough", "grace_ms": 6})}),
        ("due_at", {"due_at": Instant(NOW + 1)}),
        ("not_after", {"not_after": Instant(NOW + 9)}),
    ],
)
def test_each_changed_field_makes_it_another_request_and_is_named(field: str, change: dict[str, object]) -> None:
    other = an_intent(**change)
    assert other.fingerprint != an_intent().fingerprint
    assert an_intent().differences(other) == [field]


@pytest.mark.req("CC-10")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tenant": ""}, "tenant"),
        ({"scope": ""}, "scope"),
        ({"producer": ""}, "producer"),
        ({"producer_key": ""}, "producer_key"),
        ({"producer_key": "k" * 513}, "producer_key"),
        ({"subject": ""}, "subject"),
        ({"subject": "a\0b"}, "subject"),
        ({"target": Target(owner="", id="x")}, "target.owner"),
        ({"target": Target(owner="run", id="")}, "target.id"),
        ({"revision": -1}, "revision"),
        ({"kind": Kind(name="")}, "kind"),
        ({"kind": Kind(name="stop", version=0)}, "kind.version"),
        ({"not_after": NOW}, "not_after"),
    ],
)
def test_a_missing_or_impossible_field_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        an_intent(**change).check(DEFAULT_LIMITS)
    assert caught.value.details["field"] == field


@pytest.mark.req("CC-24")
@given(bound=st.integers(0, 5), reserve=st.integers(0, 5), used=st.integers(0, 12))
def test_the_reserve_is_only_for_what_may_overtake(bound: int, reserve: int, used: int) -> None:
    room = Capacity(tenant="local", scope="default", bound=bound, reserve=reserve, used=used)
    assert room.has_room(overtakes=False) == (used + 1 <= bound)
    assert room.has_room(overtakes=True) == (used + 1 <= bound + reserve)


def test_an_intent_ends_once() -> None:
    ends = {status for status, onward in INTENT_TRANSITIONS.items() if not onward}
    assert ends == {IntentStatus.RELAYED, IntentStatus.WITHDRAWN, IntentStatus.EXPIRED}
    assert INTENT_TRANSITIONS[IntentStatus.STAGED] == ends
