"""What people ask of schedules: define, pause, resume, delete, and look at what they fired.

How far an occurrence is is read from its run each time and stored nowhere: planned, then queued, then what the run itself says
(C73). Each call is checked against the caller's tenant; another tenant's schedule does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from quiesce.domain.canonical import parse
from quiesce.domain.errors import NotFound, required
from quiesce.domain.instant import Instant, to_iso
from quiesce.domain.schedules import Definition, Fire, Schedule, ScheduleStatus, local_iso, shown_status
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.schedules import create_tx, delete_tx, pause_tx, resume_tx
from quiesce.runtime.service import Caller
from quiesce.runtime.transacting import persist


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule, the instants that it is planned for next, and what became of those before.

    `tally`: occurrences that `fired` or were `refused`, planned instants that were `missed`, and runs that `expired` before any
    worker began them: what an alert watches.
    """

    schedule: Schedule
    next: tuple[Instant, ...]
    tally: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """Return the form that CLI and HTTP show; planned instants as the schedule's own wall clock shows them."""
        schedule, definition = self.schedule, self.schedule.definition
        timing = definition.timing
        return {
            "schedule_id": schedule.id,
            "name": schedule.name,
            "status": str(schedule.status),
            "revision": schedule.revision,
            "subject": schedule.subject,
            "agent": definition.agent,
            "input": parse(definition.input),
            "bindings": parse(definition.bindings),
            "thread_id": definition.thread_id,
            "budget": dict(definition.budget),
            "timeout_ms": definition.timeout_ms,
            "cron": timing.cron,
            "timezone": timing.timezone,
            "at": None if timing.at is None else to_iso(timing.at),
            "missed": str(definition.missed),
            "catchup_max": definition.catchup_max,
            "next": [local_iso(instant, timing.timezone) for instant in self.next],
            "tally": dict(self.tally),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FireView:
    """An occurrence: the receipt of its fire, and how far it is now. `fire` None: planned, and nothing decided yet."""

    planned: Instant
    timezone: str
    status: str
    fire: Fire | None = None

    def to_json(self) -> dict[str, object]:
        """Return the form that CLI and HTTP show."""
        shown: dict[str, object] = {"due": local_iso(self.planned, self.timezone), "status": self.status}
        if self.fire is None:
            return shown
        local = partial(local_iso, timezone=self.timezone)
        return shown | {
            "outcome": str(self.fire.status),
            "fired_at": to_iso(self.fire.fired_at),
            "late_ms": self.fire.late_ms,
            "stands_for": [local(instant) for instant in self.fire.stands_for],
            "coalesced": [local(instant) for instant in self.fire.coalesced],
            "count": self.fire.count,
            "is_exact": self.fire.is_exact,
            "run_id": self.fire.run_id,
            "reason": self.fire.reason,
        }


class ScheduleService:
    """Questions and verbs about schedules, for one caller."""

    def __init__(self, env: Environment, caller: Caller | None = None) -> None:
        self._env = env
        self._caller = caller or Caller()

    async def define(self, name: str, definition: Definition) -> tuple[ScheduleView, bool]:
        """Store a schedule, or change the one of this name; return it, and whether anything changed. See `create_tx`."""
        tenant, subject = self._caller.tenant, self._caller.subject

        def define(tx: Transaction) -> tuple[ScheduleView, bool]:
            schedule, is_changed = create_tx(tx, self._env, tenant=tenant, subject=subject, name=name, definition=definition)
            return _view(tx, schedule, 1), is_changed

        return await persist(self._env, define)

    async def pause(self, name: str) -> ScheduleView:
        """Stop it from firing until it is resumed; see `pause_tx`."""
        return await persist(self._env, lambda tx: _view(tx, pause_tx(tx, self._env, tenant=self._caller.tenant, name=name), 1))

    async def resume(self, name: str) -> ScheduleView:
        """Let it go on; see `resume_tx`."""
        return await persist(self._env, lambda tx: _view(tx, resume_tx(tx, self._env, tenant=self._caller.tenant, name=name), 1))

    async def delete(self, name: str) -> ScheduleView:
        """Delete it; see `delete_tx`. If the answer of its commit was lost, asking again says `NotFound`."""
        return await self._env.store.transact(
            lambda tx: _view(tx, delete_tx(tx, self._env, tenant=self._caller.tenant, name=name), 0)
        )

    async def show(self, name: str, *, upcoming: int = 3) -> ScheduleView:
        """Return a schedule. Raises `NotFound`."""
        return await self._env.store.read(lambda tx: _view(tx, self._find(tx, name), upcoming))

    async def page(self, *, after: str = "", limit: int = 50, upcoming: int = 1) -> list[ScheduleView]:
        """Return this tenant's schedules by name; page on with the last name as `after`."""
        tenant = self._caller.tenant
        return await self._env.store.read(
            lambda tx: [_view(tx, one, upcoming) for one in tx.schedules.page(tenant=tenant, after=after, limit=limit)]
        )

    async def fires(self, name: str, *, before: Instant | None = None, limit: int = 20) -> list[FireView]:
        """Return a schedule's occurrences, the latest first: the one that is planned next, then those decided.

        Page on with the last planned instant as `before`. Raises `NotFound`.
        """

        def read(tx: Transaction) -> list[FireView]:
            schedule = self._find(tx, name)
            zone = schedule.definition.timing.timezone
            found = [_fire_view(tx, fire, zone) for fire in tx.schedules.fires(schedule.id, before=before, limit=limit)]
            if before is None and schedule.next_at is not None:
                found.insert(0, FireView(planned=schedule.next_at, timezone=zone, status="planned"))
            return found[:limit]

        return await self._env.store.read(read)

    def _find(self, tx: Transaction, name: str) -> Schedule:
        schedule = tx.schedules.by_name(self._caller.tenant, name)
        if schedule is None:
            raise NotFound("schedule", name, "`quiesce schedules list` shows what there is")
        return schedule


def _view(tx: Transaction, schedule: Schedule, upcoming: int) -> ScheduleView:
    following: tuple[Instant, ...] = ()
    if schedule.status is ScheduleStatus.ACTIVE:
        first = required(schedule.next_at, "an active schedule waits for an instant")
        following = (first, *islice(schedule.definition.timing.after(first), max(0, upcoming - 1)))[:upcoming]
    return ScheduleView(schedule=schedule, next=following, tally=tx.schedules.tally(schedule.id, now=tx.now))


def _fire_view(tx: Transaction, fire: Fire, timezone: str) -> FireView:
    run = None if fire.run_id is None else tx.runs.get(fire.run_id)
    return FireView(planned=fire.planned, timezone=timezone, status=shown_status(fire, run, tx.now), fire=fire)
