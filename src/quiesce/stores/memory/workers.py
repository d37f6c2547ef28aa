"""Workers in memory."""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.errors import invariant
from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.workers import Renewal, Worker
from quiesce.stores.memory.state import State


class MemoryWorkers:
    """Implements `ports.workers.Workers`."""

    def __init__(self, state: State) -> None:
        self._workers = state.workers

    def insert(self, worker: Worker) -> None:
        """See the port."""
        invariant(worker.id not in self._workers, "a worker id is never reused")
        self._workers.put(worker.id, worker)

    def get(self, worker_id: WorkerId) -> Worker | None:
        """See the port."""
        return self._workers.get(worker_id)

    def renew(self, worker_id: WorkerId, *, expires_at: Instant) -> Renewal:
        """See the port."""
        worker = self.get(worker_id)
        if worker is None:
            return Renewal.LOST
        self._workers.put(worker_id, replace(worker, lease_expires_at=max(worker.lease_expires_at, expires_at)))
        return Renewal.RENEWED

    def drain(self, worker_id: WorkerId) -> None:
        """See the port."""
        worker = self.get(worker_id)
        if worker is not None:
            self._workers.put(worker_id, replace(worker, is_draining=True))

    def expired(self, *, now: Instant, limit: int) -> list[Worker]:
        """See the port."""
        found = (worker for worker in self._workers if not worker.is_live(now))
        return sorted(found, key=lambda w: (w.lease_expires_at, w.id))[:limit]

    def remove(self, worker_id: WorkerId) -> None:
        """See the port."""
        self._workers.drop(worker_id)
