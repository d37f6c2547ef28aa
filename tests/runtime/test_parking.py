"""Waiting without a process: a run parks when all its branches wait, and only then, and no wake-up is lost (C13, C61)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.ids import OutcomeId, ReceiptId, RunId
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.domain.workers import AttemptEnd
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelRequest, cancel_tx
from quiesce.runtime.context import Run
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.registry import Registry, declare_agent
from quiesce.runtime.settlement import Cleanup, establish_tx, freeze_tx, publish_tx
from quiesce.runtime.worker import RunWorker
from tests.runtime.kit import FAST, Cluster, Gate, within


@pytest.mark.req("C61", "RR-15")
async def test_a_long_sleep_holds_no_worker_and_survives_its_death(cluster: Cluster) -> None:
    async def sleeps(run: Run) -> str:
        await run.sleep(0.3)
        return "awake"

    agent = declare_agent(sleeps)
    first = await cluster.start(agent, crash_at="park.after", settings=replace(FAST, linger_ms=0))
    run_id = await cluster.submit(agent)
    await first.death()
    parked = await cluster.run(run_id)
    assert (parked.status, parked.worker_id) == (RunStatus.WAITING, None)
    assert [w.kind for w in parked.waits] == [WaitKind.TIMER]
    await cluster.start(agent)
    assert await cluster.result(run_id) == "awake"
    run = await cluster.run(run_id)
    assert run.ended_at is not None
    assert parked.due_at is not None
    assert run.ended_at >= parked.due_at
    attempts = (await cluster.service.inspect(run_id)).attempts
    assert [a.end for a in attempts] == [AttemptEnd.PARKED, AttemptEnd.ENDED]


@pytest.mark.req("C13", "C61", "RR-02")
async def test_a_child_that_ends_just_before_its_parent_parks_wakes_it_all_the_same(cluster: Cluster) -> None:
    async def never_claimed(run: Run) -> None: ...

    child = declare_agent(never_claimed)

    async def waits(run: Run) -> str:
        return str((await (await run.spawn(child)).outcome()).reason)

    agent = declare_agent(waits)
    store = cluster.store

    def child_of(tx: Transaction) -> RunId:
        return next(run.id for run in tx.runs.page(tenant="local", statuses=[], before=None, limit=9) if run.parent_id)

    def end_child(_: str) -> None:
        run_id = store.transact_blocking(child_of)
        request = CancelRequest(run_id=run_id, actor=Actor(kind=ActorKind.USER, name="ada"), key="k")
        clean = Cleanup(attempted=True, completed=True)
        store.transact_blocking(lambda tx: cancel_tx(tx, cluster.env, request))
        store.transact_blocking(lambda tx: freeze_tx(tx, run_id))
        store.transact_blocking(lambda tx: establish_tx(tx, run_id, OutcomeId("0-outcome"), clean))
        store.transact_blocking(lambda tx: publish_tx(tx, run_id, ReceiptId("0-receipt"), store_durability="test"))

    host = cluster.host(agent, settings=replace(FAST, concurrency=1))  # the child is not claimed while its parent is held
    host.env = replace(host.env, crash=CrashPoints("park.before", 1, end_child))
    host.worker = RunWorker(host.env, Registry([agent]))
    await host.start()
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "user_cancel"
    assert (await cluster.service.inspect(run_id)).attempts[0].end is AttemptEnd.PARKED


@pytest.mark.req("C61")
async def test_a_run_does_not_park_while_a_branch_still_works(cluster: Cluster) -> None:
    gate = Gate()
    napped = asyncio.Event()

    async def mixed(run: Run) -> str:
        async def nap() -> None:
            await run.sleep(0.08)
            napped.set()

        napping = asyncio.create_task(nap())
        await run.step(gate.wait)
        await napping
        return "both"

    agent = declare_agent(mixed)
    await cluster.start(agent, settings=replace(FAST, linger_ms=1))
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await within(napped.wait())
    assert (await cluster.run(run_id)).status is RunStatus.RUNNING
    gate.open()
    assert await cluster.result(run_id) == "both"
    assert (await cluster.run(run_id)).attempt == 1


@pytest.mark.req("C61")
async def test_a_retry_that_hangs_is_tried_again_after_a_restart(cluster: Cluster) -> None:
    tries = 0
    hanging = Gate()

    async def fails_then_hangs() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("first")
        if tries == 2:
            await hanging.wait()
        return tries

    async def persists(run: Run) -> int:
        return await run.step(fails_then_hangs, retry=RetryPolicy(tries=5, first_delay_ms=60))

    agent = declare_agent(persists)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await hanging.arrival()
    assert (await cluster.run(run_id)).status is RunStatus.RUNNING
    await first.kill()
    await cluster.start(agent)
    assert await cluster.result(run_id) == 3
