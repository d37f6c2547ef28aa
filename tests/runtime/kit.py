"""What the runtime's tests are written with: hosts that die, lines that fail, gates that agents wait at.

A `Host` is one process as far as the store can tell: an environment and a worker of its own behind a `Line` to the shared
store. `kill` cuts the line before it takes the tasks down, so that nothing of the dead is written, not even by a `finally`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict, TypeVar, Unpack

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import RunId, ThreadId, WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.operations import Operation
from quiesce.domain.runs import Durability, Run, RunStatus
from quiesce.domain.streams import EventKind, StreamEvent, Visibility
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.artifacts import ArtifactFiles
from quiesce.ports.clock import Clock
from quiesce.ports.executor import ToolProcess
from quiesce.ports.store import Store
from quiesce.runtime.codec import encode
from quiesce.runtime.context import Run as AgentRun
from quiesce.runtime.crashpoints import POINTS, CrashPoints
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.readers import StreamEnd, read_stream
from quiesce.runtime.registry import Agent, Registry, declare_agent
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.threads import ThreadService
from quiesce.runtime.worker import RunWorker
from tests.runtime.line import Line

T = TypeVar("T")

FAST: Final = Settings(
    lease_ms=60_000,
    beat_ms=500,
    poll_ms=20,
    sweep_ms=40,
    linger_ms=10,
    grace_ms=60_000,
    drain_ms=10_000,
    shutdown_ms=500,
)
"""Quick where something is awaited; where time takes something away (a lease, a grace, a drain), longer than any pause of the
machine that runs the tests. A test about such an end says itself when it comes."""
PATIENCE_S: Final = 60.0
"""How long anything may take before the test fails; far more than it takes."""


class Died(Exception):
    """The process of this host has ended here."""


class Gate:
    """A place in an agent's code: the test sees that it was reached, and says when to go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self.arrivals = 0

    async def wait(self) -> None:
        """Arrive, and wait until the gate is opened."""
        self.arrivals += 1
        self.reached.set()
        await self._open.wait()

    async def arrival(self, count: int = 1) -> None:
        """Wait until so many have arrived."""
        await within(self.reached.wait())
        await eventually(lambda: self._has(count))

    async def _has(self, count: int) -> bool:
        return self.arrivals >= count

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._open.set()


class BlockingGate:
    """A gate for plain functions, which wait on a thread."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def wait(self) -> None:
        """Arrive, and block until the gate is opened."""
        self._reached.set()
        self._open.wait(PATIENCE_S)

    async def arrival(self) -> None:
        """Wait until somebody has arrived."""
        await within(asyncio.to_thread(self._reached.wait, PATIENCE_S))

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()


async def within(awaitable: Awaitable[T], seconds: float = PATIENCE_S) -> T:
    """Await, but not for ever."""
    return await asyncio.wait_for(awaitable, seconds)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition of the store holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.005)


async def is_draining(store: Store, worker_id: WorkerId) -> bool:
    """Whether a worker has said that it claims nothing more."""
    worker = await store.read(lambda tx: tx.workers.get(worker_id))
    return worker is not None and worker.is_draining


class ShiftedClock:
    """Implements `ports.clock.Clock`: the machine's clock, set wrong."""

    def __init__(self, ahead_ms: float) -> None:
        self._clock = SystemClock()
        self.ahead_ms = ahead_ms

    def now(self) -> Instant:
        return after_ms(self._clock.now(), self.ahead_ms)

    async def sleep(self, duration_ms: float) -> None:
        await self._clock.sleep(duration_ms)


async def lasting(run: AgentRun) -> None:
    """Run until it is stopped: who waits for such a child parks, however slow the machine is, until the test wakes it."""
    await asyncio.Event().wait()


LASTING: Final = declare_agent(lasting)


class HostFields(TypedDict, total=False):
    """What tests vary of a host."""

    name: str
    crash_at: str
    nth: int
    settings: Settings
    limits: Limits
    clock: Clock
    artifacts: ArtifactFiles
    tool_process: ToolProcess
    caller: Caller


class Host:
    """One process: environment, worker and service behind a line of its own."""

    def __init__(self, store: Store, agents: tuple[Agent, ...], fields: HostFields) -> None:
        self.line = Line(store)
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        crash_at = fields.get("crash_at", "")
        assert crash_at in POINTS or not crash_at
        self.env = Environment(
            store=self.line,
            clock=fields.get("clock") or SystemClock(),
            entropy=SystemEntropy(),
            settings=fields.get("settings", FAST),
            limits=fields.get("limits", DEFAULT_LIMITS),
            crash=CrashPoints(crash_at, fields.get("nth", 1), self._die),
            artifacts=fields.get("artifacts"),
            tool_process=fields.get("tool_process"),
        )
        self.service = ControlService(self.env, fields.get("caller"))
        self.worker = RunWorker(self.env, Registry(agents), name=fields.get("name", "host"))
        self._is_dead = False

    def _die(self, _: str) -> None:
        self.line.cut()
        self._loop.call_soon_threadsafe(self.died.set)
        raise Died

    async def start(self, *, claims: bool = True) -> Host:
        await within(self.worker.start(claims=claims))
        return self

    async def kill(self, *, lease_ends: bool = True) -> None:
        """End the process: its tasks are taken down behind a cut line, and its lease runs out at once, or in its time."""
        self.line.cut()
        self.line.release()
        self._is_dead = True
        worker = self.worker._worker
        doomed = [*self.worker._loops, *(held.task for held in self.worker._held.values())]
        for task in doomed:
            task.cancel()
        if doomed:
            await within(asyncio.wait(doomed))
        if self.worker._keeper is not None:
            await self.worker._keeper.close()
        if worker is not None and lease_ends:
            await self.line._store.transact(lambda tx: tx.workers.remove(worker.id))

    async def death(self) -> None:
        """Wait until the crash point has struck, then kill what is left."""
        await within(self.died.wait())
        await self.kill()

    async def close(self) -> None:
        self.line.release()
        if self._is_dead:
            return
        if self.died.is_set():
            await self.kill()
            return
        await within(self.worker.close())


Seen = tuple[list[StreamEvent], StreamEnd]
"""What a reader was given, from where it began to the end."""


class RunFields(TypedDict, total=False):
    """What tests vary of a submission."""

    thread: str
    key: str
    deadline_at: Instant
    timeout_ms: int
    budget: Amounts
    durability: Durability
    visibility: Visibility
    bindings: Mapping[str, str]
    turn: TurnRequest


@dataclass(slots=True)
class Cluster:
    """A store, the hosts over it, and a control process that runs nothing."""

    store: Store
    hosts: list[Host] = field(default_factory=list)
    service: ControlService = field(init=False)
    threads: ThreadService = field(init=False)
    env: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.env = Environment(store=self.store, clock=SystemClock(), entropy=SystemEntropy(), settings=FAST)
        self.service = ControlService(self.env)
        self.threads = ThreadService(self.env)

    def host(self, *agents: Agent, **fields: Unpack[HostFields]) -> Host:
        """Make a host; it is closed with the test."""
        host = Host(self.store, agents, fields)
        self.hosts.append(host)
        return host

    async def start(self, *agents: Agent, **fields: Unpack[HostFields]) -> Host:
        """Make a host and start it."""
        return await self.host(*agents, **fields).start()

    async def submit(self, agent: Agent, *args: object, **fields: Unpack[RunFields]) -> RunId:
        """Submit a run of an agent."""
        return (await within(self.service.submit(submission(agent, *args, **fields)))).id

    async def receipt(self, run_id: RunId) -> TerminalReceipt:
        """Wait for the end of a run."""
        return await within(self.service.wait(run_id))

    async def result(self, run_id: RunId) -> object:
        """Wait for the end of a run and return its result; the run must complete."""
        receipt = await self.receipt(run_id)
        assert receipt.status is RunStatus.COMPLETED, receipt.to_json()
        return await self.service.result(run_id)

    async def run(self, run_id: RunId) -> Run:
        return await self.service.get(run_id)

    async def reaches(self, run_id: RunId, *statuses: RunStatus) -> Run:
        """Wait until a run has one of these statuses."""

        async def has_it() -> bool:
            return (await self.run(run_id)).status in statuses

        await eventually(has_it)
        return await self.run(run_id)

    async def wake(self, run_id: RunId) -> None:
        """Wait until a run has parked on a child that is `LASTING`, and stop that child."""
        run = await self.reaches(run_id, RunStatus.WAITING)
        (wait,) = run.waits
        await self.service.cancel(RunId(wait.subject))
        await self.receipt(RunId(wait.subject))

    async def journal(self, run_id: RunId) -> dict[str, Operation]:
        """Return the stored operations of a run, by position."""
        return {o.position: o for o in await self.store.read(lambda tx: tx.operations.of_run(run_id))}

    async def events(self, run_id: RunId) -> list[StreamEvent]:
        """Return all stored events of a run."""
        return await self.store.read(lambda tx: tx.streams.read(run_id, after=0, limit=10_000))

    async def stored(self, run_id: RunId, count: int) -> None:
        """Wait until so many events that a run's agent emitted are stored."""

        async def has_them() -> bool:
            return sum(e.kind is EventKind.DATA for e in await self.events(run_id)) >= count

        await eventually(has_them)

    async def watch(
        self, run_id: RunId, *, after: int = 0, env: Environment | None = None
    ) -> tuple[list[StreamEvent], StreamEnd]:
        """Read a stream to its end."""
        seen: list[StreamEvent] = []
        async with asyncio.timeout(PATIENCE_S):
            async for frame in read_stream(env or self.env, run_id, after=after):
                if isinstance(frame, StreamEvent):
                    seen.append(frame)
                elif isinstance(frame, StreamEnd):
                    return seen, frame
        raise AssertionError("a stream ended without its end")

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()


def submission(agent: Agent, *args: object, **fields: Unpack[RunFields]) -> Submission:
    """Make a submission as `Quiesce.start` makes it."""
    thread = fields.get("thread")
    return Submission(
        agent=agent.name,
        input=encode({"args": args, "kwargs": {}}, field="input"),
        bindings=canonical({**agent.bindings, **fields.get("bindings", {})}),
        thread_id=None if thread is None else ThreadId(thread),
        key=fields.get("key"),
        deadline_at=fields.get("deadline_at"),
        timeout_ms=fields.get("timeout_ms"),
        budget=Budget.of_limits(fields.get("budget")),
        durability=fields.get("durability", Durability.SYNC),
        visibility=fields.get("visibility", Visibility.STORE_FIRST),
        turn=fields.get("turn", TurnRequest()),
    )
