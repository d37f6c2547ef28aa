"""Schedules and their fires over named queries. A fire is written once; the schema itself refuses to change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quiesce.domain.errors import invariant
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant
from quiesce.domain.schedules import (
    Definition,
    Fire,
    FireStatus,
    Missed,
    Schedule,
    ScheduleId,
    ScheduleStatus,
    Timing,
)
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Queries, Row


class SqlSchedules:
    """Implements `ports.schedules.Schedules`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._locked: set[ScheduleId] = set()

    def insert(self, schedule: Schedule) -> bool:
        """See the port. Nobody else can see the row yet, so it counts as locked."""
        added = self._queries.run(
            "insert_schedule",
            id=schedule.id,
            tenant=schedule.tenant,
            name=schedule.name,
            created_at=schedule.created_at,
            **_changing(schedule),
        )
        if added:
            self._locked.add(schedule.id)
        return bool(added)

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        """See the port."""
        return _found(self._queries.one("get_schedule", id=schedule_id))

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """See the port."""
        found = _found(self._queries.one("lock_schedule", id=schedule_id))
        if found is not None:
            self._locked.add(schedule_id)
        return found

    def by_name(self, tenant: str, name: str) -> Schedule | None:
        """See the port."""
        return _found(self._queries.one("schedule_by_name", tenant=tenant, name=name))

    def save(self, schedule: Schedule) -> None:
        """See the port."""
        invariant(schedule.id in self._locked, "a schedule is locked before it is saved")
        self._queries.run("save_schedule", id=schedule.id, **_changing(schedule))

    def page(self, *, tenant: str, after: str, limit: int) -> list[Schedule]:
        """See the port."""
        return [_schedule_of(row) for row in self._queries.many("page_of_schedules", tenant=tenant, after=after, limit=limit)]

    def count(self, tenant: str) -> int:
        """See the port."""
        return sum(count for (count,) in self._queries.many("count_schedules", tenant=tenant))

    def add_fires(self, fires: Sequence[Fire]) -> None:
        """See the port."""
        invariant(self._locked.issuperset(fire.schedule_id for fire in fires), "a schedule is locked before it fires")
        rows = [
            {
                "schedule_id": fire.schedule_id,
                "planned": fire.planned,
                "status": fire.status.value,
                "fired_at": fire.fired_at,
                "stands_for": encode(fire.stands_for),
                "count": fire.count,
                "is_exact": fire.is_exact,
                "run_id": fire.run_id,
                "reason": encode(fire.reason),
            }
            for fire in fires
        ]
        self._queries.run_many("add_fires", rows)

    def fire(self, schedule_id: ScheduleId, planned: Instant) -> Fire | None:
        """See the port."""
        row = self._queries.one("get_fire", schedule_id=schedule_id, planned=planned)
        return None if row is None else _fire_of(row)

    def fires(self, schedule_id: ScheduleId, *, before: Instant | None, limit: int) -> list[Fire]:
        """See the port."""
        rows = self._queries.many("page_of_fires", schedule_id=schedule_id, before=before, limit=limit)
        return [_fire_of(row) for row in rows]

    def tally(self, schedule_id: ScheduleId, *, now: Instant) -> dict[str, int]:
        """See the port."""
        rows = self._queries.many("tally_of_fires", schedule_id=schedule_id, now=now)
        return {what: int(count) for what, count in rows if count}


def _changing(schedule: Schedule) -> dict[str, object]:
    """Return the columns that may change."""
    return {
        "subject": schedule.subject,
        "definition": encode(_definition_json(schedule.definition)),
        "revision": schedule.revision,
        "status": schedule.status.value,
        "next_at": schedule.next_at,
        "changed_at": schedule.changed_at,
    }


def _definition_json(definition: Definition) -> dict[str, object]:
    timing = definition.timing
    return {
        "agent": definition.agent,
        "input": definition.input.decode(),
        "bindings": definition.bindings.decode(),
        "cron": timing.cron,
        "timezone": timing.timezone,
        "at": timing.at,
        "thread_id": definition.thread_id,
        "budget": dict(definition.budget),
        "timeout_ms": definition.timeout_ms,
        "missed": definition.missed.value,
        "catchup_max": definition.catchup_max,
    }


def _definition_of(value: dict[str, Any]) -> Definition:
    return Definition(
        agent=value["agent"],
        input=value["input"].encode(),
        bindings=value["bindings"].encode(),
        timing=Timing(cron=value["cron"], timezone=value["timezone"], at=value["at"]),
        thread_id=value["thread_id"],
        budget=value["budget"],
        timeout_ms=value["timeout_ms"],
        missed=Missed(value["missed"]),
        catchup_max=value["catchup_max"],
    )


def _found(row: Row | None) -> Schedule | None:
    return None if row is None else _schedule_of(row)


def _schedule_of(row: Row) -> Schedule:
    id_, tenant, name, created_at, subject, definition, revision, status, next_at, changed_at = row
    return Schedule(
        id=id_,
        tenant=tenant,
        name=name,
        subject=subject,
        definition=_definition_of(decode(definition)),
        revision=revision,
        status=ScheduleStatus(status),
        next_at=next_at,
        created_at=created_at,
        changed_at=changed_at,
    )


def _fire_of(row: Row) -> Fire:
    schedule_id, planned, status, fired_at, stands_for, count, is_exact, run_id, reason = row
    return Fire(
        schedule_id=schedule_id,
        planned=planned,
        status=FireStatus(status),
        fired_at=fired_at,
        stands_for=tuple(Instant(instant) for instant in decode(stands_for)),
        count=count,
        is_exact=bool(is_exact),
        run_id=None if run_id is None else RunId(run_id),
        reason=decode(reason),
    )
