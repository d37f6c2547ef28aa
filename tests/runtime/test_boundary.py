"""The terminal boundary C·X → F → P → T: its order, its recovery from every stop, and the facts of the receipt (TR-*)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Final

import pytest

from quiesce.domain.boundary import (
    STATUS_OF,
    WORDS_OF_CANCELLED,
    Actor,
    ActorKind,
    CancelMode,
    Cause,
    GapKind,
    Occurrence,
    PersistenceOutcome,
    Reason,
    TerminalDurability,
)
from quiesce.domain.canonical import canonical, digest, parse
from quiesce.domain.errors import InvariantBroken, SettlementPending, Stopped, StoreError
from quiesce.domain.ids import OutcomeId, ReceiptId, RunId
from quiesce.domain.operations import OperationKind
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import Draft, StreamState, Visibility
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime.bundle import Bundle, gather_tx
from quiesce.runtime.cancel import CancelRequest
from quiesce.runtime.context import Run
from quiesce.runtime.readers import KeepAlive, StreamEnd, read_stream
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from quiesce.runtime.settlement import Cleanup, publish_tx, settle
from quiesce.runtime.verification import verify
from tests.runtime.cancel_kit import Pause, Stubborn, Traced, cancel, cancelled, proven, stage
from tests.runtime.kit import BlockingGate, Cluster, Gate, Host, eventually, within


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The records of a boundary, as far as they are stored."""

    occurrence: Occurrence | None
    stream: StreamState | None
    outcome: PersistenceOutcome | None
    receipt: TerminalReceipt | None


async def _facts(cluster: Cluster, run_id: RunId) -> Facts:
    inspection = await cluster.service.inspect(run_id)
    return Facts(
        occurrence=inspection.occurrence, stream=inspection.stream, outcome=inspection.outcome, receipt=inspection.receipt
    )


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
    await _dies(cluster.host(crash_at=point), run_id)
    return run_id


async def _dies(client: Host, run_id: RunId) -> None:
    task = asyncio.create_task(client.service.cancel(run_id))
    await within(client.died.wait())
    await asyncio.wait({task})
    assert task.exception() is not None


async def _frames(cluster: Cluster, run_id: RunId) -> list[object]:
    """Read a stream until it says that nothing new is there, or that it ends."""
    frames: list[object] = []
    async for frame in read_stream(cluster.env, run_id, keep_alive_ms=1):
        frames.append(frame)
        if isinstance(frame, KeepAlive):
            break
    return frames


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
    *_, last = await _frames(cluster, run_id)
    assert last == KeepAlive(status=RunStatus.SETTLING)
    before = await _facts(cluster, run_id)
    receipt = await proven(cluster, run_id)
    after = await _facts(cluster, run_id)
    assert after.occurrence == before.occurrence
    assert before.outcome in (None, after.outcome)
    if before.stream is not None and before.stream.frozen_seq is not None:
        assert after.stream == before.stream
    assert after.occurrence is not None
    assert after.outcome is not None
    assert (receipt.occurrence_id, receipt.outcome_id) == (after.occurrence.id, after.outcome.id)
    assert after.outcome.established_by == ("holder" if by == "holder" and before.outcome else "recovery")
    assert (receipt.status, receipt.frontier.emitted_seq, receipt.gap.kind) == (RunStatus.CANCELLED, 2, GapKind.RECOVERABLE)
    assert isinstance((await _frames(cluster, run_id))[-1], StreamEnd)
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("TR-18", "TR-59")
@pytest.mark.parametrize("point", ["cancel.before", "cancel.inside"])
async def test_a_cancel_whose_client_dies_before_its_commit_has_not_taken_place(cluster: Cluster, point: str) -> None:
    world = Waiting()
    await cluster.start(world.agent)
    run_id = await cluster.submit(world.agent)
    await world.gate.arrival()
    await _dies(cluster.host(crash_at=point), run_id)
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
    before = await _facts(cluster, run_id)
    cleanup = Cleanup(attempted=False, completed=False, escalated=True, emitted_seq=99)
    assert await settle(cluster.env, run_id, cleanup) == receipt
    again = await cluster.store.transact(lambda tx: publish_tx(tx, run_id, ReceiptId("other"), store_durability="none"))
    assert again == receipt
    assert await _facts(cluster, run_id) == before


@pytest.mark.req("TR-59", "TR-07", "TR-19")
async def test_nothing_is_published_from_a_c_without_a_p(cluster: Cluster) -> None:
    world = Waiting()
    run_id = await _stopped(cluster, world, "freeze.after", by="other")
    published = await cluster.store.transact(lambda tx: publish_tx(tx, run_id, ReceiptId("r"), store_durability="none"))
    assert published is None
    assert await stage(cluster, run_id) == "settling CF"


# -- C, P and T belong together ----------------------------------------------------------------------------------------------


async def _bundle(cluster: Cluster, run_id: RunId) -> Bundle:
    return await cluster.store.read(lambda tx: gather_tx(tx, run_id))


def _failed(bundle: Bundle) -> set[str]:
    return {check.name for check in verify(bundle) if not check.ok}


@pytest.mark.req("TR-58")
async def test_a_receipt_that_cites_another_run_s_c_or_p_does_not_verify(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    agent = declare_agent(ends)
    one, two = await cluster.submit(agent), await cluster.submit(agent)
    await cancelled(cluster, one)
    await cancelled(cluster, two)
    mine, other = await _bundle(cluster, one), await _bundle(cluster, two)
    assert _failed(mine) == set()
    assert _failed(replace(mine, outcome=other.outcome)) == {"outcome"}
    assert _failed(replace(mine, occurrence=other.occurrence)) == {"occurrence"}
    forged = {**mine.receipt, "outcome_id": other.outcome.id}
    assert _failed(replace(mine, receipt=forged)) == {"outcome", "receipt_digest"}


@pytest.mark.req("TR-58")
async def test_an_outcome_of_another_run_is_not_taken_for_this_one_s(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    agent = declare_agent(ends)
    other = await cluster.submit(agent)
    await cancelled(cluster, other)
    settling = await cluster.submit(agent)
    await _dies(cluster.host(crash_at="freeze.after"), settling)
    mine, theirs = await _facts(cluster, settling), await _facts(cluster, other)
    assert theirs.outcome is not None
    assert mine.occurrence is not None
    stranger = replace(theirs.outcome, id=OutcomeId("p"), run_id=RunId("stranger"), occurrence_id=mine.occurrence.id)

    def plant(tx: Transaction) -> None:
        tx.terminal.add_outcome(stranger)  # the SQL schemas refuse this already
        publish_tx(tx, settling, ReceiptId("t"), store_durability="none")

    with pytest.raises((InvariantBroken, StoreError)):
        await cluster.store.transact(plant)
    assert (await stage(cluster, settling)).startswith("settling CF")
    assert (await cluster.run(settling)).is_terminal is False


# -- the receipt's facts -----------------------------------------------------------------------------------------------------

FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "receipt_id": str,
    "run_id": str,
    "thread_id": str,
    "attempt": int,
    "occurrence_id": str,
    "outcome_id": str,
    "terminal_cause": str,
    "terminal_reason": str,
    "reason_text": str,
    "actor": dict,
    "terminal_status": str,
    "last_checkpoint_id": (str, type(None)),
    "last_stream_seq_emitted": int,
    "last_stream_seq_durable": int,
    "covered_seq": int,
    "stored_seq": int,
    "emitted_exact": bool,
    "terminal_durability": str,
    "gap": dict,
    "cleanup_attempted": bool,
    "cleanup_completed": bool,
    "escalated": bool,
    "cancel_scope": str,
    "never_started": bool,
    "unresolved_operations": list,
    "unconsumed_results": list,
    "artifacts": list,
    "usage": dict,
    "resume_policy": str,
    "resume_rule": str,
    "same_run_may_continue": str,
    "admissible": str,
    "durable_state_digest": str,
    "visible_state_digest_at_abort": str,
    "visible_state_digest_exact": bool,
    "store_durability": str,
    "previous_receipt_digest": (str, type(None)),
    "digest_algorithm": str,
    "published_at": int,
    "terminal_receipt_digest": str,
}
CLOSED_SETS: Final[dict[str, set[str]]] = {
    "terminal_cause": {"completed", "explicit_cancel", "transport_interrupted", "failed"},
    "terminal_status": {"completed", "cancelled", "failed"},
    "terminal_durability": {"durable", "partial", "abandoned"},
    "resume_policy": {"allow", "reconcile", "restart", "block"},
}


@pytest.mark.req("TR-02", "TR-05", "TR-06", "TR-11", "TR-48", "TR-62", "G-30")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "never started"])
async def test_every_end_has_one_receipt_with_every_field_present_and_typed(cluster: Cluster, end: str) -> None:
    async def ends(run: Run) -> str:
        await run.emit("seen")
        if end == "failed":
            raise ValueError("broken")
        if end == "cancelled":
            await run.sleep(3600)
        return "done"

    agent = declare_agent(ends)
    if end != "never started":
        await cluster.start(agent)
    run_id = await cluster.submit(agent, budget={"tokens": 5})
    if end == "cancelled":
        await cluster.reaches(run_id, RunStatus.WAITING)
    receipt = await (cancelled(cluster, run_id) if end in ("cancelled", "never started") else proven(cluster, run_id))
    body = receipt.to_json()
    assert set(body) == set(FIELDS)
    assert {name: value for name, value in body.items() if not isinstance(value, FIELDS[name])} == {}
    assert all(body[name] in allowed for name, allowed in CLOSED_SETS.items())
    assert (body["terminal_status"], body["run_id"]) == (STATUS_OF[receipt.cause], run_id)
    digests = ("durable_state_digest", "visible_state_digest_at_abort", "terminal_receipt_digest")
    assert all(str(body[name]).startswith("sha256:") for name in digests)
    assert parse(canonical(body)) == body
    assert body["admissible"]
    assert body["usage"] == {"tokens": {"limit": 5, "used": 0, "reserved": 0}}


@pytest.mark.req("TR-03", "TR-12", "TR-32", "TR-33", "TR-34", "TR-27", "TR-31")
async def test_the_checkpoint_of_a_receipt_is_the_last_complete_one_and_the_visible_tail_leaves_a_record(
    cluster: Cluster,
) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        async def text() -> None:
            for n in range(40):
                await run.emit(f"token {n}")
            await gate.wait()

        await run.emit("first")
        await run.checkpoint({"step": 1})
        await run.step(text)
        await run.checkpoint({"step": 2})

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    before = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    receipt = await cancelled(cluster, run_id)
    after = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert after == before
    (only,) = after
    assert (only.id, parse(only.state), only.is_final) == (receipt.checkpoint_id, {"step": 1}, False)
    assert receipt.h1 == only.h1()
    assert (receipt.gap.kind, receipt.gap.first_seq, receipt.gap.last_seq) == (GapKind.RECOVERABLE, 2, 41)
    assert receipt.gap.state_bearing == 40
    assert [parse(e.payload) for e in await cluster.events(run_id)] == ["first", *(f"token {n}" for n in range(40))]


@pytest.mark.req("TR-04", "TR-09", "TR-35")
@pytest.mark.parametrize(
    ("tail", "durability", "kind"),
    [
        ("nothing", TerminalDurability.DURABLE, GapKind.NONE),
        ("observational", TerminalDurability.DURABLE, GapKind.NONE),
        ("state bearing", TerminalDurability.PARTIAL, GapKind.RECOVERABLE),
    ],
)
async def test_durable_is_said_only_of_what_a_checkpoint_covers(
    cluster: Cluster, tail: str, durability: TerminalDurability, kind: GapKind
) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        await run.emit("covered")
        await run.checkpoint("state")
        if tail != "nothing":
            await run.emit("beyond", state_bearing=tail == "state bearing")
        await run.step(gate.wait)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    receipt = await cancelled(cluster, run_id)
    frontier = receipt.frontier
    assert (receipt.durability, receipt.gap.kind) == (durability, kind)
    assert (frontier.covered_seq, frontier.stored_seq) == (1, 1 if tail == "nothing" else 2)
    assert frontier.emitted_seq >= frontier.stored_seq >= frontier.covered_seq
    assert frontier.emitted_exact
    policies = {GapKind.NONE: Policy.ALLOW, GapKind.RECOVERABLE: Policy.RECONCILE}
    assert receipt.policy.policy is policies[kind]


@pytest.mark.req("TR-10")
async def test_clean_up_attempted_and_clean_up_completed_are_facts_of_their_own(cluster: Cluster) -> None:
    seen = set()
    for how in ("clean", "left behind", "nobody there"):
        stubborn, gate = Stubborn(), Gate()

        async def holds(run: Run, how: str, stubborn: Stubborn = stubborn, gate: Gate = gate) -> None:
            await (stubborn.hold() if how == "left behind" else run.step(gate.wait))

        agent = declare_agent(holds, name=how)
        host = await cluster.start(agent)
        run_id = await cluster.submit(agent, how)
        await (stubborn if how == "left behind" else gate).arrival()
        if how == "nobody there":
            await host.kill()
        receipt = await cancelled(cluster, run_id, grace_ms=40)
        seen.add((receipt.cleanup_attempted, receipt.cleanup_completed))
        stubborn.let_go()
    assert seen == {(True, True), (True, False), (False, False)}


@pytest.mark.req("TR-14", "G-30", "TR-16")
async def test_receipts_are_chained_through_the_thread_whatever_the_ends(cluster: Cluster) -> None:
    async def ends(run: Run, how: str) -> str:
        if how == "failed":
            raise ValueError("broken")
        if how == "cancelled":
            await run.sleep(3600)
        return how

    agent = declare_agent(ends)
    await cluster.start(agent)
    previous: TerminalReceipt | None = None
    for how in ("completed", "failed", "cancelled", "completed"):
        run_id = await cluster.submit(agent, how, thread="t-1")
        if how == "cancelled":
            await cluster.reaches(run_id, RunStatus.WAITING)
            await cancel(cluster, run_id)
        receipt = await proven(cluster, run_id)
        assert receipt.status == how
        assert receipt.previous_digest == (None if previous is None else previous.digest)
        previous = receipt
    assert previous is not None
    bundle = await _bundle(cluster, previous.run_id)
    assert len(bundle.thread_receipts) == 3
    altered = [{**bundle.thread_receipts[0], "reason_text": "another"}, *bundle.thread_receipts[1:]]
    assert _failed(replace(bundle, thread_receipts=altered)) == {"thread_chain"}
    assert _failed(replace(bundle, thread_receipts=bundle.thread_receipts[:-1])) == {"thread_chain"}


@pytest.mark.req("TR-14", "TR-11", "TR-62")
async def test_a_change_of_any_field_of_a_receipt_breaks_its_digest(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    await cancelled(cluster, run_id)
    bundle = await _bundle(cluster, run_id)
    for name in bundle.receipt:
        altered = {**bundle.receipt, name: "altered"}
        assert "receipt_digest" in _failed(replace(bundle, receipt=altered)), name


# -- nothing leaves behind the frontier ----------------------------------------------------------------------------------------


@pytest.mark.req("ST-13", "TR-13")
async def test_a_chunk_that_comes_after_the_freeze_is_refused(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def writes(run: Run) -> None:
        await run.emit("before")
        try:
            await run.step(blocking.wait)
        finally:
            await run.emit("after the freeze")

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: _is_at(cluster, run_id, "settling CF"))
    run = await cluster.run(run_id)
    (known,) = await cluster.events(run_id)
    assert run.drain_fence is not None
    late = Draft(channel="messages", payload=b'"late"').sealed(
        run_id=run_id, seq=2, previous=known.chain, fence=run.drain_fence, now=known.emitted_at
    )
    write = RunWrite(run_id=run_id, fence=run.drain_fence, events=(late,))
    assert await cluster.store.write(write) is WriteOutcome.STALE
    blocking.open()
    receipt = await proven(cluster, run_id)
    assert (receipt.frontier.emitted_seq, receipt.h2, receipt.h2_exact) == (1, known.chain, True)
    assert await cluster.events(run_id) == [known]


@pytest.mark.req("ST-13", "TR-13")
async def test_a_late_chunk_of_a_show_first_stream_is_not_even_shown(cluster: Cluster) -> None:
    stubborn = Stubborn()
    refused = asyncio.Event()

    async def writes(run: Run) -> None:
        await run.emit("before")
        await stubborn.hold()
        try:
            await run.emit("after the freeze")
        except Stopped:
            refused.set()
            raise

    agent = declare_agent(writes)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, visibility=Visibility.SHOW_FIRST)
    feed = host.env.live.join(run_id)
    await stubborn.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    await eventually(lambda: _is_at(cluster, run_id, "settling CF"))
    stubborn.let_go()
    await within(refused.wait())
    receipt = await proven(cluster, run_id)
    assert [parse(e.payload) for e in feed.take(0)] == ["before"]
    assert (receipt.frontier.emitted_seq, receipt.frontier.emitted_exact) == (1, True)


async def _is_at(cluster: Cluster, run_id: RunId, wanted: str) -> bool:
    return await stage(cluster, run_id) == wanted


@pytest.mark.req("C23", "TR-20", "TR-18")
async def test_the_end_frame_comes_only_after_the_final_checkpoint_is_durable(cluster: Cluster) -> None:
    async def says(run: Run) -> str:
        await run.emit("the last word")
        return "whole turn"

    agent = declare_agent(says)
    host = cluster.host(agent, crash_at="end.before")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent)
    await pause.arrival()
    frames = await _frames(cluster, run_id)  # the client leaves with the last visible word
    assert not any(isinstance(frame, StreamEnd) for frame in frames)
    pause.resume()
    seen, end = await cluster.watch(run_id)
    last = await cluster.store.read(lambda tx: tx.checkpoints.last(run_id))
    assert [parse(e.payload) for e in seen] == ["the last word"]
    assert last is not None
    assert last.is_final
    assert (end.status, await cluster.service.result(run_id)) == (RunStatus.COMPLETED, "whole turn")


# -- answers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-22", "TR-63", "TR-23", "TR-46")
async def test_who_waits_for_a_cancel_is_answered_when_it_is_whole_and_told_what_became_durable(cluster: Cluster) -> None:
    blocking = BlockingGate()

    async def writes(run: Run) -> None:
        await run.emit("covered")
        await run.checkpoint({"step": 1})
        await run.emit("beyond")
        await run.step(blocking.wait)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    with pytest.raises(SettlementPending, match="settling"):
        await cluster.service.wait(run_id, timeout_ms=30)
    waiting = asyncio.create_task(cluster.service.wait(run_id))
    await eventually(lambda: _is_at(cluster, run_id, "settling CF"))
    assert not waiting.done()
    blocking.open()
    receipt = await within(waiting)
    assert (await cluster.run(run_id)).status is receipt.status is RunStatus.CANCELLED
    assert receipt.durability is TerminalDurability.PARTIAL
    assert receipt.checkpoint_id in {c.id for c in await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))}
    assert (receipt.gap.first_seq, receipt.gap.last_seq) == (2, 2)


@pytest.mark.req("TR-49", "TR-01")
async def test_execution_delivery_durable_and_terminal_state_are_four_variables(cluster: Cluster) -> None:
    """Each of four moments changes one of the four, and leaves the other three as they were."""
    gates = [Gate() for _ in range(3)]
    blocking = BlockingGate()

    async def store_it() -> None:
        """Have what was emitted stored along."""

    async def moves(run: Run) -> None:
        await run.step(gates[0].wait)
        await run.emit("delivery moves")
        await run.step(store_it)
        await run.step(gates[1].wait)
        await run.checkpoint("durable state moves")
        await run.step(gates[2].wait)
        await run.step(blocking.wait)

    async def four(run_id: RunId) -> dict[str, object]:
        i = await cluster.service.inspect(run_id)
        assert i.stream is not None
        return {
            "execution": i.run.status,
            "delivery": (i.stream.stored_seq, i.stream.chain),
            "durable": i.checkpoint.id if i.checkpoint else None,
            "terminal": i.receipt.id if i.receipt else None,
        }

    def moved(a: dict[str, object], b: dict[str, object]) -> set[str]:
        return {name for name in a if a[name] != b[name]}

    agent = declare_agent(moves)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    states: list[dict[str, object]] = []
    for gate in gates:
        await gate.arrival()
        states.append(await four(run_id))
        gate.open()
    await blocking.arrival()
    await cancel(cluster, run_id, grace_ms=60_000)
    states.append(await four(run_id))
    blocking.open()
    await proven(cluster, run_id)
    states.append(await four(run_id))
    changes = [moved(a, b) for a, b in itertools.pairwise(states)]
    assert changes == [{"delivery"}, {"durable"}, {"execution"}, {"execution", "terminal"}]


@pytest.mark.req("TR-24", "G-04")
async def test_one_cancel_has_one_word_in_each_place(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    receipt = await cancelled(cluster, run_id)
    assert {
        "cause": receipt.cause,
        "run": receipt.status,
        "agent_server": "interrupted",
        "wave": "stopped",
    } == WORDS_OF_CANCELLED


# -- the five cases of an interrupted effect, and the sixth --------------------------------------------------------------------


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


# -- append-only ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-16", "TR-58")
async def test_the_three_facts_are_written_once_and_a_second_writing_changes_nothing(cluster: Cluster) -> None:
    async def ends(run: Run) -> None:
        """End."""

    run_id = await cluster.submit(declare_agent(ends))
    receipt = await cancelled(cluster, run_id)
    before = await _facts(cluster, run_id)
    occurrence, outcome = before.occurrence, before.outcome
    assert occurrence is not None
    assert outcome is not None
    again = (
        await cluster.store.transact(lambda tx: tx.terminal.add_occurrence(replace(occurrence, text="other"))),
        await cluster.store.transact(lambda tx: tx.terminal.add_outcome(replace(outcome, escalated=True))),
        await cluster.store.transact(lambda tx: tx.terminal.add_receipt(replace(receipt, reason_text="other"))),
    )
    assert again == (False, False, False)
    assert await _facts(cluster, run_id) == before
    assert receipt.h3() == receipt.digest == digest(canonical(receipt.body()))


@pytest.mark.req("TR-32", "TR-26", "C09")
async def test_after_step_adds_the_checkpoint_of_its_step_and_alters_none_before_it(cluster: Cluster) -> None:
    gate = Gate()

    async def writes(run: Run) -> None:
        await run.checkpoint(1)
        await run.step(gate.wait)
        await run.checkpoint(2)
        await run.checkpoint(3)

    agent = declare_agent(writes)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    (first,) = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    await cancel(cluster, run_id, mode=CancelMode.AFTER_STEP, grace_ms=60_000)
    gate.open()
    receipt = await proven(cluster, run_id)
    kept = await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))
    assert kept[0] == first
    assert [parse(c.state) for c in kept] == [1, 2]
    assert receipt.checkpoint_id == kept[-1].id
