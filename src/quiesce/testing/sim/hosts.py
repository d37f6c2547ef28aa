"""Simulated processes: each a worker and a control service behind a store that fails it, restarted when it dies.

A `Host` is a place where processes run one after the other, as a supervisor would have it; a `Life` is one of them, with
clock, entropy, faults and crash point of its own. Whoever asks a host something gets no answer if the process dies first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeVar

from quiesce.domain.errors import StoreError
from quiesce.ports.store import Store
from quiesce.runtime.crashpoints import POINTS, CrashPoints
from quiesce.runtime.environment import Environment
from quiesce.runtime.registry import Agent, Registry
from quiesce.runtime.service import ControlService
from quiesce.runtime.worker import RunWorker
from quiesce.testing.faults import Fault, FaultPlan, FaultyStore
from quiesce.testing.sim.config import Config, Trouble
from quiesce.testing.sim.line import SlowLine
from quiesce.testing.simloop import SimClock, SimEntropy, SimKilled, SimLoop, SimProcess

T = TypeVar("T")


class NoAnswer(Exception):
    """The process that was asked is down, or died before it answered."""


class Life:
    """One process, from its start to its death."""

    def __init__(self, loop: SimLoop, config: Config, store: Store, agents: Iterable[Agent], name: str) -> None:
        rng = random.Random(f"{name} of {config.seed}")  # noqa: S311 - repeatable on purpose
        self.process = SimProcess(loop, name)
        skew_ms = rng.uniform(-5_000, 5_000) if Trouble.SKEW in config.troubles else 0.0
        self.clock = SimClock(loop, skew_ms=skew_ms)
        self.plan = FaultPlan(
            rng.getrandbits(32), enabled_probability=1, strike_probability=config.strike_probability, kinds=config.faults
        )
        pause_ms = config.settings.lease_ms * rng.uniform(1.05, 2)
        point = rng.choice(tuple(POINTS)) if Trouble.CRASH_POINT in config.troubles and rng.random() < 0.7 else ""
        self.crash_point = point
        line = SlowLine(store, random.Random(rng.getrandbits(32)), config.latency_ms)  # noqa: S311 - repeatable on purpose
        self.env = Environment(
            store=FaultyStore(line, self.plan, self.process, pause_ms=pause_ms, clock=self.clock),
            clock=self.clock,
            entropy=SimEntropy(rng.getrandbits(32)),
            settings=config.settings,
            limits=config.limits,
            crash=CrashPoints(point, rng.randint(1, 4), self._die),
        )
        self.service = ControlService(self.env)
        self.worker = RunWorker(self.env, Registry(agents), name=name, keeps_lease_on_thread=False)
        self.is_calm = False
        self.closing = asyncio.Event()
        self.ended: asyncio.Future[None] = loop.create_future()

    async def run(self) -> None:
        """Advance runs until told to close, or killed."""
        await self.process.run(self._main())
        self.process.kill()  # whatever it left behind goes with it
        self.ended.set_result(None)

    async def _main(self) -> None:
        try:
            await self.worker.start()
        except StoreError:
            return  # a process that cannot register ends; its supervisor tries again
        await self.closing.wait()
        await self.worker.close()

    def calm_down(self) -> None:
        """Let nothing befall this process any more."""
        self.is_calm = True
        self.plan.stop()

    def _die(self, _: str) -> None:
        if self.is_calm:
            return
        self.process.kill()
        raise SimKilled


class Host:
    """A place where one process runs at a time."""

    def __init__(self, loop: SimLoop, config: Config, store: Store, agents: Iterable[Agent], name: str) -> None:
        self.name = name
        self.life: Life | None = None
        self.struck: dict[Fault, int] = {}
        self.on_start: Callable[[Life], None] = _ignore
        self._loop = loop
        self._config = config
        self._store = store
        self._agents = tuple(agents)
        self._random = random.Random(f"host {name} of {config.seed}")  # noqa: S311 - repeatable on purpose
        self._is_calm = False
        self._lives = 0

    async def supervise(self) -> None:
        """Start a process whenever there is none."""
        while True:
            self._lives += 1
            life = Life(self._loop, self._config, self._store, self._agents, f"{self.name}.{self._lives}")
            if self._is_calm:
                life.calm_down()
            self.life = life
            self.on_start(life)
            await life.run()
            for fault in life.plan.struck:
                self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1
            await asyncio.sleep(self._random.uniform(0.02, 0.2 if self._is_calm else 1.5))

    def calm_down(self) -> None:
        """Let nothing befall this host any more."""
        self._is_calm = True
        if self.life is not None:
            self.life.calm_down()

    async def ask(self, work: Callable[[ControlService], Coroutine[object, object, T]], name: str) -> T:
        """Have the present process do something. Raises what that raises, or `NoAnswer`."""
        life = self.life
        if life is None or life.process.is_dead:
            raise NoAnswer
        task = life.process.start(work(life.service), name=name)
        waited: set[asyncio.Future[object]] = {task, life.ended}  # type: ignore[arg-type]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise NoAnswer
        try:
            return task.result()
        except SimKilled:
            raise NoAnswer from None


def _ignore(_: Life) -> None:
    pass
