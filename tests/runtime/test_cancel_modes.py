"""How a cancel treats what is under way: repeated, widened, hastened, after the step, escalated (C05, C20, RR-36)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.adapters.artifact_directory import ArtifactDirectory
from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope, GapKind, Reason, TerminalDurability
from quiesce.domain.canonical import parse
from quiesce.domain.errors import FenceLost, InvalidInput, Stopped
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.runs import RunStatus
from quiesce.runtime.cancel import CancelAdmission, CancelRequest, CancelVerdict
from quiesce.runtime.context import Run
from quiesce.runtime.inspection import inspect_tx
from quiesce.runtime.registry import declare_agent, declare_tool
from quiesce.runtime.verification import require, verify_files
from quiesce.runtime.worker import RunWorker
from tests.runtime.cancel_kit import Pause, Stubborn, cancel, cancelled, proven, stage
from tests.runtime.kit import FAST, BlockingGate, Cluster, Gate, eventually

LONG_MS = 60_000


# -- repeated and widened --------------------------------------------------------------------------------------------------


@pytest.mark.req("C05", "RR-28")
async def test_a_repeated_key_gets_the_first_answer_however_far_the_run_has_come(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def waits(run: Run) -> None:
        await run.step(blocking.wait)

    agent = declare_agent(waits)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    first = await cancel(cluster, run_id, key="stop-1", grace_ms=LONG_MS)
    again = await cancel(cluster, run_id, key="stop-1", grace_ms=LONG_MS)
    assert (again, first.verdict) == (first, CancelVerdict.ACCEPTED)
    other = await cancel(cluster, run_id, key="stop-2", grace_ms=LONG_MS)
    assert (other.verdict, other.occurrence, other.reached) == (CancelVerdict.ALREADY_ACCEPTED, first.occurrence, ())
    blocking.open()
    receipt = await proven(cluster, run_id)
    assert await cancel(cluster, run_id, key="stop-1") == replace(first, receipt=receipt)
    late = await cancel(cluster, run_id, key="stop-2")
    assert (late.verdict, late.receipt) == (CancelVerdict.ALREADY_TERMINAL, receipt)


@pytest.mark.req("C20", "TR-05", "RR-31")
async def test_a_second_cancel_does_not_replace_who_ended_the_run_and_why(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def waits(run: Run) -> None:
        await run.step(blocking.wait)

    agent = declare_agent(waits)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=LONG_MS)
    operator = Actor(kind=ActorKind.SERVICE, name="front end")
    await cluster.service.admit(CancelRequest(run_id=run_id, actor=operator, key="k", reason=Reason.SUPERSEDED))
    blocking.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.reason, receipt.actor.kind, receipt.reason_text) == (Reason.USER_CANCEL, ActorKind.USER, "changed my mind")


@pytest.mark.req("C05", "RR-30")
@pytest.mark.parametrize("parent", ["settles still", "has ended"])
async def test_a_second_cancel_widens_the_first_to_the_children(cluster: Cluster, parent: str) -> None:
    blocking = BlockingGate()
    gates = [Gate() for _ in range(3)]

    async def child(run: Run, n: int) -> None:
        await run.step(gates[n].wait)

    below = declare_agent(child)

    async def top(run: Run) -> None:
        for n in range(3):
            await run.spawn(below, n)
        await run.step(blocking.wait)

    agent = declare_agent(top)
    await cluster.start(agent, below)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    for gate in gates:
        await gate.arrival()
    first = await cancel(cluster, run_id, scope=CancelScope.RUN, grace_ms=LONG_MS, key="run")
    assert first.reached == (run_id,)
    children = [c.id for c in (await cluster.service.inspect(run_id)).children]
    assert {await stage(cluster, c) for c in children} == {"running"}
    if parent == "has ended":
        blocking.open()
        await cluster.receipt(run_id)
    wider = await cancel(cluster, run_id, scope=CancelScope.TREE, key="tree")
    expected = CancelVerdict.ALREADY_TERMINAL if parent == "has ended" else CancelVerdict.ALREADY_ACCEPTED
    assert (wider.verdict, wider.reached, wider.occurrence) == (expected, tuple(children), first.occurrence)
    again = await cancel(cluster, run_id, scope=CancelScope.TREE, key="tree")
    assert (again.reached, again.occurrence) == (wider.reached, wider.occurrence)
    receipts = [await proven(cluster, c) for c in children]
    assert {(r.status, r.reason) for r in receipts} == {(RunStatus.CANCELLED, Reason.PARENT_CANCEL)}
    blocking.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.reason, receipt.scope) == (Reason.USER_CANCEL, CancelScope.RUN)


# -- after the step --------------------------------------------------------------------------------------------------------


@pytest.mark.req("C09", "TR-06", "TR-31", "TR-27")
async def test_after_step_lets_the_step_end_and_its_checkpoint_covers_what_was_shown(cluster: Cluster) -> None:
    gate = Gate()
    begun: list[str] = []

    async def works(run: Run) -> None:
        async def write() -> str:
            await run.emit("one")
            await gate.wait()
            await run.emit("two")
            return "written"

        text = await run.step(write)
        await run.checkpoint({"text": text})
        begun.append("more")
        await run.step(gate.wait)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=LONG_MS)
    assert await stage(cluster, run_id) == "settling C"
    gate.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.CANCELLED, Reason.USER_CANCEL)
    assert (receipt.durability, receipt.gap.kind) == (TerminalDurability.DURABLE, GapKind.NONE)
    assert (receipt.escalated, receipt.cleanup_completed) == (False, True)
    assert [parse(e.payload) for e in await cluster.events(run_id)] == ["one", "two"]
    last = await cluster.store.read(lambda tx: tx.checkpoints.last(run_id))
    assert last is not None
    assert (last.id, parse(last.state), last.is_final) == (receipt.checkpoint_id, {"text": "written"}, False)
    assert begun == []


@pytest.mark.req("C09", "TR-31", "TR-36")
async def test_the_same_step_cancelled_now_leaves_a_gap_and_no_checkpoint(cluster: Cluster) -> None:
    gate = Gate()

    async def works(run: Run) -> None:
        async def write() -> str:
            await run.emit("one")
            await gate.wait()
            return "written"

        await run.checkpoint({"text": await run.step(write)})

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    receipt = await cancelled(cluster, run_id)
    assert (receipt.checkpoint_id, receipt.durability) == (None, TerminalDurability.PARTIAL)
    assert (receipt.gap.kind, receipt.gap.first_seq, receipt.gap.last_seq) == (GapKind.RECOVERABLE, 1, 1)


@pytest.mark.req("C09")
async def test_after_step_begins_nothing_behind_the_step_that_was_under_way(cluster: Cluster) -> None:
    """The store answers the end of the step under way with the stop, so the holder hears of it before it goes on."""
    gate = Gate()
    begun: list[str] = []

    async def note(what: str) -> None:
        begun.append(what)

    tool = declare_tool(note)

    async def works(run: Run) -> None:
        await asyncio.gather(run.step(gate.wait), run.step(gate.wait, name="beside it"))
        await run.step(note, "step")
        await run.call(tool, "call")

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=LONG_MS)
    gate.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.escalated) == (RunStatus.CANCELLED, False)
    assert begun == []
    assert sorted(await cluster.journal(run_id)) == ["1", "2"]


@pytest.mark.req("C09", "TR-21", "TR-31", "RR-29")
@pytest.mark.parametrize("mode", CancelMode)
async def test_a_holder_that_nobody_told_of_a_stop_hears_of_it_before_it_goes_on_from_what_it_stores(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, mode: CancelMode
) -> None:
    """Bells and polls may be late. The answer to its own next write is what it cannot miss."""
    gate = Gate()
    begun: list[str] = []

    async def note(what: str) -> None:
        begun.append(what)

    async def works(run: Run) -> None:
        await run.step(gate.wait)
        if mode is CancelMode.AFTER_STEP:
            await run.checkpoint({"step": 1})
        await run.step(note, "behind it")

    async def notices_nothing(_: RunWorker) -> None:
        pass

    monkeypatch.setattr(RunWorker, "_notice", notices_nothing)
    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancel(cluster, run_id, mode=mode, grace_ms=LONG_MS)
    gate.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.escalated, receipt.cleanup_completed, begun) == (RunStatus.CANCELLED, False, True, [])
    journal = await cluster.journal(run_id)
    assert (journal["1"].has_result, receipt.checkpoint_id is not None) == (True, mode is CancelMode.AFTER_STEP)
    assert receipt.frontier.pending_writes == (1 if mode is CancelMode.NOW else 0)


@pytest.mark.req("TR-10", "TR-21", "G-29")
async def test_a_step_that_does_not_end_in_its_grace_is_interrupted_and_the_receipt_says_escalated(cluster: Cluster) -> None:
    gate = Gate()

    async def works(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    begun = await cluster.store.read(lambda tx: tx.now)
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=60)
    receipt = await proven(cluster, run_id)
    assert (receipt.escalated, receipt.cleanup_completed) == (True, True)
    assert after_ms(begun, 60) <= receipt.published_at <= after_ms(begun, 60 + FAST.drain_ms)


@pytest.mark.req("TR-10", "C09", "G-29")
async def test_code_that_swallows_its_cancellation_is_left_behind_and_can_write_nothing(cluster: Cluster) -> None:
    stubborn = Stubborn()
    refused: list[type[BaseException]] = []

    async def works(run: Run) -> str:
        await stubborn.hold()
        for act in (run.emit("late"), run.step(stubborn.hold), run.checkpoint({"late": True})):
            try:
                await act
            except (Stopped, FenceLost) as error:
                refused.append(type(error))
        return "late"

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await stubborn.arrival()
    receipt = await cancelled(cluster, run_id, grace_ms=60)
    assert (receipt.escalated, receipt.cleanup_attempted, receipt.cleanup_completed) == (True, True, False)
    assert stubborn.swallowed >= 2
    stubborn.let_go()
    await eventually(lambda: _has(refused, 3))
    assert (await cluster.journal(run_id), await cluster.events(run_id)) == ({}, [])
    assert await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id)) == []
    assert await proven(cluster, run_id) == receipt


@pytest.mark.req("TR-10", "C09")
async def test_code_that_swallows_one_cancellation_is_asked_once_more_within_the_grace(cluster: Cluster) -> None:
    stubborn = Stubborn(swallows=1)

    async def works(run: Run) -> None:
        await stubborn.hold()

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await stubborn.arrival()
    receipt = await cancelled(cluster, run_id, grace_ms=400)
    assert (receipt.escalated, receipt.cleanup_completed, stubborn.swallowed) == (False, True, 1)


async def _has(things: list[type[BaseException]], count: int) -> bool:
    return len(things) == count


@pytest.mark.req("C05", "TR-10")
@pytest.mark.parametrize("grace_ms", [LONG_MS, None, 0], ids=["as long", "as set", "none"])
async def test_a_cancel_now_hastens_one_that_waits_for_the_step(cluster: Cluster, grace_ms: int | None) -> None:
    gate = Gate()

    async def works(run: Run) -> None:
        await run.step(gate.wait)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    first = await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=LONG_MS)
    second = await cancel(cluster, run_id, mode=CancelMode.NOW, grace_ms=grace_ms)
    assert (second.verdict, second.occurrence) == (CancelVerdict.ALREADY_ACCEPTED, first.occurrence)
    receipt = await proven(cluster, run_id)
    assert (receipt.status, receipt.cleanup_completed) == (RunStatus.CANCELLED, True)
    assert receipt.published_at < after_ms(first.occurrence.at if first.occurrence else receipt.published_at, LONG_MS)


@pytest.mark.req("C05")
async def test_a_cancel_with_a_longer_grace_does_not_put_off_the_first(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def works(run: Run) -> None:
        await run.step(blocking.wait)

    agent = declare_agent(works)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=LONG_MS)
    before = (await cluster.run(run_id)).settle_at
    await cancel(cluster, run_id, grace_ms=2 * LONG_MS)
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=0)
    assert (await cluster.run(run_id)).settle_at == before
    blocking.open()
    await proven(cluster, run_id)


# -- what came before stays visible ----------------------------------------------------------------------------------------


@pytest.mark.req("RR-36", "RR-31", "TR-26")
async def test_the_view_of_a_cancelled_run_lists_what_had_happened_before(cluster: Cluster) -> None:
    gate = Gate()

    async def pay(amount: int) -> int:
        return amount

    tool = declare_tool(pay)

    async def buys(run: Run) -> None:
        await run.call(tool, 7)
        await run.checkpoint({"paid": 7})
        await run.call(tool, 8)
        await run.step(gate.wait)

    agent = declare_agent(buys)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancel(cluster, run_id)
    await proven(cluster, run_id)
    view = (await cluster.store.read(lambda tx: inspect_tx(tx, run_id))).to_json()
    operations = view["operations"]
    assert isinstance(operations, list)
    calls = [(o["operation"], o["name"], o["result"]) for o in operations if o["kind"] == "call"]
    assert calls == [("1", "pay", "ok"), ("3", "pay", "ok")]
    assert isinstance(view["checkpoint"], dict)
    assert view["checkpoint"]["state"] == {"paid": 7}
    authority = view["authority"]
    assert isinstance(authority, dict)
    assert (authority["may_continue"], authority["must_stop"]) == ([], [])


@pytest.mark.req("RR-35", "G-37", "RR-27")
async def test_an_artifact_saved_before_the_cancel_stays_in_the_receipt(cluster: Cluster, tmp_path: Path) -> None:
    gate = Gate()
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        return "the report"

    async def reports(run: Run) -> str:
        text = await run.step(ask)
        await run.save_artifact("report.md", text)
        await run.step(gate.wait)
        return text

    agent = declare_agent(reports)
    files = ArtifactDirectory(tmp_path)
    await cluster.start(agent, artifacts=files)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    receipt = await cancelled(cluster, run_id)
    assert receipt.status is RunStatus.CANCELLED
    (artifact,) = receipt.artifacts
    assert (artifact["name"], artifact["run_id"]) == ("report.md", run_id)
    require(verify_files(receipt.artifacts, files), subject=run_id)
    assert await cluster.service.result(run_id) is None
    assert asked == 1


# -- who, and why ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("G-06", "TR-05")
async def test_a_client_that_left_and_had_asked_for_an_end_is_a_cause_of_its_own(cluster: Cluster) -> None:
    async def waits(run: Run) -> None:
        await run.sleep(3600)

    agent = declare_agent(waits)
    run_id = await cluster.submit(agent)
    service = Actor(kind=ActorKind.SERVICE, name="http")
    await cluster.service.admit(CancelRequest(run_id=run_id, actor=service, key="left", reason=Reason.CLIENT_LEFT))
    receipt = await proven(cluster, run_id)
    assert (str(receipt.cause), receipt.status) == ("transport_interrupted", RunStatus.CANCELLED)


# -- what a request may say ------------------------------------------------------------------------------------------------


@pytest.mark.req("C01", "CC-10")
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("mode", {"mode": "gently"}),
        ("scope", {"scope": "world"}),
        ("grace_ms", {"grace_ms": -1}),
        ("grace_ms", {"grace_ms": 3_600_001}),
        ("key", {"key": ""}),
        ("reason", {"reason": "nul \0"}),
        ("reason", {"reason": "x" * (DEFAULT_LIMITS.text_chars_max + 1)}),
    ],
)
async def test_a_request_that_breaks_a_rule_names_the_field_and_cancels_nothing(
    cluster: Cluster, field: str, fields: dict[str, str]
) -> None:
    async def waits(run: Run) -> None:
        """Never begin."""

    run_id = await cluster.submit(declare_agent(waits))
    with pytest.raises(InvalidInput) as caught:
        await cluster.service.cancel(run_id, **fields)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
    assert await stage(cluster, run_id) == "pending"


@pytest.mark.req("C20")
async def test_only_reasons_of_a_cancel_can_be_asked_for(cluster: Cluster) -> None:
    async def waits(run: Run) -> None:
        """Never begin."""

    run_id = await cluster.submit(declare_agent(waits))
    actor = Actor(kind=ActorKind.USER, name="ada")
    for reason in (Reason.FINISHED, Reason.DEADLINE, Reason.AGENT_ERROR):
        with pytest.raises(InvalidInput, match="does not name a cancel"):
            await cluster.service.admit(CancelRequest(run_id=run_id, actor=actor, key="k", reason=reason))
    assert await stage(cluster, run_id) == "pending"


@pytest.mark.req("TR-46", "TR-23")
async def test_the_answer_of_a_cancel_says_nothing_of_what_became_durable(cluster: Cluster) -> None:
    async def waits(run: Run) -> None:
        await run.step(Gate().wait)

    agent = declare_agent(waits)
    host = cluster.host(agent, crash_at="claim.after")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    admission: CancelAdmission = await cancel(cluster, run_id)
    pause.resume()
    body = admission.to_json()
    assert set(body) == {"verdict", "run_id", "occurrence_id", "receipt_id", "reached"}
    words = str(body).lower()
    assert not any(word in words for word in ("durab", "checkpoint", "seq", "gap", "partial", "abandon", "cleanup", "policy"))
    assert body["receipt_id"] is None
    await proven(cluster, run_id)
