"""Instants, workers, actors and evidence: small values with one law each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.instant import Instant, after_ms, elapsed_ms, to_iso
from quiesce.testing.samples import Samples

instants = st.integers(0, 4_000_000_000_000_000).map(Instant)


@given(instants, st.integers(-(10**9), 10**9))
def test_an_instant_so_many_milliseconds_later_is_so_many_milliseconds_away(start: Instant, duration_ms: int) -> None:
    assert elapsed_ms(start, after_ms(start, duration_ms)) == duration_ms


@given(instants, instants)
def test_the_text_of_instants_sorts_as_they_do(a: Instant, b: Instant) -> None:
    assert (to_iso(a) < to_iso(b)) is (a < b)


def test_an_instant_is_written_in_utc_with_microseconds() -> None:
    assert to_iso(Instant(0)) == "1970-01-01T00:00:00.000000Z"
    assert to_iso(Instant(1_750_000_000_000_001)) == "2025-06-15T15:06:40.000001Z"


@pytest.mark.req("RR-03", "RR-04")
@pytest.mark.parametrize(("offset", "is_live"), [(-1, True), (0, False), (1, False)])
def test_at_the_instant_of_its_expiry_a_lease_no_longer_holds(offset: int, is_live: bool) -> None:
    worker = Samples().worker()
    assert worker.is_live(Instant(worker.lease_expires_at + offset)) is is_live


@pytest.mark.parametrize("kind", list(ActorKind))
def test_an_actor_is_read_back_from_its_json(kind: ActorKind) -> None:
    actor = Actor(kind=kind, name="ada")
    assert Actor.from_json(actor.to_json()) == actor


@pytest.mark.req("RR-27")
def test_what_is_shown_of_an_artifact_suffices_to_check_it() -> None:
    make = Samples()
    run = make.running()
    artifact = make.artifact(run, content=b"four")
    shown = artifact.to_json()
    assert (shown["name"], shown["bytes"], shown["run_id"]) == ("report.md", 4, run.id)
    assert str(shown["digest"]).startswith("sha256:")


def test_what_is_shown_of_evidence_holds_no_body() -> None:
    make = Samples()
    assert "secret" not in repr(make.evidence(make.running(), body="secret").to_json())
