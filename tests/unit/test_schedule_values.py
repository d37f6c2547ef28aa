"""Schedules as values: what a definition means, what becomes of one, and how far an occurrence is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from quiesce.domain.errors import InvalidInput, InvariantBroken
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.runs import RunStatus
from quiesce.domain.schedules import (
    Definition,
    Fire,
    FireStatus,
    Missed,
    Schedule,
    ScheduleId,
    ScheduleStatus,
    Timing,
    instant_of,
    local_iso,
    shown_status,
)
from quiesce.testing.samples import Samples

DEFINITION: Final = Definition(agent="a", input=b"{}", timing=Timing(cron="0 2 * * *"))
CHANGED: Final[dict[str, object]] = {
    "agent": "b",
    "input": b"[]",
    "bindings": b'{"model":"m"}',
    "thread_id": ThreadId("t"),
    "budget": {"tokens": 1},
    "timeout_ms": 1,
    "missed": Missed.ALL,
    "catchup_max": 1,
}


@pytest.mark.req("NO-13", "NO-14")
@pytest.mark.parametrize("field", CHANGED)
def test_a_definition_that_differs_in_anything_is_another_one(field: str) -> None:
    assert replace(DEFINITION, **{field: CHANGED[field]}).fingerprint() != DEFINITION.fingerprint()  # type: ignore[arg-type]
    assert replace(DEFINITION).fingerprint() == DEFINITION.fingerprint()


@pytest.mark.req("NO-13", "C72")
def test_a_definition_for_another_time_is_another_one() -> None:
    timings = (
        Timing(cron="0 2 * * *"),
        Timing(cron="0 3 * * *"),
        Timing(cron="0 2 * * *", timezone="Europe/London"),
        Timing(at=Instant(1)),
        Timing(at=Instant(2)),
    )
    assert len({replace(DEFINITION, timing=timing).fingerprint() for timing in timings}) == len(timings)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": "a" * (DEFAULT_LIMITS.name_chars_max + 1)}, "agent"),
        ({"thread_id": ThreadId("")}, "thread_id"),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"catchup_max": DEFAULT_LIMITS.catchup_max + 1}, "catchup_max"),
        ({"timing": Timing(cron="* * *")}, "cron"),
    ],
)
def test_a_definition_names_the_field_that_breaks_a_rule(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        replace(DEFINITION, **fields).check(DEFAULT_LIMITS)  # type: ignore[arg-type]
    assert refused.value.details["field"] == field


@pytest.mark.req("NO-13")
def test_what_was_deleted_does_not_come_back() -> None:
    schedule = Schedule(
        id=ScheduleId("s"),
        tenant="local",
        name="s",
        subject="ada",
        definition=DEFINITION,
        revision=0,
        status=ScheduleStatus.ACTIVE,
        next_at=Instant(5),
        created_at=Instant(1),
        changed_at=Instant(1),
    )
    deleted = schedule.changed(ScheduleStatus.DELETED, None, Instant(2))
    assert (deleted.revision, deleted.next_at) == (1, None)
    for status in ScheduleStatus:
        with pytest.raises(InvariantBroken):
            deleted.changed(status, None, Instant(3))


@pytest.mark.req("C73")
def test_how_far_an_occurrence_is_is_what_its_run_says_and_never_more() -> None:
    make = Samples()
    fire = Fire(
        schedule_id=ScheduleId("s"),
        planned=make.now,
        status=FireStatus.FIRED,
        fired_at=make.now,
        stands_for=(make.now,),
        count=1,
        run_id=RunId("r"),
    )
    due, later = after_ms(make.now, 10), after_ms(make.now, 20)
    waits = make.run(deadline_at=due)
    begun = replace(make.running(deadline_at=due), status=RunStatus.PENDING)
    assert begun.attempt > 0
    told = {
        "no run": shown_status(replace(fire, status=FireStatus.MISSED, run_id=None), None, later),
        "waits": shown_status(fire, waits, make.now),
        "waits past its deadline": shown_status(fire, waits, due),
        "waits without one": shown_status(fire, make.run(), later),
        "waits again": shown_status(fire, begun, later),
        "was cancelled in time": shown_status(fire, replace(waits, status=RunStatus.CANCELLED, ended_at=make.now), later),
        "was ended for its deadline": shown_status(fire, replace(waits, status=RunStatus.FAILED, ended_at=due), later),
        "has completed": shown_status(fire, replace(begun, status=RunStatus.COMPLETED, ended_at=later), later),
    }
    assert told == {
        "no run": "missed",
        "waits": "queued",
        "waits past its deadline": "expired",
        "waits without one": "queued",
        "waits again": "pending",
        "was cancelled in time": "cancelled",
        "was ended for its deadline": "expired",
        "has completed": "completed",
    }


@pytest.mark.req("C72")
@pytest.mark.parametrize(
    ("wall", "meant"),
    [
        ("2026-06-01T12:00:00", "2026-06-01T12:00:00+01:00"),
        ("2026-10-25T01:30:00", "2026-10-25T01:30:00+01:00"),
        ("2026-03-29T01:30:00", "2026-03-29T02:00:00+01:00"),
        ("2026-03-29T01:59:59", "2026-03-29T02:00:00+01:00"),
    ],
    ids=["plain", "shown twice", "leapt over", "leapt over, to the second"],
)
def test_one_moment_off_the_wall_clock_follows_the_rule_for_clock_changes(wall: str, meant: str) -> None:
    assert local_iso(instant_of(datetime.fromisoformat(wall), "Europe/London"), "Europe/London") == meant


def test_a_moment_with_an_offset_means_itself_in_any_zone() -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert local_iso(instant_of(moment, "Europe/London"), "UTC") == "2026-03-29T01:30:00+00:00"
