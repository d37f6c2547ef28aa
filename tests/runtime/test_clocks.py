"""Clocks: leases, timers and deadlines are judged by the store's clock, whatever a process believes (C68, C69)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.operations import RetryPolicy
from quiesce.ports.store import Transaction
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import FAST, PATIENCE_S, Cluster, Gate, ShiftedClock, eventually

TWO_MINUTES_MS = 120_000


@pytest.mark.req("C68")
async def test_an_agent_that_blocks_the_loop_for_longer_than_the_lease_keeps_its_run(cluster: Cluster) -> None:
    leases: list[Instant] = []

    def look(tx: Transaction) -> bool:
        """Another process looks for work: not by now, but by when the lease seen before will have run out."""
        worker, (run,) = tx.workers.get(worker_id), tx.runs.page(tenant="local", statuses=(), before=None, limit=2)
        assert worker is not None
        if leases[-1:] == [worker.lease_expires_at]:
            return False  # not renewed since
        now = leases[-1] if leases else tx.now
        leases.append(worker.lease_expires_at)
        return run.is_claimable(now, holder_is_live=worker.is_live(now))

    async def blocks(run: Run) -> bool:
        """Keep the loop until the lease that it began with, and two after it, would have run out."""
        until = time.monotonic() + PATIENCE_S
        while len(leases) < 4 and time.monotonic() < until:
            if cluster.store.transact_blocking(look):
                return False
        return len(leases) == 4

    agent = declare_agent(blocks)
    host = await cluster.start(agent, settings=replace(FAST, beat_ms=60))
    worker_id = host.worker.id
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) is True
    assert (await cluster.receipt(run_id)).attempt == 1


@pytest.mark.req("C69")
@pytest.mark.parametrize("ahead_ms", [TWO_MINUTES_MS, -TWO_MINUTES_MS])
async def test_a_worker_whose_clock_is_wrong_takes_no_live_run(cluster: Cluster, ahead_ms: int) -> None:
    gate = Gate()

    async def waits(run: Run, where: str) -> str:
        if where == "gate":
            await run.step(gate.wait)
        return where

    agent = declare_agent(waits)
    healthy = await cluster.start(agent, settings=replace(FAST, concurrency=1))
    run_id = await cluster.submit(agent, "gate")
    await gate.arrival()
    clock = ShiftedClock(ahead_ms)
    wrong = await cluster.start(agent, clock=clock)
    assert await cluster.result(await cluster.submit(agent, "elsewhere")) == "elsewhere"
    held = await cluster.run(run_id)
    assert (held.attempt, held.worker_id) == (1, healthy.worker.id)
    assert wrong.worker.state.claimed == 1
    gate.open()
    assert await cluster.result(run_id) == "gate"


@pytest.mark.req("C69", "C68")
async def test_a_renewal_by_a_process_whose_clock_went_back_shortens_no_lease(cluster: Cluster) -> None:
    clock = ShiftedClock(0)
    host = await cluster.start(clock=clock, settings=replace(FAST, beat_ms=20))
    worker_id = host.worker.id

    async def lease() -> Instant:
        worker = await cluster.store.read(lambda tx: tx.workers.get(worker_id))
        assert worker is not None
        return worker.lease_expires_at

    before = await lease()
    clock.ahead_ms = -TWO_MINUTES_MS

    async def is_renewed() -> bool:
        return await lease() > before

    await eventually(is_renewed)


@pytest.mark.req("C69")
@pytest.mark.parametrize("ahead_ms", [TWO_MINUTES_MS, -TWO_MINUTES_MS])
async def test_timers_and_back_off_fire_by_one_clock(cluster: Cluster, ahead_ms: int) -> None:
    tries = 0

    async def fails_once() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("not yet")
        return "slept"

    async def naps(run: Run) -> str:
        await run.sleep(0.05)
        return await run.step(fails_once, retry=RetryPolicy(tries=2, first_delay_ms=50))

    agent = declare_agent(naps)
    await cluster.start(agent, clock=ShiftedClock(ahead_ms))
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "slept"
    run = await cluster.run(run_id)
    assert run.ended_at is not None
    assert run.ended_at >= after_ms(run.created_at, 95)


@pytest.mark.req("C69", "RR-18")
async def test_a_clock_that_is_ahead_ends_no_run_before_its_deadline(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> str:
        await run.step(gate.wait)
        return "in time"

    agent = declare_agent(waits)
    await cluster.start(agent, clock=ShiftedClock(TWO_MINUTES_MS))
    run_id = await cluster.submit(agent, timeout_ms=100_000)
    await gate.arrival()
    gate.open()
    assert await cluster.result(run_id) == "in time"


@pytest.mark.req("C69", "RR-18")
async def test_a_clock_that_is_behind_ends_a_run_at_its_deadline(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(waits)
    await cluster.start(agent, clock=ShiftedClock(-TWO_MINUTES_MS))
    run_id = await cluster.submit(agent, timeout_ms=150)
    assert (await cluster.receipt(run_id)).reason is Reason.DEADLINE
