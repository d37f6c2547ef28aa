"""Which instants a schedule is planned for, through both changes of the clock, and what a late timer leads to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.schedules import (
    Definition,
    Missed,
    Plan,
    Schedule,
    ScheduleId,
    ScheduleStatus,
    Timing,
    local_iso,
    plan,
)

MINUTE: Final = 60_000_000
ZONES: Final = (
    *("Europe/London", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "America/Santiago"),
    *("Pacific/Chatham", "Asia/Kolkata", "Africa/Casablanca", "Africa/Cairo", "UTC"),
)
EXPRESSIONS: Final = (
    *("30 1 * * *", "0 2 * * *", "*/10 * * * *", "*/30 1 * * *", "15 */2 * * *", "0 0 * * *", "*/5 0 * * *"),
    *("30 * * * *", "0,30 1,2 * * *", "59 23 * * *", "0 0 L * *", "*/15 23,0 * * 1", "* 2 * * *", "10 0-3 * * *"),
)


def at(text: str) -> Instant:
    """The instant that a text in UTC means."""
    return Instant(round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000)


def fires_of(cron: str, zone: str, first: str, last: str) -> list[str]:
    """The planned instants in this stretch, as the wall clock shows them."""
    timing = Timing(cron=cron, timezone=zone)
    found: list[str] = []
    for instant in timing.after(Instant(at(first) - 1)):
        if instant > at(last):
            return found
        found.append(local_iso(instant, zone))
    return found


# -- both changes of the clock -------------------------------------------------------------------------------------------------


@pytest.mark.req("C72", "NO-13")
def test_a_time_that_the_clock_shows_twice_fires_once_at_its_first_showing() -> None:
    assert fires_of("30 1 * * *", "Europe/London", "2026-10-24T00:00:00", "2026-10-26T23:00:00") == [
        "2026-10-24T01:30:00+01:00",
        "2026-10-25T01:30:00+01:00",
        "2026-10-26T01:30:00+00:00",
    ]


@pytest.mark.req("C72", "NO-13")
def test_a_time_that_the_clock_leaps_over_fires_once_at_the_first_moment_behind_the_leap() -> None:
    assert fires_of("30 1 * * *", "Europe/London", "2026-03-28T00:00:00", "2026-03-30T23:00:00") == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T02:00:00+01:00",
        "2026-03-30T01:30:00+01:00",
    ]


@pytest.mark.req("C72")
@pytest.mark.parametrize(
    ("zone", "cron", "day", "expected"),
    [
        ("America/New_York", "30 1 * * *", "2026-11-01", ["2026-11-01T01:30:00-04:00"]),
        ("America/New_York", "30 2 * * *", "2026-03-08", ["2026-03-08T03:00:00-04:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04", ["2026-04-05T01:45:00+11:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03", ["2026-10-04T02:30:00+11:00"]),
        ("Asia/Kolkata", "30 1 * * *", "2026-10-25", ["2026-10-26T01:30:00+05:30"]),
    ],
)
def test_other_zones_follow_the_same_rule(zone: str, cron: str, day: str, expected: list[str]) -> None:
    begin = at(f"{day}T00:00:00")
    timing = Timing(cron=cron, timezone=zone)
    found = [i for i in islice(timing.after(begin), 3) if i <= begin + 24 * 60 * MINUTE]
    assert [local_iso(instant, zone) for instant in found] == expected


@pytest.mark.req("C72")
@pytest.mark.parametrize("begun", ["2026-10-25T00:30:00", "2026-10-25T01:00:00", "2026-10-25T01:10:00", "2026-10-25T01:29:59"])
def test_begun_within_the_second_showing_of_an_hour_the_next_time_lies_ahead(begun: str) -> None:
    timing = Timing(cron="30 1 * * *", timezone="Europe/London")
    assert timing.next_after(at(begun)) == at("2026-10-26T01:30:00")


@pytest.mark.req("C72")
def test_two_times_that_the_clock_leaps_over_are_one_occurrence() -> None:
    assert fires_of("0,30 1 * * *", "Europe/London", "2026-03-29T00:00:00", "2026-03-29T23:00:00") == [
        "2026-03-29T02:00:00+01:00"
    ]


@pytest.mark.req("C72")
def test_an_interval_follows_the_time_that_passes_through_both_changes() -> None:
    for begin in ("2026-10-24T22:00:00", "2026-03-28T22:00:00"):
        instants = list(islice(Timing(cron="*/30 * * * *", timezone="Europe/London").after(at(begin)), 20))
        assert {later - earlier for earlier, later in pairwise(instants)} == {30 * MINUTE}


@pytest.mark.req("C72", "NO-13")
@given(
    zone=st.sampled_from(ZONES),
    cron=st.sampled_from(EXPRESSIONS),
    minute=st.integers(0, 60 * 24 * 365 * 3),
    part=st.floats(0, 1, exclude_max=True),
)
def test_the_next_occurrence_is_strictly_later_and_the_same_from_wherever_it_is_computed(
    zone: str, cron: str, minute: int, part: float
) -> None:
    begin = Instant(at("2026-01-01T00:00:00") + minute * MINUTE)
    timing = Timing(cron=cron, timezone=zone)
    first, second = islice(timing.after(begin), 2)
    assert begin < first < second
    assert timing.next_after(first) == second
    between = Instant(begin + int((first - begin) * part))
    assert timing.next_after(between) == first
    assert timing.next_after(Instant(first - 1)) == first


@pytest.mark.req("C72")
@given(zone=st.sampled_from(ZONES), day=st.integers(0, 365 * 3), hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_a_daily_time_fires_once_on_each_date_of_the_wall_clock(zone: str, day: int, hour: int, minute: int) -> None:
    begin = Instant(at("2026-01-01T12:00:00") + day * 24 * 60 * MINUTE)
    found = [local_iso(i, zone)[:10] for i in islice(Timing(cron=f"{minute} {hour} * * *", timezone=zone).after(begin), 4)]
    first = datetime.fromisoformat(found[0])
    assert found == [(first + timedelta(days=later)).strftime("%Y-%m-%d") for later in range(4)]


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (Timing(cron="61 * * * *"), "cron"),
        (Timing(cron="* * * *"), "cron"),
        (Timing(cron="0 * * * * *"), "cron"),
        (Timing(cron="0 2 * * *", timezone="Europe/Lundun"), "timezone"),
        (Timing(cron="0 2 * * *", timezone="../etc/passwd"), "timezone"),
        (Timing(cron="0 2 * * *", timezone=""), "timezone"),
        (Timing(), "cron"),
        (Timing(cron="0 2 * * *", at=Instant(1)), "cron"),
    ],
)
def test_a_timing_that_says_nothing_is_refused_by_name(timing: Timing, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        timing.check()
    assert caught.value.details["field"] == field


def test_an_expression_that_never_matches_has_no_next_occurrence() -> None:
    assert Timing(cron="* * */20 * 1L").next_after(at("2026-01-01T00:00:00")) is None


# -- what a late timer leads to ------------------------------------------------------------------------------------------------


def schedule(
    missed: Missed, *, cron: str = "*/10 * * * *", next_at: str = "2026-06-01T12:10:00", catchup_max: int = 100
) -> Schedule:
    definition = Definition(agent="a", input=b"{}", timing=Timing(cron=cron), missed=missed, catchup_max=catchup_max)
    return Schedule(
        id=ScheduleId("s"),
        tenant="local",
        name="s",
        subject="ada",
        definition=definition,
        revision=0,
        status=ScheduleStatus.ACTIVE,
        next_at=at(next_at),
        created_at=at("2026-06-01T00:00:00"),
        changed_at=at("2026-06-01T00:00:00"),
    )


def told(found: Plan) -> list[tuple[str, list[str]]]:
    """Each decision in a word, and the minutes that it is about."""
    return [("runs" if f.runs else "missed", [local_iso(i, "UTC")[11:16] for i in f.stands_for]) for f in found.fires]


@pytest.mark.req("C74")
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (Missed.SKIP, [("missed", ["12:10", "12:20", "12:30"])]),
        (Missed.ONE, [("runs", ["12:10", "12:20", "12:30"])]),
        (Missed.ALL, [("runs", ["12:10"]), ("runs", ["12:20"]), ("runs", ["12:30"])]),
    ],
)
def test_three_missed_times_lead_to_none_one_or_three_runs_that_name_them(
    missed: Missed, expected: list[tuple[str, list[str]]]
) -> None:
    found = plan(schedule(missed), at("2026-06-01T12:36:00"), DEFAULT_LIMITS)
    assert told(found) == expected
    assert found.next_at == at("2026-06-01T12:40:00")


@pytest.mark.req("C74")
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (Missed.SKIP, [("missed", ["12:10"]), ("runs", ["12:20"])]),
        (Missed.ONE, [("runs", ["12:10", "12:20"])]),
        (Missed.ALL, [("runs", ["12:10"]), ("runs", ["12:20"])]),
    ],
)
def test_a_time_within_the_grace_was_not_missed(missed: Missed, expected: list[tuple[str, list[str]]]) -> None:
    assert told(plan(schedule(missed), at("2026-06-01T12:20:30"), DEFAULT_LIMITS)) == expected


@pytest.mark.req("C74")
def test_catching_up_is_bounded_and_what_is_beyond_is_recorded_as_missed() -> None:
    found = plan(schedule(Missed.ALL, catchup_max=2), at("2026-06-01T12:36:00"), DEFAULT_LIMITS)
    assert told(found) == [("missed", ["12:10"]), ("runs", ["12:20"]), ("runs", ["12:30"])]


def test_a_timer_that_is_not_due_leads_to_nothing() -> None:
    found = plan(schedule(Missed.ALL), at("2026-06-01T12:09:59"), DEFAULT_LIMITS)
    assert (found.fires, found.next_at) == ((), at("2026-06-01T12:10:00"))


@pytest.mark.parametrize("cron", ["* * * * *", "* * * 1 *"])
def test_of_very_many_missed_times_the_newest_are_counted_and_it_is_said_that_there_were_more(cron: str) -> None:
    limits = Limits(fires_counted_max=50)
    long_ago = schedule(Missed.ONE, cron=cron, next_at="2026-01-01T00:00:00")
    found = plan(long_ago, at("2026-02-03T00:00:00"), limits)
    (fire,) = found.fires
    assert not found.is_exact
    assert 0 < len(fire.stands_for) <= 50
    newest = Timing(cron=cron).next_after(Instant(fire.planned))
    assert newest is not None
    assert newest > at("2026-02-03T00:00:00"), "nothing between the newest counted and now"
    assert found.next_at == newest


@given(minutes=st.integers(0, 400), missed=st.sampled_from(list(Missed)))
def test_every_planned_time_is_decided_once_whatever_the_policy(minutes: int, missed: Missed) -> None:
    now = Instant(at("2026-06-01T12:10:00") + minutes * MINUTE)
    found = plan(schedule(missed), now, DEFAULT_LIMITS)
    decided = sorted(instant for fire in found.fires for instant in fire.stands_for)
    assert decided == [Instant(at("2026-06-01T12:10:00") + 10 * n * MINUTE) for n in range(minutes // 10 + 1)]
    assert found.next_at == Instant(decided[-1] + 10 * MINUTE)
