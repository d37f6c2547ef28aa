"""The terminal boundary C·X → F → P → T: its order, and its recovery from a stop between any two of them (TR-18, TR-59)."""

from __future__ import annotations

from typing import Final

import pytest

from quiesce.domain.boundary import (
    GapKind,
)
from quiesce.domain.errors import SettlementPending
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.readers import KeepAlive, StreamEnd
from quiesce.runtime.registry import Agent, declare_agent
from quiesce.runtime.settlement import Cleanup, publish_tx, settle
from tests.runtime.cancel_kit import (
    Traced,
    cancel,
    dies,
    facts_of,
    proven,
    read_frames,
    stage,
)
from tests.runtime.kit import Cluster, Gate, eventually


class Waiting:
    """An agent that has kept and shown something, and then waits in a step."""

    def __init__(self) -> None:
        self.gate = Gate()

        async def waits(run: Run) -> str:
            await run.emit("covered")
            await run.checkpoint({"so": "far"})
            await run.emit("seen")
            await run.step(self.gate.wait)
            return "done"

        self.agent: Agent = declare_agent(waits)


# -- the order -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-18", "TR-19", "TR-47", "TR-07")
async def test_each_fact_of_a_cancel_is_stored_before_the_next(cluster: Cluster) -> None:
    traced = Traced(cluster.store)
    world, own = Waiting(), Cluster(traced)
    await own.start(world.agent)
    run_id = await own.submit(world.agent)
    await world.gate.arrival()
    await cancel(own, run_id)
    await proven(own, run_id)
    await eventually(lambda: traced.has_ended(run_id))
    expected = ["running", "settling C", "settling CF", "settling CFP", "cancelled CFPT"]
    assert [s for s in traced.stages[run_id] if s != "pending"] == expected
    await own.close()


@pytest.mark.req("TR-18", "TR-19", "G-30")
@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_no_part_of_an_end_without_a_cancel_is_ever_seen_alone(cluster: Cluster, end: str) -> None:
    traced = Traced(cluster.store)
    own = Cluster(traced)

    async def ends(run: Run) -> str:
        await run.emit("seen")
        if end == "failed":
            raise ValueError("broken")
        return "done"

    agent = declare_agent(ends)
    await own.start(agent)
    run_id = await own.submit(agent)
    await proven(own, run_id)
    await eventually(lambda: traced.has_ended(run_id))
    assert [s for s in traced.stages[run_id] if s != "pending"] == ["running", f"{end} CFPT"]
    await own.close()


# -- a stop between each pair, and what recovery makes of it -----------------------------------------------------------------

STOPS: Final = {
    "cancel.after": "settling C",
    "freeze.after": "settling CF",
    "outcome.after": "settling CFP",
    "publish.inside": "settling CFP",
}


async def _stopped(cluster: Cluster, world: Waiting, point: str, *, by: str) -> RunId:
    """Cancel a run such that whoever walks its boundary, its holder or another process, dies at a point."""
    holder = await cluster.start(world.agent, crash_at=point if by == "holder" else "")
    run_id = await cluster.submit(world.agent)
    await world.gate.arrival()
    if by == "holder":
        await cancel(cluster, run_id)
        await holder.death()
        return run_id
    await holder.kill()
    await dies(cluster.host(crash_at=point), run_id)
    return run_id


@pytest.mark.req("TR-07", "TR-18", "TR-19", "TR-20", "TR-28", "TR-47", "TR-59")
@pytest.mark.parametrize(
    ("by", "point"), [(by, p) for by in ("holder", "other") for p in STOPS if (by, p) != ("holder", "cancel.after")]
)
async def test_between_two_facts_a_run_settles_and_recovery_keeps_the_facts_that_stand(
    cluster: Cluster, by: str, point: str
) -> None:
    world = Waiting()
    run_id = await _stopped(cluster, world, point, by=by)
    assert await stage(cluster, run_id) == STOPS[point]
    inspection = await cluster.service.inspect(run_id)
    assert (inspection.run.is_terminal, inspection.to_json()["is_settling"]) == (False, True)
    assert "no boundary is published" in inspection.explain()
    with pytest.raises(SettlementPending):
        await cluster.service.receipt(run_id)
    *_, last = await read_frames(cluster, run_id)
    assert last == KeepAlive(status=RunStatus.SETTLING)
    before = await facts_of(cluster, run_id)
    receipt = await proven(cluster, run_id)
    after = await facts_of(cluster, run_id)
    assert after.occurrence == before.occurrence
    assert before.outcome in (None, after.outcome)
    if before.stream is not None and before.stream.frozen_seq is not None:
        assert after.stream == before.stream
    assert after.occurrence is not None
    assert after.outcome is not None
    assert (receipt.occurrence_id, receipt.outcome_id) == (after.occurrence.id, after.outcome.id)
    assert after.outcome.established_by == ("holder" if by == "holder" and before.outcome else "recovery")
    assert (receipt.status, receipt.frontier.emitted_seq, receipt.gap.kind) == (RunStatus.CANCELLED, 2, GapKind.RECOVERABLE)
    assert isinstance((await read_frames(cluster, run_id))[-1], StreamEnd)
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("TR-18", "TR-59")
@pytest.mark.parametrize("point", ["cancel.before", "cancel.inside"])
async def test_a_cancel_whose_client_dies_before_its_commit_has_not_taken_place(cluster: Cluster, point: str) -> None:
    world = Waiting()
    await cluster.start(world.agent)
    run_id = await cluster.submit(world.agent)
    await world.gate.arrival()
    await dies(cluster.host(crash_at=point), run_id)
    assert await stage(cluster, run_id) == "running"
    world.gate.open()
    assert await cluster.result(run_id) == "done"


@pytest.mark.req("TR-18", "TR-59", "TR-19")
@pytest.mark.parametrize("point", ["end.before", "end.inside", "end.after"])
async def test_a_completion_whose_process_dies_is_whole_or_is_made_again(cluster: Cluster, point: str) -> None:
    world = Waiting()
    world.gate.open()
    first = await cluster.start(world.agent, crash_at=point)
    run_id = await cluster.submit(world.agent)
    await first.death()
    assert await stage(cluster, run_id) == ("completed CFPT" if point == "end.after" else "running")
    await cluster.start(world.agent)
    assert await cluster.result(run_id) == "done"
    receipt = await proven(cluster, run_id)
    assert receipt.attempt == (1 if point == "end.after" else 2)
    assert world.gate.arrivals == 1


@pytest.mark.req("TR-59", "TR-16")
async def test_each_step_taken_again_returns_the_first_record(cluster: Cluster) -> None:
    world = Waiting()
    run_id = await _stopped(cluster, world, "outcome.after", by="other")
    receipt = await proven(cluster, run_id)
    before = await facts_of(cluster, run_id)
    cleanup = Cleanup(attempted=False, completed=False, escalated=True, emitted_seq=99)
    assert await settle(cluster.env, run_id, cleanup) == receipt
    again = await cluster.store.transact(lambda tx: publish_tx(tx, run_id, ReceiptId("other"), store_durability="none"))
    assert again == receipt
    assert await facts_of(cluster, run_id) == before


@pytest.mark.req("TR-59", "TR-07", "TR-19")
async def test_nothing_is_published_from_a_c_without_a_p(cluster: Cluster) -> None:
    world = Waiting()
    run_id = await _stopped(cluster, world, "freeze.after", by="other")
    published = await cluster.store.transact(lambda tx: publish_tx(tx, run_id, ReceiptId("r"), store_durability="none"))
    assert published is None
    assert await stage(cluster, run_id) == "settling CF"
