"""A schedule whose first planned time is chosen, past ones too: as if no process had run since."""

from __future__ import annotations

from quiesce.domain.instant import Instant
from quiesce.domain.schedules import Definition, Schedule, ScheduleId, ScheduleStatus
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.schedules import stage_timer_tx


def plant_tx(tx: Transaction, env: Environment, definition: Definition, next_at: Instant | None) -> Schedule:
    """Store the schedule `planted` with its timer."""
    schedule = Schedule(
        id=ScheduleId("planted"),
        tenant="local",
        name="planted",
        subject="ada",
        definition=definition,
        revision=0,
        status=ScheduleStatus.ACTIVE,
        next_at=next_at,
        created_at=tx.now,
        changed_at=tx.now,
    )
    assert tx.schedules.insert(schedule)
    stage_timer_tx(tx, env, schedule)
    return schedule
