"""Cancel of runs whose workers are gone, or are going (C12, C28)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.errors import ContinuationRefused
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.cancel_kit import (
    LOCAL,
    cancel_impatiently,
    cancelled,
    proven,
    stage,
    waits_at,
)
from tests.runtime.kit import FAST, Cluster, Gate, eventually, is_draining, within


@pytest.mark.req("C28", "RR-12", "TR-08", "TR-10")
@pytest.mark.parametrize("lease", ["still holds", "has run out"])
@pytest.mark.parametrize("effect", ["once", "pure"])
async def test_a_run_whose_worker_is_dead_ends_and_its_thread_is_free_unless_an_effect_is_unknown(
    cluster: Cluster, lease: str, effect: str
) -> None:
    gate = Gate()

    async def act() -> None:
        await gate.wait()

    tool = declare_tool(act, effect=effect)

    async def acts(run: Run) -> None:
        await run.call(tool)

    async def fine(run: Run) -> str:
        return "fine"

    agent, other = declare_agent(acts), declare_agent(fine)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, thread="t-1")
    await gate.arrival()
    await host.kill(lease_ends=lease == "has run out")
    await cancel_impatiently(cluster, run_id)
    expected = "cancelled CFPT" if lease == "has run out" else "settling C"
    assert await stage(cluster, run_id) == expected
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.CANCELLED, Reason.USER_CANCEL)
    assert (receipt.cleanup_attempted, receipt.cleanup_completed) == (False, False)
    inspection = await cluster.service.inspect(run_id)
    assert inspection.outcome is not None
    assert inspection.outcome.established_by == "recovery"
    assert (inspection.run.worker_id, inspection.is_held) == (None, False)
    await cluster.start(agent, other)
    if effect == "pure":
        assert receipt.unresolved == ()
        assert await cluster.result(await cluster.submit(other, thread="t-1")) == "fine"
    else:
        assert [(o["operation"], o["status"]) for o in receipt.unresolved] == [("1", "unknown")]
        with pytest.raises(ContinuationRefused, match="block"):
            await cluster.submit(other, thread="t-1")
    assert gate.arrivals == 1


@pytest.mark.req("C12")
async def test_a_draining_worker_obeys_a_cancel_and_the_reason_is_the_user_s(cluster: Cluster) -> None:
    gate = Gate()
    agent = waits_at(gate)
    host = await cluster.start(agent, settings=replace(FAST, shutdown_ms=60_000))
    run_id = await cluster.submit(agent)
    await gate.arrival()
    closing = asyncio.create_task(host.worker.close())
    await eventually(lambda: is_draining(cluster.store, host.worker.id))
    receipt = await cancelled(cluster, run_id)
    assert (receipt.status, receipt.reason, receipt.actor) == (RunStatus.CANCELLED, Reason.USER_CANCEL, LOCAL)
    await within(closing)
