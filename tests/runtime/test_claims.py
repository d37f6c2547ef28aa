"""Claims: one holder at a time, judged by lease and fence; a holder that was passed by changes nothing (RR-02...RR-08)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.errors import BindingMismatch, LeaseBusy, Refused, required
from quiesce.domain.ids import RunId, WorkerId
from quiesce.domain.limits import Limits
from quiesce.domain.runs import RunStatus
from quiesce.domain.workers import AttemptEnd
from quiesce.ports.store import Transaction
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import FAST, LASTING, Cluster, Gate, Host, eventually, is_draining, within


@pytest.mark.req("RR-02", "RR-03", "RR-08")
async def test_while_the_lease_holds_a_second_claimant_is_told_who_and_until_when(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(waits)
    first = await cluster.start(agent, name="first")
    run_id = await cluster.submit(agent)
    await gate.arrival()
    second = await cluster.host(agent, name="second").start(claims=False)
    with pytest.raises(LeaseBusy, match="first") as busy:
        await second.worker.take(run_id)
    assert busy.value.details["holder"] == "first"
    assert busy.value.details["expires_at"]
    assert (await cluster.run(run_id)).worker_id == first.worker.id
    gate.open()
    await cluster.result(run_id)
    with pytest.raises(Refused, match="completed"):
        await second.worker.take(run_id)


@pytest.mark.req("RR-04", "RR-08", "RR-15", "C71")
async def test_after_expiry_a_successor_takes_over_and_the_fence_grows(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> str:
        await run.step(gate.wait)
        return run.id

    agent = declare_agent(waits)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    before = await cluster.run(run_id)
    await first.kill(lease_ends=False)
    await cluster.store.transact(partial(_expire, worker_id=first.worker.id))
    second = await cluster.start(agent)

    async def is_taken() -> bool:
        return (await cluster.run(run_id)).worker_id == second.worker.id

    await eventually(is_taken)
    after = await cluster.run(run_id)
    assert after.fence > before.fence
    gate.open()
    assert await cluster.result(run_id) == run_id
    attempts = (await cluster.service.inspect(run_id)).attempts
    assert [(a.number, a.end) for a in attempts] == [(1, AttemptEnd.EXPIRED), (2, AttemptEnd.ENDED)]


def _expire(tx: Transaction, worker_id: WorkerId) -> None:
    """Have a lease end now: its row stays, as that of a holder that no longer renews it."""
    worker = required(tx.workers.get(worker_id), "the holder had a lease")
    tx.workers.remove(worker_id)
    tx.workers.insert(replace(worker, lease_expires_at=tx.now))


@pytest.mark.req("C66", "RR-02")
async def test_twenty_runs_and_three_workers_make_twenty_attempts(cluster: Cluster) -> None:
    started: list[str] = []

    async def counts(run: Run) -> None:
        started.append(run.id)

    agent = declare_agent(counts)
    run_ids = [await cluster.submit(agent) for _ in range(20)]
    hosts = [cluster.host(agent, name="twin") for _ in range(3)]
    await asyncio.gather(*[host.start() for host in hosts])
    for run_id in run_ids:
        assert (await cluster.receipt(run_id)).attempt == 1
    assert sorted(started) == sorted(run_ids)


@pytest.mark.req("C66")
async def test_of_two_claims_of_one_dead_holders_run_one_ends_without_executing(cluster: Cluster) -> None:
    starts = 0
    gate = Gate()

    async def counts(run: Run) -> None:
        nonlocal starts
        starts += 1
        await gate.wait()

    agent = declare_agent(counts)
    dead = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await dead.kill()
    rescuers = [await cluster.host(agent).start(claims=False) for _ in range(2)]
    claims = await asyncio.gather(*[host.worker.take(run_id) for host in rescuers], return_exceptions=True)
    assert sum(isinstance(claim, LeaseBusy) for claim in claims) == 1
    gate.open()
    await cluster.receipt(run_id)
    assert starts == 2


@pytest.mark.req("C67")
async def test_a_draining_worker_claims_nothing(cluster: Cluster) -> None:
    gate = Gate()

    async def waits(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(waits)
    old = await cluster.start(agent, name="twin")
    busy_with = await cluster.submit(agent)
    await gate.arrival()
    closing = asyncio.create_task(old.worker.close())
    await eventually(lambda: is_draining(cluster.store, old.worker.id))
    fresh = await cluster.submit(agent)
    cluster.store.notifier.ring("work")
    gate.open()
    await within(closing)
    assert old.worker.state.claimed == 1
    assert (await cluster.run(fresh)).attempt == 0
    await cluster.start(agent, name="twin")
    await cluster.result(fresh)
    await cluster.result(busy_with)


@pytest.mark.req("C66", "C64")
async def test_a_worker_whose_lease_others_removed_ends_its_attempts_and_comes_back_as_another(cluster: Cluster) -> None:
    gate = Gate()
    result_of_first: list[BaseException | None] = []

    async def waits(run: Run) -> str:
        try:
            await gate.wait()
        except BaseException as error:
            result_of_first.append(error)
            raise
        return "second"

    agent = declare_agent(waits)
    first = await cluster.start(agent, settings=replace(FAST, beat_ms=30, concurrency=1))
    run_id = await cluster.submit(agent)
    await gate.arrival()
    old_id = first.worker.id
    second = await cluster.host(agent).start(claims=False)
    first.line.hold()  # or it would come back, and be quicker than the second
    await cluster.store.transact(lambda tx: tx.workers.remove(old_id))
    await second.worker.take(run_id)
    first.line.release()

    async def has_ended() -> bool:
        return first.worker.state.ends.get(AttemptEnd.EXPIRED) == 1

    await eventually(has_ended)
    assert isinstance(result_of_first[0], asyncio.CancelledError)

    async def has_come_back() -> bool:
        return first.worker._worker is not None and first.worker.id != old_id

    await eventually(has_come_back)
    gate.open()
    assert await cluster.result(run_id) == "second"
    again = await cluster.submit(agent)
    assert await cluster.result(again) == "second"
    assert first.worker.state.claimed == 2


@pytest.mark.req("C47")
async def test_a_run_that_kills_every_holder_ends_as_process_lost(cluster: Cluster) -> None:
    starts = 0
    gates = [Gate(), Gate(), Gate()]

    async def deadly(run: Run) -> None:
        nonlocal starts
        starts += 1
        await gates[starts - 1].wait()

    agent = declare_agent(deadly)
    run_id = await cluster.submit(agent)
    for gate in gates[:2]:
        host = await cluster.start(agent, limits=Limits(attempts_max=2))
        await gate.arrival()
        await host.kill()
    await cluster.start(agent, limits=Limits(attempts_max=2))
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, Reason.PROCESS_LOST)
    assert "2 attempts" in receipt.reason_text
    assert starts == 2


@pytest.mark.req("C47", "C61")
async def test_attempts_that_ended_well_do_not_count_as_losses(cluster: Cluster) -> None:
    async def naps(run: Run) -> str:
        for _ in range(4):
            await (await run.spawn(LASTING)).outcome()
        return "rested"

    agent = declare_agent(naps)
    await cluster.start(agent, limits=Limits(attempts_max=2))
    run_id = await cluster.submit(agent)
    for _ in range(4):
        await cluster.wake(run_id)
    assert await cluster.result(run_id) == "rested"
    assert (await cluster.run(run_id)).attempt > 2


@pytest.mark.req("RR-17", "RR-40")
async def test_a_run_is_never_continued_under_another_binding(cluster: Cluster) -> None:
    ran: list[str] = []

    async def live(run: Run) -> str:
        ran.append(str(run.bindings["model"]))
        return "done"

    bound = declare_agent(live, bindings={"model": "openai:x@host"})
    fixture = declare_agent(live, bindings={"model": "scripted:x"})
    unbound = declare_agent(live)
    run_id = await cluster.submit(bound)
    for offered in (fixture, unbound):
        host = await cluster.start(offered)
        with pytest.raises(BindingMismatch, match="openai:x@host"):
            await host.worker.take(run_id)
        probe = await cluster.submit(offered, bindings={"model": "scripted:x"} if offered is fixture else {"model": ""})
        await eventually(lambda h=host: _has_looked(h))  # type: ignore[misc]
        await cluster.service.cancel(probe)
        assert (await cluster.run(run_id)).status is RunStatus.PENDING
        await host.close()
    await cluster.start(bound)
    assert await cluster.result(run_id) == "done"
    assert ran[-1] == "openai:x@host"


async def _has_looked(host: object) -> bool:
    return bool(getattr(host, "worker")._foreign)  # noqa: B009


@pytest.mark.req("RR-40", "C66")
async def test_a_worker_remembers_of_runs_that_it_left_to_others_only_those_that_are_still_there(cluster: Cluster) -> None:
    async def live(run: Run) -> str:
        return "done"

    foreign = declare_agent(live, bindings={"model": "openai:x@host"})
    host = await cluster.start(declare_agent(live, bindings={"model": "scripted:x"}))
    run_ids = [await cluster.submit(foreign) for _ in range(3)]
    await eventually(lambda: _remembers(host, run_ids))
    for run_id in run_ids[:2]:
        await cluster.service.cancel(run_id)
    await eventually(lambda: _remembers(host, run_ids[2:]))
    await cluster.start(foreign)
    assert await cluster.result(run_ids[2]) == "done"
    await eventually(lambda: _remembers(host, []))


async def _remembers(host: Host, run_ids: list[RunId]) -> bool:
    return host.worker._foreign == set(run_ids)
