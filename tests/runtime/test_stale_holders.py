"""A worker that was frozen past its lease, and goes on as if nothing had been: nothing that it still does takes effect (C64).

It has a result in hand, or is about to begin, store, wait, hand back or end. Meanwhile a worker of the same name has taken
the run over and ended it, or parked it. Neither bell nor heartbeat tells the frozen one: only its fence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from quiesce.adapters.artifact_directory import ArtifactDirectory
from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.evidence import EvidenceKind
from quiesce.domain.ids import OutcomeId, RunId, WorkerId
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.runs import Run as RunRow
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import Visibility
from quiesce.domain.workers import AttemptEnd, Renewal
from quiesce.domain.writes import RunWrite
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import plain_occurrence
from quiesce.runtime.claims import claim_tx, park_tx, register_tx, release_tx, renew_tx
from quiesce.runtime.context import Run
from quiesce.runtime.environment import Environment
from quiesce.runtime.registry import Tool, declare_agent, declare_tool
from quiesce.runtime.settlement import Cleanup, end_now_tx, establish_tx, freeze_tx
from tests.runtime.kit import Cluster, Gate, Host, eventually, within


async def sleeps(run: Run) -> None:
    """A child that soon holds no worker, and has not ended when the test has."""
    await run.sleep(86_400)


SLEEPER: Final = declare_agent(sleeps)


@dataclass(slots=True)
class Story:
    """An agent that does one deed: the first time only once it is thawed."""

    deed: str
    frozen: Gate
    begun: int = 0
    effects: int = 0

    async def act(self) -> str:
        if self.deed == "result of a call":
            await self.hold()
        self.effects += 1
        if self.deed == "step that fails and is tried again" and self.effects % 2:
            raise ConnectionError("not this time")
        return f"done {self.effects}"

    async def hold(self) -> None:
        """Wait to be frozen and thawed, the first time."""
        self.begun += 1
        if self.begun == 1:
            await self.frozen.wait()

    def tool(self) -> Tool:
        return declare_tool(self.act, effect="idempotent", name="act")

    async def live(self, run: Run) -> object:
        child = await run.spawn(SLEEPER) if self.deed == "park" else None
        if self.deed != "result of a call":
            await self.hold()
        if child is not None:
            return str((await child.outcome()).status)
        value = await DEEDS[self.deed](self, run)
        return value if isinstance(value, str) else "returned"


def _fails(_: Story, __: Run) -> Awaitable[object]:
    raise LookupError("the agent's own")


async def _returns(_: Story, __: Run) -> object:
    return "returned"


Deed = Callable[[Story, Run], Awaitable[object]]

DEEDS: Final[Mapping[str, Deed]] = {
    "step": lambda story, run: run.step(story.act),
    "step that reserves": lambda story, run: run.step(story.act, reserve={"tokens": 2}),
    "step that fails and is tried again": lambda story, run: run.step(story.act, retry=RetryPolicy(tries=2, first_delay_ms=1)),
    "call": lambda story, run: run.call(story.tool()),
    "result of a call": lambda story, run: run.call(story.tool()),
    "events": lambda story, run: run.emit(f"from attempt {story.begun}"),
    "events shown first": lambda story, run: run.emit(f"from attempt {story.begun}"),
    "checkpoint": lambda _, run: run.checkpoint({"at": "last"}),
    "artifact": lambda _, run: run.save_artifact("report.txt", "text"),
    "sleep": lambda _, run: run.sleep(0),
    "child": lambda _, run: run.spawn(SLEEPER),
    "park": _returns,
    "return": _returns,
    "raise": _fails,
    "leave": _returns,
}


async def _all_of(cluster: Cluster, run_id: RunId) -> Mapping[str, object]:
    """Return everything stored of a run but the evidence beside its journal."""

    def read(tx: Transaction) -> dict[str, object]:
        return {
            "run": tx.runs.get(run_id),
            "attempts": tx.runs.attempts(run_id),
            "children": tx.runs.children(run_id),
            "operations": tx.operations.of_run(run_id),
            "stream": tx.streams.state(run_id),
            "events": tx.streams.read(run_id, after=0, limit=1_000),
            "checkpoints": tx.checkpoints.of_run(run_id),
            "artifacts": tx.evidence.artifacts([run_id]),
            "end": (tx.terminal.occurrence(run_id), tx.terminal.receipt(run_id)),
        }

    return await cluster.store.read(read)


async def _freeze(host: Host) -> None:
    """Stop everything of a process that reaches the store; nothing will tell it what happens meanwhile, either."""

    async def notices_nothing() -> None:
        pass

    worker = host.worker
    worker._notice = notices_nothing  # type: ignore[method-assign]
    assert worker._keeper is not None
    await within(worker._keeper.close())
    host.line.hold()


async def _lease_ends(cluster: Cluster, host: Host) -> None:
    await cluster.store.transact(lambda tx: tx.workers.remove(host.worker.id))


@pytest.mark.req("C64", "RR-04", "RR-05", "RR-07", "CC-34")
@pytest.mark.parametrize("deed", DEEDS)
async def test_nothing_that_a_thawed_holder_does_takes_effect(cluster: Cluster, tmp_path: Path, deed: str) -> None:
    story = Story(deed, Gate())
    agent = declare_agent(story.live)
    files = ArtifactDirectory(tmp_path)
    first = await cluster.start(agent, name="A-0", artifacts=files)
    visibility = Visibility.SHOW_FIRST if deed == "events shown first" else Visibility.STORE_FIRST
    run_id = await cluster.submit(agent, budget={"tokens": 9, "tool_calls": 9}, visibility=visibility)
    await story.frozen.arrival()
    await _freeze(first)
    thawed = first.worker._held[run_id].task
    await _lease_ends(cluster, first)
    second = await cluster.start(agent, name="A-0", artifacts=files)
    last = RunStatus.WAITING if deed == "park" else RunStatus.FAILED if deed == "raise" else RunStatus.COMPLETED
    await cluster.reaches(run_id, last)
    await eventually(lambda: _is_at_rest(cluster, second, run_id))
    before, effects = await _all_of(cluster, run_id), story.effects

    first.line.release()
    if deed == "leave":
        await within(first.worker.close())
    story.frozen.open()
    assert await within(thawed) is AttemptEnd.EXPIRED
    await eventually(lambda: _is_idle(first))
    assert await _all_of(cluster, run_id) == before
    kinds = [e.kind for e in (await cluster.service.inspect(run_id)).evidence]
    assert kinds == ([EvidenceKind.LATE_RESULT] if deed == "result of a call" else [])
    if deed == "call":
        assert story.effects == effects, "a call leaves only behind its dispatch mark"


async def _is_idle(host: Host) -> bool:
    return not host.worker._held


async def _is_at_rest(cluster: Cluster, host: Host, run_id: RunId) -> bool:
    """Whether a host has nothing left to do: a child that was started sleeps."""
    children = (await cluster.service.inspect(run_id)).children
    return await _is_idle(host) and all(child.status is RunStatus.WAITING for child in children)


# -- the decisions themselves --------------------------------------------------------------------------------------------

Decision = Callable[[Transaction, Environment, RunRow], object]
"""A decision of a holder, by the run as that holder knows it."""


def _ends(tx: Transaction, env: Environment, run: RunRow) -> object:
    occurrence = plain_occurrence(env, tx.now, run, Reason.FINISHED, "", Actor(kind=ActorKind.RUN, name=run.id), 0)
    return end_now_tx(tx, env, RunWrite(run_id=run.id, fence=run.fence), occurrence, Cleanup(attempted=True, completed=True))


def _establishes(tx: Transaction, env: Environment, run: RunRow) -> object:
    return establish_tx(tx, run.id, OutcomeId(env.new_id()), Cleanup(attempted=True, completed=True), fence=run.fence)


DECISIONS: Final[Mapping[str, Decision]] = {
    "park": lambda tx, _, run: park_tx(tx, run.id, run.fence, ()),
    "release": lambda tx, _, run: release_tx(tx, run.id, run.fence),
    "give up": lambda tx, _, run: release_tx(tx, run.id, run.fence, end=AttemptEnd.EXPIRED),
    "end": _ends,
    "freeze": lambda tx, _, run: freeze_tx(tx, run.id, emitted_seq=0, fence=run.fence),
    "establish": _establishes,
}


@pytest.mark.req("C64", "RR-04", "RR-05", "RR-29")
@pytest.mark.parametrize("state", ["running", "settling"])
@pytest.mark.parametrize("decision", DECISIONS)
async def test_each_decision_of_a_holder_that_was_replaced_is_refused(cluster: Cluster, decision: str, state: str) -> None:
    run_id = await cluster.submit(SLEEPER)
    env = cluster.env

    def claims(tx: Transaction) -> RunRow:
        worker = register_tx(tx, worker_id=_worker_id(env), name="A-0", lease_ms=60_000)
        return claim_tx(tx, run_id, worker)

    old = await cluster.store.transact(claims)
    await cluster.store.transact(lambda tx: tx.workers.remove(_id_of(old)))
    new = await cluster.store.transact(claims)
    if state == "settling":
        await cluster.service.cancel(run_id)
    before = await _all_of(cluster, run_id)
    assert not await cluster.store.transact(lambda tx: DECISIONS[decision](tx, env, old))
    assert await _all_of(cluster, run_id) == before
    renewed = await cluster.store.transact(lambda tx: renew_tx(tx, worker_id=_id_of(old), lease_ms=60_000))
    assert renewed is Renewal.LOST
    belongs_to_state = ("freeze", "establish") if state == "settling" else ("park", "release", "give up", "end")
    if decision in belongs_to_state:  # it is the fence that made the difference
        if decision == "establish":
            await cluster.store.transact(lambda tx: freeze_tx(tx, run_id, emitted_seq=0, fence=new.fence))
        assert await cluster.store.transact(lambda tx: DECISIONS[decision](tx, env, new))


def _worker_id(env: Environment) -> WorkerId:
    return WorkerId(env.new_id())


def _id_of(run: RunRow) -> WorkerId:
    assert run.worker_id is not None
    return run.worker_id
