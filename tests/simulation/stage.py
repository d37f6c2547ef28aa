"""A small stage on virtual time: one shared store, some processes, and agents written in the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeVar

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation
from quiesce.domain.runs import Durability, Run, RunStatus
from quiesce.domain.streams import StreamEvent, Visibility
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.codec import encode
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import Agent, Registry
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker
from quiesce.stores.memory.store import MemoryStore
from quiesce.testing.simloop import SimClock, SimEntropy, SimLoop, SimProcess, run_sim

T = TypeVar("T")

SETTINGS: Final = Settings(lease_ms=1_000, beat_ms=200, poll_ms=50, sweep_ms=100, linger_ms=10, grace_ms=200, drain_ms=200)


@dataclass
class Stage:
    """One store, and processes over it."""

    loop: SimLoop
    store: MemoryStore = field(init=False)
    started: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(SimClock(self.loop))
        self.service = ControlService(self._environment(0))

    def _environment(self, number: int) -> Environment:
        clock = SimClock(self.loop)
        return Environment(store=self.store, clock=clock, entropy=SimEntropy(number), settings=SETTINGS)

    async def process(self, *agents: Agent) -> tuple[SimProcess, RunWorker]:
        """Start a process with a worker."""
        self.started += 1
        process = SimProcess(self.loop, f"process {self.started}")
        worker = RunWorker(self._environment(self.started), Registry(agents), keeps_lease_on_thread=False)
        await process.start(worker.start())
        return process, worker

    async def submit(self, agent: Agent, *, budget: Amounts | None = None, durability: Durability = Durability.SYNC) -> RunId:
        wanted = Submission(
            agent=agent.name,
            input=encode({"args": [], "kwargs": {}}, field="input"),
            budget=Budget.of_limits(budget),
            durability=durability,
            visibility=Visibility.STORE_FIRST,
        )
        return (await self.service.submit(wanted)).id

    async def reaches(self, run_id: RunId, condition: Callable[[Run, dict[str, Operation]], bool]) -> None:
        """Wait until run and journal satisfy a condition."""
        async with asyncio.timeout(30):
            while not condition(await self.service.get(run_id), await self.journal(run_id)):
                await asyncio.sleep(0.005)

    async def waits(self, run_id: RunId) -> None:
        await self.reaches(run_id, lambda run, _: run.status is RunStatus.WAITING)

    async def journal(self, run_id: RunId) -> dict[str, Operation]:
        return {o.position: o for o in await self.store.read(lambda tx: tx.operations.of_run(run_id))}

    async def events(self, run_id: RunId) -> list[StreamEvent]:
        return await self.store.read(lambda tx: tx.streams.read(run_id, after=0, limit=1_000))

    async def receipt(self, run_id: RunId) -> TerminalReceipt:
        async with asyncio.timeout(60):
            return await self.service.wait(run_id)

    async def cancel(self, run_id: RunId) -> TerminalReceipt:
        await self.service.cancel(run_id)
        return await self.receipt(run_id)

    async def decide(self, run_id: RunId, position: str, verdict: Verdict) -> None:
        actor = Actor(kind=ActorKind.USER, name="somebody")
        where = Position(position)
        await self.service.reconcile(Decision(run_id=run_id, position=where, verdict=verdict, actor=actor, grounds="seen"))


def play(scene: Callable[[Stage], Coroutine[object, object, T]], seed: int = 0) -> T:
    """Play a scene to its end."""

    async def main(loop: SimLoop) -> T:
        return await scene(Stage(loop))

    return run_sim(seed, main).value
