"""Threads and their queues over named queries."""

from __future__ import annotations

from quiesce.domain.errors import invariant
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.threads import Thread
from quiesce.stores.sql.queries import Queries, Row


class SqlThreads:
    """Implements `ports.threads.Threads`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._locked: set[ThreadId] = set()

    def insert(self, thread: Thread) -> None:
        """See the port. A row that this transaction has added counts as locked."""
        added = self._queries.run(
            "insert_thread",
            id=thread.id,
            tenant=thread.tenant,
            created_at=thread.created_at,
            runs=thread.runs,
            head_run_id=thread.head_run_id,
            queued=thread.queued,
        )
        if added:
            self._locked.add(thread.id)

    def get(self, thread_id: ThreadId) -> Thread | None:
        """See the port."""
        row = self._queries.one("get_thread", id=thread_id)
        return None if row is None else _thread_of(row)

    def lock(self, thread_id: ThreadId) -> Thread | None:
        """See the port."""
        row = self._queries.one("lock_thread", id=thread_id)
        if row is None:
            return None
        self._locked.add(thread_id)
        return _thread_of(row)

    def save(self, thread: Thread) -> None:
        """See the port."""
        invariant(thread.id in self._locked, "a thread is locked before it is saved")
        self._queries.run(
            "save_thread",
            id=thread.id,
            tenant=thread.tenant,
            runs=thread.runs,
            head_run_id=thread.head_run_id,
            queued=thread.queued,
        )

    def enqueue(self, thread_id: ThreadId, run_id: RunId, number: int) -> None:
        """See the port."""
        invariant(thread_id in self._locked, "a thread is locked before its queue changes")
        self._queries.run("enqueue_run", run_id=run_id, thread_id=thread_id, number=number)

    def dequeue(self, thread_id: ThreadId, run_id: RunId) -> bool:
        """See the port."""
        invariant(thread_id in self._locked, "a thread is locked before its queue changes")
        return self._queries.run("dequeue_run", run_id=run_id, thread_id=thread_id) == 1

    def queue(self, thread_id: ThreadId, *, limit: int) -> list[RunId]:
        """See the port."""
        return [row[0] for row in self._queries.many("queued_runs", thread_id=thread_id, limit=limit)]


def _thread_of(row: Row) -> Thread:
    id_, tenant, created_at, runs, head_run_id, queued = row
    return Thread(id=id_, tenant=tenant, created_at=created_at, runs=runs, head_run_id=head_run_id, queued=queued)
