"""What the deaths of processes and simulated worlds have found, each as the smallest world that shows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from quiesce.application import agent, tool
from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import OutcomeUnknown
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation, OperationStatus
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime.context import Run as RunContext
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.isolated import Call
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import Agent, Registry
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker
from quiesce.stores.memory import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples
from quiesce.testing.simloop import SimClock, SimEntropy, SimLoop, SimProcess, run_sim

T = TypeVar("T")
SETTINGS = Settings(poll_ms=20, linger_ms=30)


class SlowStore(MemoryStore):
    """A store as far away as a server: decisions and write values take their time, each on a connection of its own."""

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        await asyncio.sleep(0.02)
        value = await super().transact(fn)
        await asyncio.sleep(0.02)
        return value

    async def write(self, write: RunWrite) -> WriteOutcome:
        await asyncio.sleep(0.05)
        return await super().write(write)


class World:
    """One worker over a slow store."""

    def __init__(self, loop: SimLoop, *agents: Agent) -> None:
        self.store = SlowStore(SimClock(loop))
        self.env = Environment(store=self.store, clock=SimClock(loop), entropy=SimEntropy(loop.seed), settings=SETTINGS)
        self.service = ControlService(self.env)
        self.worker = RunWorker(self.env, Registry(agents), keeps_lease_on_thread=False)

    async def start(self, agent_: Agent, *, budget: Budget | None = None) -> Run:
        await self.worker.start()
        wanted = Submission(agent=agent_.name, input=canonical({"args": [], "kwargs": {}}), budget=budget or Budget())
        return await self.service.submit(wanted)

    async def words(self, run_id: RunId) -> list[str]:
        events = await self.store.read(lambda tx: tx.streams.read(run_id, after=0, limit=100))
        return [json.loads(event.payload)["word"] for event in events if event.kind == "data"]


def in_worlds(body: Callable[[SimLoop], Coroutine[object, object, None]], seeds: int) -> None:
    for seed in range(seeds):
        run_sim(seed, body)


@pytest.mark.req("ST-01", "TR-09")
def test_an_event_on_its_way_never_races_with_the_end_of_its_run() -> None:
    """The end was decided on one connection while the last event was under way on another, and was then refused."""

    @agent
    async def speaking(run: RunContext) -> str:
        await run.emit({"word": "one"})
        await asyncio.sleep(0.02)
        await run.emit({"word": "two"})
        await run.emit({"word": "three"})
        return "spoken"

    async def body(loop: SimLoop) -> None:
        world = World(loop, speaking)
        run = await world.start(speaking)
        receipt = await world.service.wait(run.id)
        assert await world.words(run.id) == ["one", "two", "three"]
        assert (receipt.status, receipt.frontier.stored_seq) == (RunStatus.COMPLETED, 3)
        await world.worker.close()

    in_worlds(body, 50)


@pytest.mark.req("RR-10", "C62")
def test_a_run_that_is_being_parked_begins_nothing() -> None:
    """The timer came about while the parking was under way, and the step behind it ran once for nothing."""
    begun: list[float] = []

    async def ask(_: str) -> str:
        begun.append(asyncio.get_running_loop().time())
        return "answered"

    @agent
    async def sleeping(run: RunContext) -> str:
        await run.sleep(0.09)
        return await run.step(ask, "why?")

    async def body(loop: SimLoop) -> None:
        begun.clear()
        world = World(loop, sleeping)
        run = await world.start(sleeping)
        await world.service.wait(run.id)
        attempts = await world.store.read(lambda tx: tx.runs.attempts(run.id))
        assert len(begun) == 1, f"begun at {begun}, attempts {attempts}"
        await world.worker.close()

    in_worlds(body, 50)


@pytest.mark.req("RR-03", "C47", "C64")
def test_a_worker_that_slept_past_its_lease_claims_nothing_until_it_is_renewed() -> None:
    """It took its own runs from itself, again and again, until their attempts were used up (seed 1443)."""

    async def long(_: str) -> str:
        await asyncio.sleep(4)
        return "done"

    @agent
    async def working(run: RunContext) -> str:
        return await run.step(long, "why?")

    async def body(loop: SimLoop) -> None:
        world = World(loop, working)
        process = SimProcess(loop, "sleeper")
        await process.start(world.worker.start())
        wanted = Submission(agent=working.name, input=canonical({"args": [], "kwargs": {}}))
        run = await world.service.submit(wanted)
        await asyncio.sleep(1)
        process.freeze(2 * SETTINGS.lease_ms)
        receipt = await world.service.wait(run.id)
        assert receipt.status is RunStatus.COMPLETED
        assert receipt.attempt == 1, "nobody else was there, so its own attempt goes on"

    in_worlds(body, 30)


@pytest.mark.req("RR-19", "TR-45")
@pytest.mark.parametrize(("verdict", "used"), [(Verdict.HAPPENED, 1), (Verdict.DID_NOT_HAPPEN, 1)])
def test_a_decision_about_a_childs_effect_moves_the_budgets_above_it_too(verdict: Verdict, used: int) -> None:
    """It locked the child and then its parent, against the order of locks."""
    tries: list[str] = []

    @tool(effect="once")
    async def doubtful(*, call: Call) -> str:
        tries.append(call.key)
        if len(tries) == 1:
            raise OutcomeUnknown("no answer")
        return "done"

    @agent
    async def below(run: RunContext) -> object:
        return await run.call(doubtful)

    @agent
    async def above(run: RunContext) -> str:
        child = await run.spawn(below)
        return str((await child.outcome()).status)

    async def body(loop: SimLoop) -> None:
        tries.clear()
        world = World(loop, above, below)
        run = await world.start(above, budget=Budget.of_limits({"tool_calls": 5}))
        while not (unknown := await world.store.read(lambda tx: waiting_child(tx, run.id))):
            await asyncio.sleep(0.1)
        ana = Actor(kind=ActorKind.USER, name="ana")
        await world.service.reconcile(
            Decision(run_id=unknown, position=Position("1"), verdict=verdict, actor=ana, grounds="asked", result="done")
        )
        receipt = await world.service.wait(run.id)
        assert receipt.status is RunStatus.COMPLETED
        for run_id in (run.id, unknown):
            allowance = (await world.service.get(run_id)).budget.of("tool_calls")
            assert (allowance.used, allowance.reserved) == (used, 0)
        await world.worker.close()

    run_sim(0, body)


def waiting_child(tx: Transaction, run_id: RunId) -> RunId | None:
    return next((child.id for child in tx.runs.children(run_id) if child.status is RunStatus.WAITING), None)


@pytest.mark.req("RR-19")
def test_what_one_row_of_a_write_has_used_is_not_there_for_another_to_reserve() -> None:
    """The sum of what was reserved had not changed, so nobody looked at what had been used (seed 49)."""
    make = Samples()
    run = make.running(limits={"calls": 2})
    store = MemoryStore(ManualClock())

    def begin(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.streams.open(run.id)

    def apply(*rows: Operation) -> WriteOutcome:
        write = RunWrite(run_id=run.id, fence=run.fence, operations=rows)
        return store.transact_blocking(lambda tx: tx.apply(write))

    store.transact_blocking(begin)
    asking = [make.operation(run, position, status=OperationStatus.DISPATCHED, reserved={"calls": 1}) for position in "123"]
    answered = make.operation(run, "1", status=OperationStatus.COMMITTED, used={"calls": 1})
    assert apply(asking[0]) is WriteOutcome.APPLIED
    assert apply(asking[1]) is WriteOutcome.APPLIED
    assert apply(answered, asking[2]) is WriteOutcome.OVER_BUDGET
    assert apply(answered) is WriteOutcome.APPLIED
