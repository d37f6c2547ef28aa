"""Runs as targets of commands: a staged cancel, proved against the run's own receipt and never against the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quiesce import Quiesce, Run, agent
from quiesce.domain.boundary import CancelScope
from quiesce.domain.deliveries import Admission, Effect, Settlement
from quiesce.domain.errors import InvalidInput
from quiesce.domain.runs import RunStatus
from quiesce.owners import CommandRequest, IntentStatus, Target
from quiesce.runtime.environment import Settings
from quiesce.runtime.run_owner import CANCEL, cancel_command
from quiesce.runtime.service import Caller
from tests.channel.kit import Ledger

QUICK = Settings(poll_ms=20, sweep_ms=40, linger_ms=10, beat_ms=500, lease_ms=60_000)


@agent
async def says_hello(run: Run) -> str:
    await run.emit("hello")
    return "said"


@agent
async def waits_long(run: Run) -> str:
    await run.emit("begun")
    await run.sleep(3_600_000)
    return "never"


@pytest.fixture
async def q(url: str) -> AsyncIterator[Quiesce]:
    """A process that advances runs and delivers commands."""
    async with Quiesce(url, settings=QUICK, agents=[says_hello, waits_long]) as opened:
        yield opened


async def settled(q: Quiesce, wanted: CommandRequest) -> Settlement:
    """Stage a command, and wait until its delivery is settled."""
    entry = await q.settled(await q.stage(wanted), timeout_ms=60_000)
    assert entry.settlement is not None
    return entry.settlement


def stop(run_id: str, key: str = "press-1", **more: object) -> CommandRequest:
    return cancel_command(run_id, producer="console", producer_key=key, subject="ada", reason="enough", **more)  # type: ignore[arg-type]


@pytest.mark.req("CC-05", "CC-68", "CC-69", "NO-08", "NO-09", "RR-28")
async def test_a_staged_cancel_ends_the_run_and_its_receipt_names_the_admission(q: Quiesce) -> None:
    handle = await q.start(waits_long)
    settlement = await settled(q, stop(handle.id))
    receipt = await handle.receipt()
    assert receipt.status is RunStatus.CANCELLED
    assert receipt.reason_text == "enough"
    assert receipt.actor.name == "ada"
    assert settlement.receipt.verdict is Admission.ACCEPTED
    assert settlement.receipt.effect_ref == f"occurrence {receipt.occurrence_id}"
    occurrence = await q.env.store.read(lambda tx: tx.terminal.occurrence(handle.id))
    assert occurrence is not None
    assert occurrence.command_key == settlement.receipt.command_key


@pytest.mark.req("RR-28", "CC-42", "G-36")
async def test_a_cancel_of_a_completed_run_is_refused_and_that_is_no_failure(q: Quiesce) -> None:
    handle = await q.start(says_hello)
    receipt = await handle.receipt()
    settlement = await settled(q, stop(handle.id))
    assert settlement.receipt.verdict is Admission.REJECTED
    assert settlement.receipt.reason == "already terminal: completed"
    assert settlement.receipt.effect_ref == f"receipt {receipt.id}"
    assert await handle.status() is RunStatus.COMPLETED


@pytest.mark.req("G-38", "CC-12", "CC-13")
async def test_the_same_press_is_the_same_command_and_another_one_comes_too_late(q: Quiesce) -> None:
    handle = await q.start(waits_long)
    first = await settled(q, stop(handle.id))
    again = await settled(q, stop(handle.id))
    assert again == first
    await handle.receipt()
    other = await settled(q, stop(handle.id, "press-2"))
    assert (other.receipt.verdict, other.receipt.reason) == (Admission.REJECTED, "already terminal: cancelled")


@pytest.mark.req("C01", "CC-36")
@pytest.mark.parametrize("tenant", ["local", "somebody else"])
async def test_a_run_that_does_not_exist_for_its_tenant_is_a_refusal_that_can_be_seen(q: Quiesce, tenant: str) -> None:
    handle = await q.start(waits_long)
    q._caller = Caller(tenant=tenant)
    target = handle.id if tenant != "local" else "01a22ec6-0000-7000-8000-000000000000"
    staged = await q.stage(stop(target))
    entry = await q.settled(staged, timeout_ms=60_000)
    assert entry.effect is Effect.REJECTED
    assert entry.settlement is not None
    assert entry.settlement.receipt.reason == "no such run"
    q._caller = Caller()
    assert await handle.status() is not RunStatus.CANCELLED


@pytest.mark.req("C01", "C10")
async def test_a_cancel_that_comes_before_any_worker_stops_the_run_before_its_start(url: str) -> None:
    if url.startswith("memory"):
        url = "memory://"
    async with Quiesce(url, settings=QUICK, worker=False) as client:
        if not client.env.store.capabilities.shared_by_processes:
            handle = await client.start(waits_long)
            staged = await client.stage(stop(handle.id))
            assert staged.intent.status is IntentStatus.STAGED
            assert await handle.status() is RunStatus.PENDING
            return
        handle = await client.start(waits_long)
        await client.stage(stop(handle.id))
        run_id = handle.id
    async with Quiesce(url, settings=QUICK) as deliverer:
        receipt = await (await deliverer.handle(run_id)).receipt(timeout_ms=60_000)
        assert (receipt.status, receipt.never_started) == (RunStatus.CANCELLED, True)
        assert receipt.frontier.emitted_seq == 0


@pytest.mark.req("C14", "C11")
async def test_stopping_one_run_stops_one_run(q: Quiesce) -> None:
    handles = [await q.start(waits_long) for _ in range(5)]
    await settled(q, stop(handles[3].id))
    await handles[3].receipt()
    statuses = [await handle.status() for handle in handles]
    assert [status is RunStatus.CANCELLED for status in statuses] == [False, False, False, True, False]


@pytest.mark.req("CC-36", "CC-10")
async def test_a_command_that_cannot_be_read_is_refused_by_its_owner(q: Quiesce) -> None:
    handle = await q.start(waits_long)
    target = Target(owner="run", id=handle.id)
    wanted = CommandRequest(kind=CANCEL, target=target, producer="t", producer_key="k", subject="ada", payload={"mode": "gently"})
    settlement = await settled(q, wanted)
    assert settlement.receipt.verdict is Admission.REJECTED
    assert "cannot be read" in settlement.receipt.reason
    assert await handle.status() is not RunStatus.CANCELLED


def test_the_command_says_how_far_it_reaches() -> None:
    wanted = stop("r-1", scope=CancelScope.RUN)
    assert wanted.kind.overtakes
    assert wanted.payload == {"reason": "enough", "mode": "now", "scope": "run", "grace_ms": None}


async def test_an_owner_is_added_before_the_process_begins(q: Quiesce) -> None:
    with pytest.raises(InvalidInput, match="before `open`"):
        q.owner(Ledger())
