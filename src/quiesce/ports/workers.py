"""Workers and their leases, inside one transaction."""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.workers import Renewal, Worker


class Workers(Protocol):
    """Rows of workers."""

    def insert(self, worker: Worker) -> None:
        """Add a worker that has just started."""

    def get(self, worker_id: WorkerId) -> Worker | None:
        """Return a worker, or None if it never was or has been removed."""

    def renew(self, worker_id: WorkerId, *, expires_at: Instant) -> Renewal:
        """Move the lease. `LOST` if the row is gone; an expired lease that nobody has removed may still be renewed.

        Never shortens a lease (C69).
        """

    def drain(self, worker_id: WorkerId) -> None:
        """Mark a worker as claiming nothing more."""

    def expired(self, *, now: Instant, limit: int) -> list[Worker]:
        """Return workers whose lease has run out, oldest expiry first."""

    def remove(self, worker_id: WorkerId) -> None:
        """Remove a worker: stopped, or expired and rescued from."""
