"""A worker: claims runs, advances them, listens for what concerns them, and looks after what nobody looks after.

Leader-free: every worker sweeps (dead holders, overdue deadlines, unfinished settlements) in bounded batches, and each sweep
is idempotent. A doorbell makes it quick, the poll makes it sure. A draining worker claims nothing (C67), still obeys
cancels (C12), and hands back what it cannot finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field, replace
from functools import partial

from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.errors import BindingMismatch, QuiesceError, StoreError, required
from quiesce.domain.ids import RunId, WorkerId
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.workers import AttemptEnd, Worker
from quiesce.ports.notifier import WORK, worker_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import end_tx, overdue_tx
from quiesce.runtime.claims import claim_due_tx, claim_tx, next_due_tx, register_tx, release_tx, retire_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.execution import Execution
from quiesce.runtime.interactions import expire_tx
from quiesce.runtime.lease_keeper import LeaseKeeper
from quiesce.runtime.registry import Registry, check_bindings
from quiesce.runtime.settlement import settle_abandoned

log = logging.getLogger("quiesce.worker")


@dataclass(slots=True)
class Held:
    """A run under way here."""

    execution: Execution
    task: asyncio.Task[AttemptEnd | None]


@dataclass(slots=True)
class WorkerState:
    """What a worker has done, for people and tests."""

    claimed: int = 0
    ends: dict[AttemptEnd, int] = field(default_factory=dict)


class RunWorker:
    """Advances runs of the registered agents until closed."""

    def __init__(self, env: Environment, registry: Registry, *, name: str = "worker", keeps_lease_on_thread: bool = True) -> None:
        self._env = env
        self._registry = registry
        self._name = name
        self._on_thread = keeps_lease_on_thread
        self._held: dict[RunId, Held] = {}
        self._worker: Worker | None = None
        self._keeper: LeaseKeeper | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._is_draining = False
        self._has_doubts = False
        """Whether the store may hold a claim of this worker that it does not know of."""
        self._foreign: set[RunId] = set()
        """Runs that were claimable when it looked last, bound to something it does not offer: so many more it looks at."""
        self.state = WorkerState()

    @property
    def id(self) -> WorkerId:
        """The id of this worker's present lease."""
        return required(self._worker, "a worker is started before it is asked for its id").id

    async def start(self, *, claims: bool = True) -> None:
        """Register, keep the lease, and begin to sweep; with `claims`, also to claim whatever is due."""
        await self._register()
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(self._attend(claims=claims), name="attend"),
            loop.create_task(self._sweep(), name="sweep"),
        ]

    async def _register(self) -> None:
        worker_id = WorkerId(self._env.new_id())
        settings = self._env.settings
        self._worker = await self._env.store.transact(
            lambda tx: register_tx(tx, worker_id=worker_id, name=self._name, lease_ms=settings.lease_ms)
        )
        self._keeper = LeaseKeeper(self._env, worker_id, self._on_lease_lost)
        self._keeper.start(on_thread=self._on_thread)

    def _on_lease_lost(self) -> None:
        """Others have removed this worker: every run it held has been taken over, or will be."""
        log.warning("lease lost", extra={"action": "lease_lost", "worker_id": self.id})
        for held in self._held.values():
            held.execution.look_again()
        self._worker = None

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def take(self, run_id: RunId) -> asyncio.Task[AttemptEnd | None]:
        """Claim one run by id and begin to advance it. Raises what `claim_tx` raises."""
        worker = required(self._worker, "a worker claims only after it has started")
        wanted = await self._env.store.read(lambda tx: tx.runs.get(run_id))
        if wanted is not None:
            check_bindings(wanted, self._registry.get(wanted.agent))
        run = await self._env.store.transact(lambda tx: claim_tx(tx, run_id, worker))
        return self._begin(run)

    async def _claim_due(self) -> int:
        room = self._env.settings.concurrency - len(self._held)
        worker = self._worker
        if self._is_draining or room <= 0 or worker is None:
            return 0
        limit = min(room, self._env.limits.claim_batch_max)
        agents = self._registry.names
        limit = min(limit + len(self._foreign), self._env.limits.sweep_batch_max)
        left: set[RunId] = set()
        accepts = partial(self._accepts, left=left)
        runs = await self._env.store.transact(lambda tx: claim_due_tx(tx, worker, agents=agents, limit=limit, accepts=accepts))
        self._foreign = left  # what was claimable this time: runs that others have taken, or that ended, are forgotten
        for run in runs:
            self._begin(run)
        return len(runs)

    def _accepts(self, run: Run, *, left: set[RunId]) -> bool:
        try:
            check_bindings(run, self._registry.get(run.agent))
        except BindingMismatch as error:
            if run.id not in self._foreign:
                log.warning("run left to others", extra={"action": "run_left", "run_id": run.id, "code": error.code})
            left.add(run.id)
            return False
        return True

    def _begin(self, run: Run) -> asyncio.Task[AttemptEnd | None]:
        self._env.crash.reach("claim.after")
        self.state.claimed += 1
        execution = Execution(self._env, run, self._registry)
        task = asyncio.get_running_loop().create_task(self._advance(execution), name=f"attempt {run.id}")
        self._held[run.id] = Held(execution, task)
        return task

    async def _advance(self, execution: Execution) -> AttemptEnd | None:
        """Advance one run; a failure of the store ends the attempt here, and only here."""
        run = execution.run
        try:
            if run.attempt > self._env.limits.attempts_max and await self._is_given_up(run):
                return AttemptEnd.ENDED
            end = await execution.advance()
            self.state.ends[end] = self.state.ends.get(end, 0) + 1
            return end
        except QuiesceError as error:
            log.exception("attempt failed", extra={"action": "attempt_failed", "run_id": run.id, "code": error.code})
            await self._release_later(run)
            return None
        finally:
            if (held := self._held.get(run.id)) is not None and held.execution is execution:
                del self._held[run.id]
            self._env.store.notifier.ring(WORK)

    async def _is_given_up(self, run: Run) -> bool:
        """End a run whose every holder died: nobody should be the next (C47). Attempts that ended well do not count."""
        actor = Actor(kind=ActorKind.SERVICE, name=self._name)

        def end(tx: Transaction) -> bool:
            locked = tx.runs.lock(run.id)
            lost = sum(attempt.end is AttemptEnd.EXPIRED for attempt in tx.runs.attempts(run.id))
            if locked is None or lost < self._env.limits.attempts_max:
                return False
            if locked.is_active and locked.fence == run.fence:
                text = f"{lost} attempts ended with the loss of their process"
                end_tx(tx, self._env, replace(locked, worker_id=None), Reason.PROCESS_LOST, text, actor, 0)
            return True

        return await self._env.store.transact(end)

    async def _release_later(self, run: Run) -> None:
        """Hand back a run whose attempt failed here: held by a live worker that does not advance it, it would wait for ever."""
        await self._env.clock.sleep(self._env.settings.sweep_ms)
        try:
            await self._env.store.transact(lambda tx: release_tx(tx, run.id, run.fence, end=AttemptEnd.EXPIRED))
        except StoreError:
            self._has_doubts = True

    # -- listening and sweeping ----------------------------------------------------------------------------------------

    async def _attend(self, *, claims: bool) -> None:
        """Claim what is due and notice what happened to the runs held; on every ring, and on every poll."""
        while True:
            worker = self._worker
            bell = self._env.store.notifier.bell(WORK, worker_topic(worker.id if worker else ""))
            try:
                if worker is None:
                    await self._renew_identity()
                await self._notice()
                claimed = await self._claim_due() if claims else 0
                if not claimed:
                    await bell.wait(await self._idle_ms())
            except StoreError as error:
                self._has_doubts = True
                log.warning("store trouble", extra={"action": "store_trouble", "code": error.code})
                await self._env.clock.sleep(self._env.settings.poll_ms)
            finally:
                bell.close()

    async def _renew_identity(self) -> None:
        if self._keeper is not None:
            await self._keeper.close()
        await self._register()

    async def _idle_ms(self) -> float:
        """Return how long nothing is expected to fall due, at most one poll."""
        due_ms = await self._env.store.read(next_due_tx)
        poll_ms = float(self._env.settings.poll_ms)
        return poll_ms if due_ms is None else min(poll_ms, max(1.0, due_ms))

    async def _notice(self) -> None:
        """Read, in one go, which of the runs held here are settling or no longer ours, and tell their executions.

        After trouble with the store a claim may have been committed whose answer never came. Its run is handed back: held
        by a live worker that does not know of it, it would wait for ever.
        """
        worker, has_doubts = self._worker, self._has_doubts
        if worker is None or not (self._held or has_doubts):
            return
        mine = {run.id: run for run in await self._env.store.read(lambda tx: tx.runs.held_by(worker.id))}
        for run_id, held in list(self._held.items()):
            row = mine.get(run_id)
            if row is None or row.fence != held.execution.run.fence:
                held.execution.look_again()
        if has_doubts:
            for row in [row for row in mine.values() if row.status is RunStatus.RUNNING and row.id not in self._held]:
                await self._env.store.transact(partial(release_tx, run_id=row.id, fence=row.fence, end=AttemptEnd.EXPIRED))
            self._has_doubts = False

    async def _sweep(self) -> None:
        """Look after what nobody looks after, a bounded batch at a time."""
        limit = self._env.limits.sweep_batch_max
        while True:
            try:
                await self._env.store.transact(lambda tx: overdue_tx(tx, self._env, limit=limit))
                await self._env.store.transact(partial(expire_tx, limit=limit))
                await settle_abandoned(self._env, limit=limit)
                spared = self._worker.id if self._worker else None
                await self._env.store.transact(partial(retire_tx, limit=limit, spared=spared))
            except StoreError as error:
                log.warning("sweep put off", extra={"action": "sweep_put_off", "code": error.code})
            await self._env.clock.sleep(self._env.settings.sweep_ms)

    # -- ending --------------------------------------------------------------------------------------------------------

    async def close(self, *, end_runs: bool = False) -> None:
        """Drain: claim nothing more, let operations in flight end, hand the rest back, give the lease up. Idempotent.

        With `end_runs` what would be handed back is ended instead, as failed by `worker_shutdown`: no successor is to come.
        Runs that wait, and hold no worker, are left as they are.
        """
        if self._worker is None and not self._loops:
            return
        self._is_draining = True
        worker = self._worker
        if worker is not None:
            with contextlib.suppress(StoreError):
                await self._env.store.transact(lambda tx: tx.workers.drain(worker.id))
        while self._held:  # a claim that was on its way may still have begun an attempt
            for held in self._held.values():
                held.execution.leave(end_run=end_runs)
            await asyncio.wait({held.task for held in self._held.values()})
        for task in self._loops:
            task.cancel()
        await asyncio.wait(self._loops)
        self._loops = []
        if self._keeper is not None:
            await self._keeper.close()
        if worker is not None:
            with contextlib.suppress(StoreError):
                await self._env.store.transact(lambda tx: tx.workers.remove(worker.id))
        self._worker = None
