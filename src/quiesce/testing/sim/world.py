"""One world from one seed: set up, let run, calmed down, brought to rest, judged.

For `busy_ms` clients ask and faults strike. Then nothing strikes any more, and within a bound every run must have ended,
or wait for a decision that nobody takes, or sleep because it asked to: liveness. At last everything is judged at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from quiesce.domain.errors import QuiesceError, StoreError
from quiesce.testing.sim.clients import Client, Reader, Scene, befall, decide_unknowns
from quiesce.testing.sim.config import Config
from quiesce.testing.sim.hosts import Host, Life, NoAnswer
from quiesce.testing.sim.outside import Outside
from quiesce.testing.sim.verdicts import is_at_rest, judge
from quiesce.testing.sim.watch import Watch, WatchedStore
from quiesce.testing.sim.workload import Player
from quiesce.testing.simloop import SimClock, SimLoop, run_sim

REST_MS = 60_000
"""By when after the last fault everything has come to rest; mostly it takes a few seconds."""


class Broken(Exception):
    """Something that must hold does not. The message names it, and the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a world. `marks`: what was seen to happen, and how often."""

    config: Config
    digest: str
    steps: int
    commits: int
    elapsed_ms: float
    runs: int
    marks: Counter[str] = field(default_factory=Counter)


def simulate(seed: int, *, config: Config | None = None, say: Callable[[str], None] | None = None) -> Report:
    """Run the world of a seed. Raises `Broken`, or what the loop raises (`SimDeadlock`, `SimEndless`).

    `config` takes the place of what the seed would draw. `say` is handed a line for everything that happens, with its
    instant in milliseconds.
    """
    config = config or Config.draw(seed)
    world = _World(config, say)
    with _listening(world.hear):
        run = run_sim(seed, world.main)
    return Report(
        config=config,
        digest=run.digest,
        steps=run.steps,
        commits=world.commits,
        elapsed_ms=run.elapsed_ms,
        runs=world.runs,
        marks=world.marks,
    )


class _World:
    """The parts of one world, and its course."""

    def __init__(self, config: Config, say: Callable[[str], None] | None) -> None:
        self.marks: Counter[str] = Counter()
        self.commits = 0
        self.runs = 0
        self._config = config
        self._say = say
        self._loop: SimLoop | None = None
        self._broken: str | None = None

    async def main(self, loop: SimLoop) -> None:
        """The course of the world."""
        self._loop = loop
        scene, readers = self._set_up(loop)
        clients = [Client(scene, number) for number in range(self._config.clients)]
        tasks = [loop.create_task(host.supervise(), name=f"host {host.name}") for host in scene.hosts]
        tasks += [loop.create_task(reader.live(), name="reader") for reader in readers]
        tasks += [loop.create_task(client.live(), name="client") for client in clients]
        tasks.append(loop.create_task(befall(scene), name="troubles"))
        await asyncio.sleep(self._config.busy_ms / 1000)
        scene.busy = False
        scene.outside.calm_down()
        for host in scene.hosts:
            host.calm_down()
        self._note("calm")
        await self._come_to_rest(scene, readers)
        await judge(scene, [view for reader in readers for view in reader.views])
        self.runs = len(scene.runs())
        self._mark_hosts(scene)
        self._raise_if_broken()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    def _set_up(self, loop: SimLoop) -> tuple[Scene, list[Reader]]:
        config = self._config
        clock = SimClock(loop)
        watch = Watch(clock, self._fail, self._mark)
        store = WatchedStore(clock, watch, config.limits)
        outside = Outside(loop, config.seed, config.whims)
        outside.on_request, outside.on_effect = watch.see_request, watch.see_effect
        outside.tries_announced = watch.tries_announced
        watch.note = self._tell if self._say is not None else None
        agents = Player(outside, watch.see_step).agents
        hosts = []
        for number in range(config.hosts):
            offered = [agents["common"]] if number and number % 2 else list(agents.values())
            host = Host(loop, config, store, offered, f"host-{number}")
            host.on_start = self._note_start
            hosts.append(host)
        scene = Scene(
            loop=loop,
            config=config,
            store=store,
            hosts=hosts,
            outside=outside,
            fail=self._fail,
            mark=self._mark,
            note=self._note,
        )
        return scene, [Reader(scene, number) for number in range(config.readers)]

    async def _come_to_rest(self, scene: Scene, readers: list[Reader]) -> None:
        rng = random.Random(f"rest of {self._config.seed}")  # noqa: S311 - repeatable on purpose
        until = scene.loop.time() + REST_MS / 1000
        while scene.loop.time() < until:
            await asyncio.sleep(0.25)
            self._raise_if_broken()
            if self._config.resolves_all:
                with suppress(NoAnswer, StoreError):
                    await decide_unknowns(scene, rng, rng.choice(scene.hosts), most=100, wavers=False)
            ends_missing = [v for r in readers for v in r.views if v.end is None and self._is_over(scene, v.run_id)]
            if not ends_missing and all(is_at_rest(scene, run) for run in scene.runs()):
                self.commits = scene.store.counters.commits
                return
        moving = [f"{r.id} ({r.agent}) is {r.status} {[w.to_json() for w in r.waits]}" for r in scene.runs()]
        restless = [text for text, r in zip(moving, scene.runs(), strict=True) if not is_at_rest(scene, r)]
        self._fail(f"{REST_MS} ms after the last fault: {restless or 'readers without an end'}")

    @staticmethod
    def _is_over(scene: Scene, run_id: object) -> bool:
        return any(r.id == run_id and r.is_terminal for r in scene.runs())

    def _mark_hosts(self, scene: Scene) -> None:
        for host in scene.hosts:
            for fault, times in host.struck.items():
                self.marks[f"fault: {fault}"] += times

    # -- what is said of it ------------------------------------------------------------------------------------------------

    def hear(self, record: logging.LogRecord) -> None:
        """Take in what the code under test logs: an attempt may fail for the store's sake and for nothing else."""
        error = record.exc_info[1] if record.exc_info else None
        self._tell(f"log: {record.getMessage()} {getattr(record, 'run_id', '')} {error!r}")
        if not record.name.startswith("quiesce"):
            return  # asyncio tells of what the garbage collector finds, in its own time: for the trace only
        if record.levelno >= logging.ERROR and not isinstance(error, StoreError):
            self._fail(f"{record.getMessage()}: {error!r}")
        if isinstance(error, QuiesceError):
            self._mark(f"attempt failed: {error.code}")
        if record.getMessage() == "lease lost":
            self._mark("lease lost")

    def _note_start(self, life: Life) -> None:
        self._note(f"{life.process.name} starts" + (f", to die at {life.crash_point}" if life.crash_point else ""))

    def _note(self, text: str) -> None:
        if self._loop is not None:
            self._loop.note(text)
        self._tell(text)

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(f"{self._now_ms():10.1f}  {text}")

    def _mark(self, name: str) -> None:
        self.marks[name] += 1

    def _fail(self, text: str) -> None:
        """Keep the first thing that does not hold, and end the world at the next step, whoever would swallow an error."""
        if self._broken is None and self._loop is not None:
            self._broken = f"seed {self._config.seed}, at {self._now_ms():.1f} ms: {text}"
            self._note(f"BROKEN: {text}")
            self._loop.call_soon(self._raise_if_broken, context=contextvars.Context())

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise Broken(self._broken)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000 if self._loop is not None else 0.0


@contextmanager
def _listening(hear: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Hand what is logged to `hear` and to nobody else."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hear(record)

    loggers = [logging.getLogger(name) for name in ("quiesce", "asyncio")]
    before = [(log, log.handlers, log.propagate, log.level) for log in loggers]
    for log in loggers:
        log.handlers, log.propagate = [Ear()], False
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for log, handlers, propagate, level in before:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)
