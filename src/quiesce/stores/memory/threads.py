"""Threads, their queues, continuations and standing policies in memory."""

from __future__ import annotations

from quiesce.domain.continuations import Continuation, Scope, StandingPolicy
from quiesce.domain.errors import invariant
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.threads import Thread
from quiesce.stores.memory.runs import Locks
from quiesce.stores.memory.state import State


class MemoryThreads:
    """Implements `ports.threads.Threads`."""

    def __init__(self, state: State, locks: Locks) -> None:
        self._threads = state.threads
        self._queues = state.queues
        self._locks = locks

    def insert(self, thread: Thread) -> None:
        """See the port."""
        if thread.id not in self._threads:
            self._locks.threads.add(thread.id)
            self._threads.put(thread.id, thread)

    def get(self, thread_id: ThreadId) -> Thread | None:
        """See the port."""
        return self._threads.get(thread_id)

    def lock(self, thread_id: ThreadId) -> Thread | None:
        """See the port."""
        thread = self.get(thread_id)
        if thread is not None:
            self._locks.lock_thread(thread_id)
        return thread

    def save(self, thread: Thread) -> None:
        """See the port."""
        invariant(thread.id in self._locks.threads, "a thread is locked before it is saved")
        invariant(thread.queued >= 0, "a queue has no fewer runs than none")
        self._threads.put(thread.id, thread)

    def enqueue(self, thread_id: ThreadId, run_id: RunId, number: int) -> None:
        """See the port."""
        invariant(thread_id in self._locks.threads, "a thread is locked before its queue changes")
        queue = self._queues.of(thread_id)
        invariant(number not in queue and run_id not in list(queue), "a run is queued once")
        queue.put(number, run_id)

    def dequeue(self, thread_id: ThreadId, run_id: RunId) -> bool:
        """See the port."""
        invariant(thread_id in self._locks.threads, "a thread is locked before its queue changes")
        queue = self._queues.of(thread_id)
        numbers = [number for number, queued in queue.as_dict().items() if queued == run_id]
        for number in numbers:
            queue.drop(number)
        return bool(numbers)

    def queue(self, thread_id: ThreadId, *, limit: int) -> list[RunId]:
        """See the port."""
        return [run_id for _, run_id in sorted(self._queues.of(thread_id).as_dict().items())][:limit]


class MemoryContinuations:
    """Implements `ports.threads.Continuations`."""

    def __init__(self, state: State) -> None:
        self._continuations = state.continuations
        self._policies = state.standing_policies

    def add(self, continuation: Continuation) -> None:
        """See the port."""
        invariant(continuation.run_id not in self._continuations, "a run takes its turn once")
        used = any(c.receipt_id == continuation.receipt_id for c in self._continuations)
        invariant(not used, "a boundary is built on once")
        self._continuations.put(continuation.run_id, continuation)

    def of_run(self, run_id: RunId) -> Continuation | None:
        """See the port."""
        return self._continuations.get(run_id)

    def of_thread(self, thread_id: ThreadId) -> list[Continuation]:
        """See the port."""
        return [c for c in self._continuations if c.thread_id == thread_id]

    def declare(self, policy: StandingPolicy) -> None:
        """See the port."""
        declared = self._policies.of((policy.tenant, policy.scope, policy.name))
        invariant(policy.number not in declared, "a declaration has a number of its own")
        declared.put(policy.number, policy)

    def standing(self, tenant: str, scope: Scope, name: str) -> StandingPolicy | None:
        """See the port."""
        declared = self._policies.of((tenant, scope, name)).as_dict()
        return declared[max(declared)] if declared else None

    def declared(self, tenant: str) -> list[StandingPolicy]:
        """See the port."""
        names = sorted(
            (scope, name) for of, scope, name in self._policies.as_dict() if of == tenant and scope is not Scope.MESSAGE
        )
        found = [self.standing(tenant, scope, name) for scope, name in names]
        return [policy for policy in found if policy is not None]
