"""One attempt, from claim to its end: completed, failed, cancelled, parked, handed back, or lost.

The agent's code runs in a task of its own; this module watches it, the run's row (when somebody says that it changed), the
deadline, and whether every branch waits. It alone decides how the attempt ends, and every end is one of the transactions
of `claims` and `settlement`, under this attempt's fence. Code that will not stop is left behind, never waited for without
a bound: it holds a stale fence and can write nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from quiesce.domain.boundary import Actor, ActorKind, CancelMode, Reason
from quiesce.domain.canonical import parse
from quiesce.domain.errors import (
    FenceLost,
)
from quiesce.domain.instant import elapsed_ms
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.streams import status_draft
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.workers import AttemptEnd
from quiesce.domain.writes import RunWrite
from quiesce.ports.store import Transaction
from quiesce.runtime import scopes
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.calls import testify_late
from quiesce.runtime.cancel import end_tx, plain_occurrence
from quiesce.runtime.claims import park_tx, release_tx
from quiesce.runtime.codec import decode_arguments
from quiesce.runtime.context import Run as RunContext
from quiesce.runtime.endings import Settling, last_write, read_settling, reason_of
from quiesce.runtime.environment import Environment
from quiesce.runtime.journal import Journal
from quiesce.runtime.past import read_stored
from quiesce.runtime.registry import Agent, Registry
from quiesce.runtime.settlement import Cleanup, conclude, end_now_tx, freeze_tx
from quiesce.runtime.stopping import interrupt
from quiesce.runtime.transacting import persist


class Execution:
    """Advances one claimed run until the attempt ends."""

    def __init__(self, env: Environment, run: Run, registry: Registry) -> None:
        self._env = env
        self._registry = registry
        self._agent = registry.get(run.agent)
        self._attention = asyncio.Event()
        self._must_look = False
        self._must_leave = False
        self._must_end = False
        self.run = run

    # -- what others may tell it (any time, also before it has begun) --------------------------------------------------

    def look_again(self) -> None:
        """The run's row may have changed: read it."""
        self._must_look = True
        self._attention.set()

    def leave(self, *, end_run: bool = False) -> None:
        """The worker stops: finish what is in flight, begin nothing, hand the run back, or end it: nobody is to take it over."""
        self._must_leave = True
        self._must_end = end_run
        self._attention.set()

    # -- the attempt ---------------------------------------------------------------------------------------------------

    async def advance(self) -> AttemptEnd:
        """Run the agent until the attempt ends; return how. Raises only what the store raises for good."""
        run, env = self.run, self._env
        stored = await persist(env, lambda tx: read_stored(tx, run, env.limits.events_page_max), read=True)
        journal = Journal(env, run, stored, self.look_again)
        attempt = Attempt(env, run, journal, look_again=self.look_again, know=self._registry.add)
        if run.attempt > 1 and stored.operations:
            journal.gate.note(status_draft("resumed", attempt=run.attempt))
        agent = asyncio.get_running_loop().create_task(self._call_agent(attempt), name=f"agent {run.agent} {run.id}")
        try:
            end = await self._watch(attempt, agent)
        finally:
            attempt.is_over = attempt.is_stopping = True
            journal.rule(drains=False)
            attempt.may_go_on.set()
            await _abandon(agent)
        for operation in journal.unstored():  # held back for a drain that somebody else has closed, or beside a release
            await testify_late(attempt, operation)
        return end

    async def _call_agent(self, attempt: Attempt) -> object:
        scopes.enter(scopes.Scope("", asyncio.current_task()))
        args, kwargs = arguments_of(self._agent, attempt.run)
        return await self._agent.start(RunContext(attempt), args, kwargs)

    async def _watch(self, attempt: Attempt, agent: asyncio.Task[object]) -> AttemptEnd:
        """Wait for whatever ends the attempt; the gravest first."""
        loop = asyncio.get_running_loop()
        deadline = loop.create_task(self._until_deadline(), name="deadline")
        idle = loop.create_task(self._until_idle(attempt), name="idle")
        try:
            while True:
                await self._wait_for_attention({agent, idle, deadline})
                if (end := await self._look(attempt, agent)) is not None:
                    return end
                if agent.done():
                    return await self._end(attempt, agent)
                if deadline.done():
                    return await self._give_up(attempt, agent, Reason.DEADLINE, "the run's deadline has passed", "clock")
                if self._must_leave:
                    return await self._hand_back(attempt, agent)
                if idle.done():
                    if (end := await self._park(attempt, agent)) is not None:
                        return end
                    idle = loop.create_task(self._until_idle(attempt), name="idle")
        finally:
            idle.cancel()
            deadline.cancel()

    async def _wait_for_attention(self, tasks: set[Watched], timeout_ms: float | None = None) -> None:
        """Return as soon as one of the tasks is done, somebody wants attention, or the time is over."""
        if self._attention.is_set():
            self._attention.clear()
            return
        attention = asyncio.get_running_loop().create_task(self._attention.wait(), name="attention")
        try:
            timeout = None if timeout_ms is None else max(0.0, timeout_ms) / 1000
            await asyncio.wait({*tasks, attention}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            attention.cancel()
            self._attention.clear()

    async def _until_deadline(self) -> None:
        """Return once the deadline has passed by the store's clock (C69)."""
        deadline_at = self.run.deadline_at
        if deadline_at is None:
            await asyncio.get_running_loop().create_future()
            return
        while (left_ms := elapsed_ms(await persist(self._env, lambda tx: tx.now, read=True), deadline_at)) > 0:
            await self._env.clock.sleep(min(left_ms + 1, 60_000.0))

    async def _until_idle(self, attempt: Attempt) -> None:
        """Return when every branch has waited, with nothing in flight, for as long as a run lingers."""
        while True:
            while attempt.only_waits:
                before = attempt.activity
                await self._env.clock.sleep(self._env.settings.linger_ms)
                if before == attempt.activity:
                    return
            attempt.changed.clear()
            await attempt.changed.wait()

    # -- ends ----------------------------------------------------------------------------------------------------------

    async def _look(self, attempt: Attempt, agent: asyncio.Task[object], *, always: bool = False) -> AttemptEnd | None:
        """If somebody asked for it, read the run's row: settle what is to be settled, leave what is lost."""
        if not self._must_look and not always:
            return None
        self._must_look = False
        found = await self._read_row()
        if found is None:
            return None
        if isinstance(found, Settling):
            return await self._settle(attempt, agent, found)
        attempt.is_stopping = True
        attempt.journal.rule(drains=False)
        return AttemptEnd.EXPIRED

    async def _read_row(self) -> Settling | RunStatus | None:
        drain_ms = self._env.settings.drain_ms
        return await persist(self._env, lambda tx: read_settling(tx, self.run, drain_ms), read=True)

    async def _settle(self, attempt: Attempt, agent: asyncio.Task[object], settling: Settling) -> AttemptEnd:
        """An end is accepted: close the gate (F), drain what is in flight, establish (P) and publish (T)."""
        journal, settings = attempt.journal, self._env.settings
        softly = settling.mode is CancelMode.AFTER_STEP
        journal.rule(drains=True, may_close_step=softly)
        attempt.may_go_on.set()  # to be told that it is over, where it was about to park
        finished = await self._finish_step(attempt, agent, settling) if softly else True
        attempt.is_stopping = True
        journal.gate.shut()
        journal.may_close_step = False
        stands = await journal.drain()
        fence, emitted = self.run.fence, journal.gate.seq
        stands = stands and await persist(self._env, lambda tx: freeze_tx(tx, self.run.id, emitted_seq=emitted, fence=fence))
        attempt.is_over = not stands  # then answers are kept beside the journal: somebody else settles the run
        self._env.crash.reach("freeze.after")
        grace_ms = settings.drain_ms / 4 if softly else settling.grace_ms
        interruption = await interrupt(attempt, agent, grace_ms=grace_ms, extra_ms=settings.drain_ms / 4)
        drained = await journal.drain()
        attempt.is_over = True
        if stands:
            cleanup = Cleanup(
                attempted=True,
                completed=interruption.is_clean and drained,
                escalated=interruption.escalated or not finished,
                by="holder",
                emitted_seq=emitted,
            )
            await conclude(self._env, self.run.id, cleanup, fence=fence)
        return AttemptEnd.ENDED

    async def _finish_step(self, attempt: Attempt, agent: asyncio.Task[object], settling: Settling) -> bool:
        """Let the step under way end at its boundary; False if the grace ran out, or the cancel became urgent, first."""
        until = asyncio.get_running_loop().time() + settling.grace_ms / 1000
        while not agent.done() or attempt.in_flight:
            left_ms = (until - asyncio.get_running_loop().time()) * 1000
            if left_ms <= 0:
                return False
            await self._wait_for_attention(_under_way(attempt, agent), left_ms)
            if self._must_look:
                self._must_look = False
                found = await self._read_row()
                if isinstance(found, Settling) and found.mode is CancelMode.NOW:
                    return False
        return True

    async def _end(self, attempt: Attempt, agent: asyncio.Task[object]) -> AttemptEnd:
        """The agent has returned or raised: end the run, unless somebody else has decided meanwhile."""
        if (end := await self._come_to_rest(attempt, agent)) is not None:
            return end
        reason, text = reason_of(agent)
        if reason is None:  # stopped, or its fence lost: the row says which
            end = await self._look(attempt, agent, always=True)
            if end is not None:
                return end
            if self._must_leave:
                return await self._hand_back(attempt, agent)
            reason, text = Reason.AGENT_ERROR, "the agent stopped without a cause"
        while attempt.journal.is_writing:  # begun since: rows on their way must not race with the end, which would refuse them
            if (end := await self._write(attempt, agent, attempt.journal.rest())) is not None:
                return end
        self._env.crash.reach("end.before")
        write, reason, text = last_write(attempt, agent, reason, text)
        receipt = await persist(self._env, lambda tx: self._end_tx(tx, attempt, write, reason, text))
        self._env.crash.reach("end.after")
        if receipt is None:
            attempt.journal.put_back(write)
            return await self._look(attempt, agent, always=True) or AttemptEnd.EXPIRED
        return AttemptEnd.ENDED

    async def _come_to_rest(self, attempt: Attempt, agent: asyncio.Task[object]) -> AttemptEnd | None:
        """Wait, up to the grace, for operations that nobody awaited, and until every row is stored."""
        until = asyncio.get_running_loop().time() + self._env.settings.grace_ms / 1000
        while attempt.in_flight and (left_s := until - asyncio.get_running_loop().time()) > 0:
            await self._wait_for_attention(_under_way(attempt, agent), left_s * 1000)
            if (end := await self._look(attempt, agent)) is not None:
                return end
        return await self._write(attempt, agent, attempt.journal.rest())  # what is buffered goes with the end itself

    async def _write(
        self, attempt: Attempt, agent: asyncio.Task[object], writing: Coroutine[object, object, None]
    ) -> AttemptEnd | None:
        """Let the journal write. A refusal makes it ask for a look, and that look must not wait for the journal."""
        flushing: asyncio.Task[None] = asyncio.get_running_loop().create_task(writing, name="last write")
        while not flushing.done():
            await self._wait_for_attention({flushing})
            if (end := await self._look(attempt, agent)) is not None:
                await asyncio.wait({flushing})
                flushing.exception()
                return end
        if isinstance(flushing.exception(), FenceLost):
            return await self._look(attempt, agent, always=True)
        flushing.result()
        return None

    def _end_tx(self, tx: Transaction, attempt: Attempt, write: RunWrite, reason: Reason, text: str) -> TerminalReceipt | None:
        actor = Actor(kind=ActorKind.RUN, name=self.run.id)
        occurrence = plain_occurrence(self._env, tx.now, self.run, reason, text, actor, 0)
        cleanup = Cleanup(attempted=True, completed=not attempt.in_flight, by="holder", emitted_seq=attempt.journal.gate.seq)
        receipt = end_now_tx(tx, self._env, write, occurrence, cleanup)
        self._env.crash.reach("end.inside")
        return receipt

    async def _give_up(
        self, attempt: Attempt, agent: asyncio.Task[object], reason: Reason, text: str, service: str
    ) -> AttemptEnd:
        """The run may not go on: accept that end like any other, then settle."""
        grace_ms = self._env.settings.grace_ms

        def accept(tx: Transaction) -> None:
            run = tx.runs.lock(self.run.id)
            if run is not None and run.is_active and run.fence == self.run.fence:
                end_tx(tx, self._env, run, reason, text, Actor(kind=ActorKind.SERVICE, name=service), grace_ms)

        await persist(self._env, accept)
        return await self._look(attempt, agent, always=True) or AttemptEnd.EXPIRED

    async def _park(self, attempt: Attempt, agent: asyncio.Task[object]) -> AttemptEnd | None:
        """Every branch waits: give the process back, unless something came about after all."""
        if (end := await self._write(attempt, agent, attempt.journal.flush())) is not None:
            return end
        waits = tuple(attempt.waits.values())
        if not attempt.only_waits:
            return None
        attempt.may_go_on.clear()
        attempt.journal.gate.shut()  # soon the run is anybody's: what was shown is stored before
        if (end := await self._write(attempt, agent, attempt.journal.flush())) is not None:
            return end
        self._env.crash.reach("park.before")
        if not await persist(self._env, lambda tx: park_tx(tx, self.run.id, self.run.fence, waits)):
            attempt.may_go_on.set()
            return await self._look(attempt, agent, always=True)
        self._env.crash.reach("park.after")
        return AttemptEnd.PARKED

    async def _hand_back(self, attempt: Attempt, agent: asyncio.Task[object]) -> AttemptEnd:
        """The worker stops: let operations in flight end, then release the run, or end it. A cancel is still obeyed (C12)."""
        attempt.journal.is_closed = True
        until = asyncio.get_running_loop().time() + self._env.settings.shutdown_ms / 1000
        while attempt.in_flight and (left_s := until - asyncio.get_running_loop().time()) > 0:
            await self._wait_for_attention(_under_way(attempt, agent), left_s * 1000)
            if (end := await self._look(attempt, agent)) is not None:
                return end
        if agent.done() and reason_of(agent)[0] is not None and not attempt.journal.has_refused:
            return await self._end(attempt, agent)
        if self._must_end:
            text = "its worker was stopped, and nobody is to take it over"
            return await self._give_up(attempt, agent, Reason.WORKER_SHUTDOWN, text, "worker")
        attempt.journal.gate.shut()  # soon the run is anybody's: what was shown is stored before
        if (end := await self._write(attempt, agent, attempt.journal.flush())) is not None:
            return end
        attempt.is_stopping = True
        if not await persist(self._env, lambda tx: release_tx(tx, self.run.id, self.run.fence)):
            return await self._look(attempt, agent, always=True) or AttemptEnd.EXPIRED
        self._env.crash.reach("release.after")
        return AttemptEnd.RELEASED


Watched = asyncio.Task[object] | asyncio.Task[None]


def _under_way(attempt: Attempt, agent: asyncio.Task[object]) -> set[Watched]:
    flying: set[Watched] = {f.task for f in attempt.in_flight.values()}
    return flying if agent.done() else {agent, *flying}


async def _abandon(agent: asyncio.Task[object]) -> None:
    """Take the agent's task down and let go of it; what it raises now is nobody's result."""
    agent.cancel()
    await asyncio.wait({agent}, timeout=0.1)
    agent.add_done_callback(lambda task: None if task.cancelled() else task.exception())


def arguments_of(agent: Agent, run: Run) -> tuple[list[object], dict[str, object]]:
    """Decode a run's input by the annotations of its agent's parameters. Raises `InvalidInput` naming the parameter."""
    facts = parse(run.input)
    row = facts if isinstance(facts, dict) else {}
    args, kwargs = row.get("args"), row.get("kwargs")
    return decode_arguments(agent.fn, args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {}, skip=1)
