"""Schedules and the receipts of their fires, inside one transaction. Thin: decisions are made above.

Who writes to a schedule or adds one of its fires has locked it; so firing, pausing and changing have one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quiesce.domain.instant import Instant
from quiesce.domain.schedules import Fire, Schedule, ScheduleId


class Schedules(Protocol):
    """Rows of schedules and of their fires."""

    def insert(self, schedule: Schedule) -> bool:
        """Add a schedule; False, and nothing added, if its tenant has one of this name that is not deleted.

        Another transaction that adds one of this name is waited for.
        """

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        """Return a schedule without locking it."""

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """Return a schedule, locked until the end of the transaction."""

    def by_name(self, tenant: str, name: str) -> Schedule | None:
        """Return a tenant's schedule of this name that is not deleted, without locking it."""

    def save(self, schedule: Schedule) -> None:
        """Store a locked schedule. Id, tenant, name and creation are never written again."""

    def page(self, *, tenant: str, after: str, limit: int) -> list[Schedule]:
        """Return schedules that are not deleted, by name, from behind the name `after`."""

    def count(self, tenant: str) -> int:
        """Return how many schedules of a tenant are not deleted."""

    def add_fires(self, fires: Sequence[Fire]) -> None:
        """Add receipts of fires. A second of one schedule and planned instant is `InvariantBroken`."""

    def fire(self, schedule_id: ScheduleId, planned: Instant) -> Fire | None:
        """Return the receipt of an occurrence."""

    def fires(self, schedule_id: ScheduleId, *, before: Instant | None, limit: int) -> list[Fire]:
        """Return receipts of a schedule's fires, the latest planned first, planned before `before`."""

    def tally(self, schedule_id: ScheduleId, *, now: Instant) -> dict[str, int]:
        """Return how many fires there are by status, planned instants that were missed, and runs that nobody ever began.

        Keys: `fired` and `refused` count receipts; `missed` the planned instants that missed receipts stand for; `expired`
        the runs of fires whose deadline has passed although no worker ever took them. Those without any are left out.
        """
