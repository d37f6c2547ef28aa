"""What the tests of cancels and boundaries share: hosts that pause, commits that are traced, receipts that are proven.

A `Pause` makes a crash point a barrier: the host that reaches it does not die, but everything that it wants of the store
from then on waits until the test lets it. So both orders of a race can be had, and neither by waiting for luck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope, Occurrence, PersistenceOutcome
from quiesce.domain.ids import RunId
from quiesce.domain.streams import StreamState
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.bundle import gather_tx
from quiesce.runtime.cancel import CancelAdmission
from quiesce.runtime.context import Run
from quiesce.runtime.readers import KeepAlive, read_stream
from quiesce.runtime.registry import Agent, declare_agent
from quiesce.runtime.verification import require, verify
from tests.runtime.kit import FAST, Cluster, Gate, Host, within
from tests.runtime.line import Line

T = TypeVar("T")


LOCAL = Actor(kind=ActorKind.USER, name="local")


class Pause:
    """Holds a host, made with `crash_at`, where it would die."""

    def __init__(self, host: Host) -> None:
        self._line = host.line
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        host.env.crash._die = self._strike

    def _strike(self, _: str) -> None:
        self._line.hold()
        self._loop.call_soon_threadsafe(self._reached.set)

    async def arrival(self) -> None:
        """Wait until the host has come to its point."""
        await within(self._reached.wait())

    def resume(self) -> None:
        """Let the host go on."""
        self._line.release()


class Stubborn:
    """Code that swallows every cancellation until the test lets it go, or as many as it is told to."""

    def __init__(self, swallows: int = 1_000) -> None:
        self.begun = asyncio.Event()
        self.swallowed = 0
        self._swallows = swallows
        self._gate = Gate()

    async def hold(self) -> str:
        self.begun.set()
        while True:
            try:
                await within(self._gate.wait())
            except asyncio.CancelledError:
                if self.swallowed == self._swallows:
                    raise
                self.swallowed += 1
            else:
                return "at last"

    async def arrival(self) -> None:
        await within(self.begun.wait())

    def let_go(self) -> None:
        self._gate.open()


class Traced(Line):
    """A store that notes, in each of its decisions, how far the boundary of each run has come by it.

    It looks in the decision's own transaction, with the runs locked: whoever looked behind the commit could find that the next
    decision had been quicker. Writes of values carry no fact of a boundary.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.stages: dict[RunId, list[str]] = {}

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        def noting(tx: Transaction) -> T:
            value = fn(tx)
            runs = tx.runs.page(tenant="local", statuses=(), before=None, limit=50)
            for run_id in tx.runs.lock_many([run.id for run in runs]):
                self._note(run_id, stage_tx(tx, run_id))
            return value

        return await super().transact(noting)

    def _note(self, run_id: RunId, now: str) -> None:
        seen = self.stages.setdefault(run_id, [])
        if not seen or seen[-1] != now:
            seen.append(now)

    async def has_ended(self, run_id: RunId) -> bool:
        """Whether the last stage of a run's boundary has been noted."""
        return self.stages.get(run_id, [""])[-1].endswith("T")


def stage_tx(tx: Transaction, run_id: RunId) -> str:
    """Return a run's status and which facts of its boundary are stored: `settling CF`."""
    run = tx.runs.get(run_id)
    assert run is not None
    occurrence = tx.terminal.occurrence(run_id)
    stream = tx.streams.state(run_id)
    facts = {
        "C": occurrence is not None,
        "F": stream is not None and stream.frozen_seq is not None,
        "P": occurrence is not None and tx.terminal.outcome(occurrence.id) is not None,
        "T": tx.terminal.receipt(run_id) is not None,
    }
    return f"{run.status} {''.join(letter for letter, is_there in facts.items() if is_there)}".strip()


async def stage(cluster: Cluster, run_id: RunId) -> str:
    """Return what `stage_tx` says now."""
    return await cluster.store.read(lambda tx: stage_tx(tx, run_id))


async def proven(cluster: Cluster, run_id: RunId) -> TerminalReceipt:
    """Wait for a run's receipt and have every claim of it computed again."""
    receipt = await cluster.receipt(run_id)
    bundle = await cluster.store.read(lambda tx: gather_tx(tx, run_id))
    require(verify(bundle), subject=run_id)
    return receipt


async def cancel(
    cluster: Cluster,
    run_id: RunId,
    *,
    mode: CancelMode = CancelMode.NOW,
    scope: CancelScope = CancelScope.TREE,
    grace_ms: int | None = None,
    key: str | None = None,
) -> CancelAdmission:
    """Cancel as a user does, from a process that runs nothing."""
    return await within(
        cluster.service.cancel(run_id, reason="changed my mind", mode=mode, scope=scope, grace_ms=grace_ms, key=key)
    )


async def cancelled(cluster: Cluster, run_id: RunId, *, grace_ms: int | None = None) -> TerminalReceipt:
    """Cancel a run, wait for its boundary, and prove it."""
    await cancel(cluster, run_id, grace_ms=grace_ms)
    return await proven(cluster, run_id)


async def cancel_impatiently(cluster: Cluster, run_id: RunId) -> CancelAdmission:
    """Cancel with no grace and no time for the holder's evidence: anybody may finish the settlement at once."""
    client = cluster.host(settings=replace(FAST, grace_ms=0, drain_ms=0)).service
    return await within(client.cancel(run_id, reason="changed my mind"))


def waits_at(gate: Gate) -> Agent:
    """Make an agent of one step, that waits at a gate."""

    async def waits(run: Run) -> str:
        await run.step(gate.wait)
        return "done"

    return declare_agent(waits)


def awaits(child: Agent) -> Agent:
    """Make a parent that starts one child and waits for its end."""

    async def top(run: Run) -> None:
        await (await run.spawn(child)).outcome()

    return declare_agent(top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The records of a boundary, as far as they are stored."""

    occurrence: Occurrence | None
    stream: StreamState | None
    outcome: PersistenceOutcome | None
    receipt: TerminalReceipt | None


async def facts_of(cluster: Cluster, run_id: RunId) -> Facts:
    """Read them."""
    inspection = await cluster.service.inspect(run_id)
    return Facts(
        occurrence=inspection.occurrence, stream=inspection.stream, outcome=inspection.outcome, receipt=inspection.receipt
    )


async def dies(client: Host, run_id: RunId) -> None:
    """Have a client cancel a run and die at its crash point."""
    task = asyncio.create_task(client.service.cancel(run_id))
    await within(client.died.wait())
    await asyncio.wait({task})
    assert task.exception() is not None


async def read_frames(cluster: Cluster, run_id: RunId) -> list[object]:
    """Read a stream until it says that nothing new is there, or that it ends."""
    frames: list[object] = []
    async for frame in read_stream(cluster.env, run_id, keep_alive_ms=1):
        frames.append(frame)
        if isinstance(frame, KeepAlive):
            break
    return frames


async def is_at(cluster: Cluster, run_id: RunId, wanted: str) -> bool:
    """Whether `stage_tx` says this by now."""
    return await stage(cluster, run_id) == wanted


async def has_evidence(cluster: Cluster, run_id: RunId) -> bool:
    """Whether something that came late was kept."""
    return bool((await cluster.service.inspect(run_id)).evidence)
