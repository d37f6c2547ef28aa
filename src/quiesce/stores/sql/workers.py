"""Workers and their leases over named queries."""

from __future__ import annotations

from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.workers import Renewal, Worker
from quiesce.stores.sql.queries import Queries, Row


class SqlWorkers:
    """Implements `ports.workers.Workers`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def insert(self, worker: Worker) -> None:
        """See the port."""
        self._queries.run(
            "insert_worker",
            id=worker.id,
            name=worker.name,
            started_at=worker.started_at,
            lease_expires_at=worker.lease_expires_at,
            is_draining=worker.is_draining,
        )

    def get(self, worker_id: WorkerId) -> Worker | None:
        """See the port."""
        row = self._queries.one("get_worker", id=worker_id)
        return None if row is None else _worker_of(row)

    def renew(self, worker_id: WorkerId, *, expires_at: Instant) -> Renewal:
        """See the port."""
        renewed = self._queries.run("renew_worker", id=worker_id, expires_at=expires_at)
        return Renewal.RENEWED if renewed else Renewal.LOST

    def drain(self, worker_id: WorkerId) -> None:
        """See the port."""
        self._queries.run("drain_worker", id=worker_id)

    def expired(self, *, now: Instant, limit: int) -> list[Worker]:
        """See the port."""
        return [_worker_of(row) for row in self._queries.many("expired_workers", now=now, limit=limit)]

    def remove(self, worker_id: WorkerId) -> None:
        """See the port."""
        self._queries.run("remove_worker", id=worker_id)


def _worker_of(row: Row) -> Worker:
    id_, name, started_at, lease_expires_at, is_draining = row
    return Worker(id=id_, name=name, started_at=started_at, lease_expires_at=lease_expires_at, is_draining=bool(is_draining))
