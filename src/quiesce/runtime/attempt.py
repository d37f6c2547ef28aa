"""What the parts of one attempt share: its journal, what is in flight, what its branches wait for.

An operation in flight is a task of its own, apart from the agent's code that awaits it: when the agent is interrupted the
operation still gets its time, and whoever drains the attempt stores what it answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import FenceLost, Stopped
from quiesce.domain.evidence import Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import Position
from quiesce.domain.instant import Instant
from quiesce.domain.operations import Operation
from quiesce.domain.runs import Run, Wait, WaitKind
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import is_over
from quiesce.runtime.environment import Environment
from quiesce.runtime.journal import Journal
from quiesce.runtime.registry import Agent
from quiesce.runtime.transacting import persist

T = TypeVar("T")


@dataclass(slots=True)
class InFlight:
    """One operation under way. `can_interrupt`: cancelling the task reaches the code (a thread cannot be reached)."""

    operation: Operation
    task: asyncio.Task[None]
    can_interrupt: bool


class Attempt:
    """The shared state of one attempt."""

    def __init__(
        self,
        env: Environment,
        run: Run,
        journal: Journal,
        *,
        look_again: Callable[[], None],
        know: Callable[[Agent], Agent],
    ) -> None:
        self.env = env
        self.look_again = look_again
        """Has whoever advances the attempt read the run's row again."""
        self.know = know
        """Registers an agent with this process, so that its runs can be advanced here."""
        self.run = run
        self.journal = journal
        self.in_flight: dict[Position, InFlight] = {}
        self.waits: dict[Position, Wait] = {}
        self.activity = 0
        self.changed = asyncio.Event()
        self.is_stopping = False
        """The attempt ends: results that come now are evidence, not progress."""
        self.is_over = False
        """The attempt has ended: results that come now are stored beside the journal."""
        self.may_go_on = asyncio.Event()
        """Cleared while the run is being parked: what has come about meanwhile is for the next attempt to go on from."""
        self.may_go_on.set()
        self._at_work = 0

    @property
    def only_waits(self) -> bool:
        """Whether every operation that the agent's code is in waits for something, and there is one."""
        return bool(self.waits) and not self.in_flight and not self._at_work

    async def carry_out(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Do what the agent's code asks for: the run does not park under it until it waits for something itself.

        Else it would store a question, or take an answer, and nobody would wait for what comes of that. So what begins while
        the run is being parked is left to the next attempt: `work` is not even made then.
        """
        await self.may_go_on.wait()
        self._at_work += 1
        self.stir()
        try:
            return await work()
        finally:
            self._at_work -= 1
            self.stir()

    def stir(self) -> None:
        """Note that something moved."""
        self.activity += 1
        self.changed.set()

    def start(self, operation: Operation, work: Coroutine[object, object, None], *, can_interrupt: bool) -> asyncio.Task[None]:
        """Run an operation's work as a task of its own and keep it in flight until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=f"{operation.kind} {operation.name} {operation.key}")
        self.in_flight[operation.position] = InFlight(operation, task, can_interrupt)
        self.stir()
        task.add_done_callback(lambda done: self._landed(operation.position, done))
        return task

    def has_answered(self, position: Position) -> None:
        """Note that an operation's answer is here: from now on nothing interrupts the storing of it."""
        if (flight := self.in_flight.get(position)) is not None:
            flight.can_interrupt = False

    async def join(self, position: Position, task: asyncio.Task[None]) -> None:
        """Wait for work in flight. If the waiting code is interrupted, work that can be is too; the drain collects it.

        Once: what was interrupted before (by the drain, say) may be cleaning up, and a second time would cut that short.
        Work on a thread goes on whatever its task is told, so the task stays with it: somebody must be there for its answer.
        """
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            flight = self.in_flight.get(position)
            if flight is not None and flight.can_interrupt and not task.cancelling():
                task.cancel()
            raise

    def _landed(self, position: Position, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # raised where the work is awaited; if nobody is left there, nobody is to be alarmed
        self.in_flight.pop(position, None)
        self.stir()

    async def wait_until_over(self, wait: Wait) -> None:
        """Return once what is waited for has come about, judged by the store; the run may park meanwhile.

        A parked run never returns from here: its next attempt comes here again.
        """
        topic = wait.subject if wait.kind is WaitKind.CHILD else self.run.id
        bell = self.env.store.notifier.bell(run_topic(topic))
        self.waits[wait.position] = wait
        self._at_work -= 1
        self.stir()
        try:
            while not await persist(self.env, lambda tx: is_over(tx, self.run.id, wait), read=True):
                await bell.wait(self._wait_ms(wait))
                if self.is_over:
                    raise asyncio.CancelledError  # parked: the next attempt comes here again
            await self.may_go_on.wait()
        finally:
            bell.close()
            self.waits.pop(wait.position, None)
            self._at_work += 1
            self.stir()

    def _wait_ms(self, wait: Wait) -> float:
        poll_ms = float(self.env.settings.poll_ms)
        if wait.due_at is None:
            return poll_ms
        # Due by this process's clock and not by the store's, by as much: the two disagree, and the store's counts.
        return min(poll_ms, max(1.0, abs(wait.due_at - self.env.clock.now()) / 1000))

    async def refused(self) -> NoReturn:
        """The run is no longer ours to extend: have it looked at why, and end here either way."""
        self.look_again()
        while not self.journal.is_closed:
            await self.env.clock.sleep(1)
        raise Stopped if self.journal.is_draining else FenceLost

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Read from the store, once it answers."""
        return await persist(self.env, fn, read=True)

    async def store_now(self) -> Instant:
        """Return the present instant by the store's clock, by which whatever is due is judged (C69)."""
        return await self.read(lambda tx: tx.now)

    async def testify(self, operation: Operation, kind: EvidenceKind, body: object, verdict: Verdict = Verdict.HAPPENED) -> None:
        """Store what is known of an effect beside the journal: it needs no fence, because it happened (G-34)."""
        evidence = self.evidence_of(operation, kind, body, verdict, self.env.clock.now())
        await self.env.store.transact(lambda tx: tx.evidence.add(evidence))

    def evidence_of(self, operation: Operation, kind: EvidenceKind, body: object, verdict: Verdict, at: Instant) -> Evidence:
        """Make a record that this attempt bears witness of."""
        return Evidence(
            run_id=self.run.id,
            position=operation.position,
            number=0,
            kind=kind,
            verdict=verdict,
            actor=Actor(kind=ActorKind.RUN, name=self.run.id),
            body=canonical(body),
            at=at,
        )
