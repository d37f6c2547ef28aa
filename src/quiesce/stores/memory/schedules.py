"""Schedules in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiesce.domain.errors import invariant, required
from quiesce.domain.instant import Instant
from quiesce.domain.schedules import Fire, FireStatus, Schedule, ScheduleId, ScheduleStatus
from quiesce.stores.memory.state import State


class MemorySchedules:
    """Implements `ports.schedules.Schedules`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._locked: set[ScheduleId] = set()

    def insert(self, schedule: Schedule) -> bool:
        """See the port. Nobody else can see the row yet, so it counts as locked."""
        invariant(schedule.id not in self._state.schedules, "a schedule is inserted once")
        if self.by_name(schedule.tenant, schedule.name) is not None:
            return False
        self._locked.add(schedule.id)
        self._state.schedules.put(schedule.id, schedule)
        return True

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        """See the port."""
        return self._state.schedules.get(schedule_id)

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """See the port."""
        found = self.get(schedule_id)
        if found is not None:
            self._locked.add(schedule_id)
        return found

    def by_name(self, tenant: str, name: str) -> Schedule | None:
        """See the port."""
        return next((schedule for schedule in self._live(tenant) if schedule.name == name), None)

    def save(self, schedule: Schedule) -> None:
        """See the port."""
        invariant(schedule.id in self._locked, "a schedule is locked before it is saved")
        stored = required(self.get(schedule.id), "a schedule that is locked is there")
        sealed = replace(schedule, tenant=stored.tenant, name=stored.name, created_at=stored.created_at)
        self._state.schedules.put(schedule.id, sealed)

    def page(self, *, tenant: str, after: str, limit: int) -> list[Schedule]:
        """See the port."""
        found = sorted(self._live(tenant), key=lambda schedule: schedule.name)
        return [schedule for schedule in found if schedule.name > after][:limit]

    def count(self, tenant: str) -> int:
        """See the port."""
        return len(self._live(tenant))

    def add_fires(self, fires: Sequence[Fire]) -> None:
        """See the port."""
        for fire in fires:
            invariant(fire.schedule_id in self._locked, "a schedule is locked before it fires")
            table = self._state.fires.of(fire.schedule_id)
            invariant(fire.planned not in table, "an occurrence fires once")
            table.put(fire.planned, fire)

    def fire(self, schedule_id: ScheduleId, planned: Instant) -> Fire | None:
        """See the port."""
        return self._state.fires.of(schedule_id).get(planned)

    def fires(self, schedule_id: ScheduleId, *, before: Instant | None, limit: int) -> list[Fire]:
        """See the port."""
        found = [fire for fire in self._state.fires.of(schedule_id) if before is None or fire.planned < before]
        return sorted(found, key=lambda fire: fire.planned, reverse=True)[:limit]

    def tally(self, schedule_id: ScheduleId, *, now: Instant) -> dict[str, int]:
        """See the port."""
        counts: dict[str, int] = {}
        for fire in self._state.fires.of(schedule_id):
            is_missed = fire.status is FireStatus.MISSED
            counts[fire.status.value] = counts.get(fire.status.value, 0) + (fire.count if is_missed else 1)
            if self._has_expired(fire, now):
                counts["expired"] = counts.get("expired", 0) + 1
        return counts

    def _has_expired(self, fire: Fire, now: Instant) -> bool:
        run = None if fire.run_id is None else self._state.runs.get(fire.run_id)
        if run is None or run.deadline_at is None or run.attempt:
            return False
        return run.deadline_at <= (now if run.ended_at is None else run.ended_at)

    def _live(self, tenant: str) -> list[Schedule]:
        return [s for s in self._state.schedules if s.tenant == tenant and s.status is not ScheduleStatus.DELETED]
