"""Threads, the runs that are queued in them, and the record of each continuation, inside one transaction.

Threads are locked before runs. A decision that continues a thread holds its lock: the head, the queue and the newest receipt
stand still meanwhile.
"""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.continuations import Continuation, Scope, StandingPolicy
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.threads import Thread


class Threads(Protocol):
    """Rows of threads and of their queues."""

    def insert(self, thread: Thread) -> None:
        """Add a thread, or do nothing if the id exists."""

    def get(self, thread_id: ThreadId) -> Thread | None:
        """Return a thread without locking it."""

    def lock(self, thread_id: ThreadId) -> Thread | None:
        """Return a thread, locked until the end of the transaction. Threads are locked before runs."""

    def save(self, thread: Thread) -> None:
        """Store all fields of a locked thread."""

    def enqueue(self, thread_id: ThreadId, run_id: RunId, number: int) -> None:
        """Add a run to the queue of a locked thread."""

    def dequeue(self, thread_id: ThreadId, run_id: RunId) -> bool:
        """Take a run out of the queue of a locked thread. False if it is not in it."""

    def queue(self, thread_id: ThreadId, *, limit: int) -> list[RunId]:
        """Return the first runs of the queue, in the order of their numbers. Not locked."""


class Continuations(Protocol):
    """Continuation records and standing policies. Rows are added and never changed."""

    def add(self, continuation: Continuation) -> None:
        """Add a record. A second of its run, or of its receipt, is an error."""

    def of_run(self, run_id: RunId) -> Continuation | None:
        """Return the record of a run's turn; None for the first run of a thread, and for one that had no turn yet."""

    def of_thread(self, thread_id: ThreadId) -> list[Continuation]:
        """Return all records of a thread, oldest first."""

    def declare(self, policy: StandingPolicy) -> None:
        """Add a declaration. A second of its name with its number is an error."""

    def standing(self, tenant: str, scope: Scope, name: str) -> StandingPolicy | None:
        """Return the newest declaration for this name."""

    def declared(self, tenant: str) -> list[StandingPolicy]:
        """Return the newest declaration for each name of a tenant, ordered by scope and name. Not those of messages."""
