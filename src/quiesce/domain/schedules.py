"""Schedules: which instants a run is planned for, and what becomes of each of them.

    active ──▶ paused ──▶ active     (each change is the schedule's next revision; timers of earlier ones lose their force)
       ├─────▶ ended                 (a one-shot that was decided, or an expression that never matches again)
       └─────▶ deleted               (from any of them)

The rule for clock changes: an expression whose minute and hour are both given names times of the wall clock. One that the
clock shows twice is planned once, at its first showing; one that the clock leaps over is planned for the first moment behind
the leap. An expression whose minute or hour begins with `*` names an interval: it follows the time that passes, through an hour
that comes twice as well.

Keeps: an occurrence is a schedule and a planned instant, and nothing else; the next one is strictly later, and the same from
wherever it is computed. `plan` is the one function that says which planned instants fire, which are stood for by another and
which are missed. Knows nothing of commands, runs or stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final, NewType
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import digest_of
from quiesce.domain.errors import InvalidInput, invariant
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant, elapsed_ms
from quiesce.domain.limits import Limits
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.texts import check_text

ScheduleId = NewType("ScheduleId", str)

_FIELDS: Final = 5
_MINUTE: Final = 60_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleStatus(StrEnum):
    """Where a schedule stands."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    DELETED = "deleted"


class Missed(StrEnum):
    """What is done about planned instants that passed while nobody was there."""

    SKIP = "skip"
    """Nothing is run for them; they are recorded."""
    ONE = "one"
    """One run stands for all of them."""
    ALL = "all"
    """Each gets a run of its own, up to a bound; the older ones are recorded as missed."""


class FireStatus(StrEnum):
    """What became of an occurrence. That it fired says nothing of how its run ended, nor that anything ran."""

    FIRED = "fired"
    REFUSED = "refused"
    MISSED = "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When: a cron expression in a time zone, or one instant."""

    cron: str | None = None
    timezone: str = "UTC"
    at: Instant | None = None

    def check(self) -> None:
        """Raise `InvalidInput` for an expression or a zone that says nothing."""
        if (self.cron is None) == (self.at is None):
            raise InvalidInput(field="cron", value=self.cron, rule="either a cron expression or one instant is needed")
        _zone(self.timezone)
        if self.cron is None:
            return
        if len(self.cron.split()) != _FIELDS:
            raise InvalidInput(field="cron", value=self.cron, rule="needs five fields: minute hour day month weekday")
        try:
            CronSim(self.cron, _EPOCH)
        except CronSimError as error:
            raise InvalidInput(field="cron", value=self.cron, rule=f"cannot be read: {error}") from None

    def after(self, instant: Instant) -> Iterator[Instant]:
        """Return the planned instants strictly after this one, each later than the one before."""
        if self.cron is None:
            return iter(() if self.at is None or self.at <= instant else (self.at,))
        return _matches(self.cron, _zone(self.timezone), instant)

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the first planned instant strictly after this one, or None if there is none (within fifty years)."""
        return next(self.after(instant), None)


def _matches(cron: str, zone: ZoneInfo, instant: Instant) -> Iterator[Instant]:
    last = instant
    for match in CronSim(cron, _moment(instant).astimezone(zone)):
        # Begun within the second showing of an hour, the first match of a wall clock time may lie behind us.
        found = Instant(round((match - _EPOCH) / timedelta(microseconds=1)))
        if found > last:
            last = found
            yield found


def _moment(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def local_iso(instant: Instant, timezone: str) -> str:
    """Return an instant as the wall clock of a zone shows it, with its offset."""
    return _moment(instant).astimezone(_zone(timezone)).isoformat(timespec="seconds")


def instant_of(moment: datetime, timezone: str) -> Instant:
    """Return the instant that a moment means; one without an offset is read off the wall clock of this zone, by the same rule."""
    if moment.tzinfo is not None:
        return Instant(round((moment - _EPOCH) / timedelta(microseconds=1)))
    zone = _zone(timezone)
    while (aware := moment.replace(tzinfo=zone)).astimezone(UTC).astimezone(zone) != aware:
        moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return Instant(round((aware - _EPOCH) / timedelta(microseconds=1)))


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a name that is none, a path, a directory of the database
        raise InvalidInput(field="timezone", value=name, rule="must be an IANA name such as Europe/London") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a schedule starts, when, and what it does about missed times. `input` and `bindings` are canonical JSON.

    `thread_id`: the thread that all its runs go on with; None gives each run a thread of its own. `budget`: what each run may
    use, fixed here: a timer that falls due adds nothing to it. `timeout_ms`: each run's deadline, counted from its fire.
    """

    agent: str
    input: bytes
    timing: Timing
    bindings: bytes = b"{}"
    thread_id: ThreadId | None = None
    budget: Amounts = field(default_factory=dict)
    timeout_ms: int | None = None
    missed: Missed = Missed.ONE
    catchup_max: int = 100

    def fingerprint(self) -> str:
        """Return the digest of everything that gives it its meaning."""
        return digest_of(
            {
                "agent": self.agent,
                "input": self.input.decode(),
                "bindings": self.bindings.decode(),
                "cron": self.timing.cron,
                "timezone": self.timing.timezone,
                "at": self.timing.at,
                "thread_id": self.thread_id,
                "budget": dict(self.budget),
                "timeout_ms": self.timeout_ms,
                "missed": str(self.missed),
                "catchup_max": self.catchup_max,
            }
        )

    def check(self, limits: Limits) -> None:
        """Raise `InvalidInput` for a field from outside that breaks a rule."""
        check_text("agent", self.agent, limits.name_chars_max)
        check_text("thread_id", self.thread_id, limits.name_chars_max)
        self.timing.check()
        Budget.of_limits(self.budget)
        if not 1 <= self.catchup_max <= limits.catchup_max:
            raise InvalidInput(field="catchup_max", value=self.catchup_max, rule=f"must be 1 to {limits.catchup_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it is stored. `next_at`: the planned instant that its timer waits for; None while it waits for none."""

    id: ScheduleId
    tenant: str
    name: str
    subject: str
    definition: Definition
    revision: int
    status: ScheduleStatus
    next_at: Instant | None
    created_at: Instant
    changed_at: Instant

    def changed(
        self,
        status: ScheduleStatus,
        next_at: Instant | None,
        now: Instant,
        *,
        definition: Definition | None = None,
        subject: str | None = None,
    ) -> Schedule:
        """Return its next incarnation: timers of earlier ones lose their force."""
        invariant(self.status is not ScheduleStatus.DELETED, "a deleted schedule stays deleted")
        return replace(
            self,
            status=status,
            next_at=next_at,
            revision=self.revision + 1,
            changed_at=now,
            definition=definition or self.definition,
            subject=subject or self.subject,
        )

    def moved(self, next_at: Instant | None) -> Schedule:
        """Return it as it waits for its next planned instant, or ended if there is none."""
        return replace(self, next_at=next_at, status=ScheduleStatus.ENDED if next_at is None else self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """The receipt of an occurrence: when it was due, when it was decided, what it stands for, and the run it made, if any."""

    schedule_id: ScheduleId
    planned: Instant
    status: FireStatus
    fired_at: Instant
    stands_for: tuple[Instant, ...]
    """The planned instants that it stands for, its own among them, oldest first; the newest of them if there are too many."""
    count: int
    """How many planned instants it stands for."""
    is_exact: bool = True
    """False if there were more than are counted: `count` then says at least so many."""
    run_id: RunId | None = None
    reason: str = ""

    @property
    def late_ms(self) -> float:
        """How long after its planned instant it was decided."""
        return elapsed_ms(self.planned, self.fired_at)

    @property
    def coalesced(self) -> tuple[Instant, ...]:
        """The other planned instants that it stands for."""
        return tuple(instant for instant in self.stands_for if instant != self.planned)


def shown_status(fire: Fire, run: Run | None, now: Instant) -> str:
    """Say how far an occurrence is, from its run alone: `queued`, `expired` if no worker began it in time, else the run's own.

    Success is only ever a run that completed (C73).
    """
    if run is None:
        return str(fire.status)
    if run.attempt == 0 and run.deadline_at is not None and run.deadline_at <= (run.ended_at or now):
        return "expired"
    return "queued" if run.status is RunStatus.PENDING and run.attempt == 0 else str(run.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFire:
    """One decision about planned instants: whether they run, and which they are."""

    stands_for: tuple[Instant, ...]
    runs: bool

    @property
    def planned(self) -> Instant:
        """The occurrence that it is recorded under: the newest."""
        return self.stands_for[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a timer that fell due leads to."""

    fires: tuple[PlannedFire, ...]
    next_at: Instant | None
    is_exact: bool = True


def plan(schedule: Schedule, now: Instant, limits: Limits) -> Plan:
    """Say which planned instants up to `now` fire, which are stood for, which are missed, and which comes next.

    An instant is missed once it is later than `fire_grace_ms`; at most the newest is not.
    """
    if schedule.next_at is None or schedule.next_at > now:
        return Plan(fires=(), next_at=schedule.next_at)
    due, is_exact = _due(schedule.definition.timing, schedule.next_at, now, limits.fires_counted_max)
    next_at = schedule.definition.timing.next_after(max(now, due[-1]))
    on_time = due[-1:] if elapsed_ms(due[-1], now) <= limits.fire_grace_ms else ()
    late = due[: len(due) - len(on_time)]
    return Plan(fires=tuple(_fires(schedule.definition, late, on_time)), next_at=next_at, is_exact=is_exact)


def _fires(definition: Definition, late: tuple[Instant, ...], on_time: tuple[Instant, ...]) -> Iterator[PlannedFire]:
    if definition.missed is Missed.ONE:
        yield PlannedFire(stands_for=late + on_time, runs=True)
        return
    lost = late if definition.missed is Missed.SKIP else late[: -definition.catchup_max]
    if lost:
        yield PlannedFire(stands_for=lost, runs=False)
    for instant in late[len(lost) :] + on_time:
        yield PlannedFire(stands_for=(instant,), runs=True)


def _due(timing: Timing, first: Instant, now: Instant, count_max: int) -> tuple[tuple[Instant, ...], bool]:
    """Return the planned instants from `first` to `now`, and whether these are all: of too many, the newest are looked for.

    No two are less than a minute apart, so a window of so many minutes holds no more than so many.
    """

    def within(after: Instant, until: Instant) -> Iterator[Instant]:
        return takewhile(lambda instant: instant <= until, timing.after(after))

    rest = tuple(islice(within(first, now), count_max))
    if len(rest) < count_max:
        return (first, *rest), True
    until = now
    while not (newest := tuple(within(Instant(until - count_max * _MINUTE), until))):
        until = Instant(until - count_max * _MINUTE)
    return newest, False
