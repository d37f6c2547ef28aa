"""How far an interrupted effect had come: five cases and a sixth, told by stored facts alone (TR-43 to TR-45)."""

from __future__ import annotations

import pytest

from quiesce.domain.boundary import (
    Actor,
    ActorKind,
    Cause,
    GapKind,
    Reason,
)
from quiesce.domain.ids import RunId
from quiesce.domain.operations import OperationKind
from quiesce.runtime.cancel import CancelRequest
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.cancel_kit import (
    proven,
)
from tests.runtime.kit import Cluster


async def _case(cluster: Cluster, run_id: RunId) -> str:
    """Tell, from stored facts alone, how far an effect had come when its run ended."""
    receipt = await proven(cluster, run_id)
    operations = (await cluster.service.inspect(run_id)).operations
    call = next((o for o in operations if o.kind is OperationKind.CALL), None)
    if call is None:
        return "not executed"
    if any(o["operation"] == call.position for o in receipt.unresolved):
        return "unknown"
    marks = [n for n, o in enumerate(operations) if o.kind is OperationKind.CHECKPOINT]
    is_checkpointed = bool(marks) and operations.index(call) < marks[-1]
    if not is_checkpointed and any(o["operation"] == call.position for o in receipt.unconsumed):
        return "executed, not checkpointed"
    if is_checkpointed and receipt.gap.kind is GapKind.NONE:
        return "acknowledged, client gone" if receipt.cause is Cause.TRANSPORT_INTERRUPTED else "checkpointed, not acknowledged"
    return "cancelled after partial progress" if receipt.gap.kind is not GapKind.NONE else "none of these"


@pytest.mark.req("TR-43", "TR-45", "TR-44", "TR-42")
@pytest.mark.parametrize(
    ("point", "nth", "case"),
    [
        ("dispatch.before", 1, "not executed"),
        ("effect.after", 1, "unknown"),
        ("result.after", 1, "executed, not checkpointed"),
        ("checkpoint.after", 1, "checkpointed, not acknowledged"),
        ("checkpoint.after", 1, "acknowledged, client gone"),
        ("emit.after", 1, "cancelled after partial progress"),
    ],
)
async def test_how_far_an_interrupted_effect_had_come_is_told_by_stored_facts(
    cluster: Cluster, point: str, nth: int, case: str
) -> None:
    effects = 0

    async def pay() -> str:
        nonlocal effects
        effects += 1
        return "paid"

    tool = declare_tool(pay)

    async def propose() -> str:
        return "pay"

    async def buys(run: Run) -> None:
        await run.step(propose)
        await run.call(tool)
        await run.checkpoint("paid")
        await run.emit("thank you")
        await run.step(propose)

    agent = declare_agent(buys)
    host = await cluster.start(agent, crash_at=point, nth=nth)
    run_id = await cluster.submit(agent)
    await host.death()
    reason = Reason.CLIENT_LEFT if case == "acknowledged, client gone" else Reason.USER_CANCEL
    request = CancelRequest(run_id=run_id, actor=Actor(kind=ActorKind.SERVICE, name="http"), key="k", reason=reason)
    await cluster.service.admit(request)
    assert await _case(cluster, run_id) == case
    assert effects == (0 if case == "not executed" else 1)
