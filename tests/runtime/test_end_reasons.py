"""Why a run ended, and who ended it: one reason and one actor for each end (C20)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.runs import RunStatus
from quiesce.runtime.cancel import CancelRequest
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from tests.runtime.cancel_kit import cancel, proven
from tests.runtime.kit import FAST, Cluster, Gate, eventually, within

FOR_GOOD = replace(FAST, shutdown_ms=0)
"""Of a worker that is not to wait for what is in flight when it is closed."""


@pytest.mark.req("C20", "TR-05", "TR-51", "G-05", "G-06")
async def test_six_ends_have_six_reasons_and_only_the_first_says_user(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> None:
        await run.step(gate.wait)

    below = declare_agent(waits, name="below")

    async def parent(run: Run) -> None:
        await (await run.spawn(below)).outcome()

    async def spends(run: Run) -> None:
        await run.step(gate.wait, reserve={"tokens": 9})

    waiting, parents = declare_agent(waits), declare_agent(parent)
    spending = declare_agent(spends)
    await cluster.start(waiting, below, parents, spending)
    by_user = await cluster.submit(waiting)
    await gate.arrival()
    await cancel(cluster, by_user)
    root = await cluster.submit(parents)
    await eventually(lambda: _has_child(cluster, root))
    await cancel(cluster, root)
    by_parent = (await cluster.service.inspect(root)).children[0].id
    now = await cluster.store.read(lambda tx: tx.now)
    by_clock = await cluster.submit(waiting, deadline_at=after_ms(now, 100))
    by_budget = await cluster.submit(spending, budget={"tokens": 8})
    by_shutdown = await _loses_its_worker_for_good(cluster)
    by_newer = await cluster.submit(waiting)
    front_end = Actor(kind=ActorKind.SERVICE, name="front end")
    request = CancelRequest(run_id=by_newer, actor=front_end, key="m-2", reason=Reason.SUPERSEDED, text="a newer message")
    await cluster.service.admit(request)
    ends = {}
    for run_id in (by_user, by_parent, by_clock, by_budget, by_shutdown, by_newer):
        receipt = await proven(cluster, run_id)
        ends[str(receipt.reason)] = (str(receipt.cause), str(receipt.actor.kind), receipt.actor.name)
    assert ends == {
        "user_cancel": ("explicit_cancel", "user", "local"),
        "parent_cancel": ("explicit_cancel", "run", root),
        "deadline": ("failed", "service", "clock"),
        "budget": ("failed", "run", by_budget),
        "worker_shutdown": ("failed", "service", "worker"),
        "superseded": ("explicit_cancel", "service", "front end"),
    }


async def _has_child(cluster: Cluster, run_id: RunId) -> bool:
    return bool((await cluster.service.inspect(run_id)).children)


async def _loses_its_worker_for_good(cluster: Cluster) -> RunId:
    gate = Gate()

    async def leaves(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(leaves)
    host = await cluster.start(agent, settings=FOR_GOOD)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await within(host.worker.close(end_runs=True))
    return run_id


@pytest.mark.req("C20", "TR-05", "TR-51")
async def test_a_run_whose_every_holder_died_says_that_its_process_was_lost(cluster: Cluster) -> None:
    async def dies(run: Run) -> None:
        await run.step(Gate().wait)

    agent = declare_agent(dies)
    limits = replace(DEFAULT_LIMITS, attempts_max=1)
    first = cluster.host(agent, crash_at="claim.after", limits=limits)
    await first.start()
    run_id = await cluster.submit(agent)
    await first.death()
    await cluster.start(agent, limits=limits, name="undertaker")
    receipt = await proven(cluster, run_id)
    ended = (receipt.reason, receipt.status, receipt.actor.kind, receipt.actor.name)
    assert ended == (Reason.PROCESS_LOST, RunStatus.FAILED, ActorKind.SERVICE, "undertaker")


@pytest.mark.req("C20", "C12", "TR-05")
async def test_a_worker_that_is_stopped_for_good_ends_the_runs_it_holds_and_no_others(cluster: Cluster) -> None:
    gate = Gate()

    async def works(run: Run) -> None:
        await run.step(gate.wait)

    async def sleeps(run: Run) -> None:
        await run.sleep(3_600)

    agents = declare_agent(works), declare_agent(sleeps)
    host = await cluster.start(*agents, settings=FOR_GOOD)
    run_id = await cluster.submit(agents[0])
    asleep = await cluster.submit(agents[1])
    await gate.arrival()
    await cluster.reaches(asleep, RunStatus.WAITING)
    await within(host.worker.close(end_runs=True))
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason, receipt.actor.name) == (RunStatus.FAILED, Reason.WORKER_SHUTDOWN, "worker")
    assert (receipt.cleanup_completed, receipt.unresolved) == (True, ())
    assert (await cluster.run(asleep)).status is RunStatus.WAITING
