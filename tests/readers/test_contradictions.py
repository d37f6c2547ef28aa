"""Contradictions: what a client saw and the store does not hold blocks what would build on it, until a person decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.comparison import Mark
from quiesce.domain.errors import ContinuationRefused, InvalidInput, NotFound, Refused
from quiesce.domain.evidence import STREAM, EvidenceKind, open_contradictions
from quiesce.domain.ids import RunId
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.domain.streams import StreamEvent
from quiesce.domain.threads import OnBusy
from quiesce.runtime.context import Run
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.readers import read_stream
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.turns import PolicyNow, policy_now
from tests.cli.shell import Shell
from tests.readers.kit import Read
from tests.readers.test_comparing import altered, seen
from tests.runtime.kit import Cluster


async def talks(run: Run) -> None:
    for word in ("one", "two", "three"):
        await run.emit(word)


TALKS = declare_agent(talks)


async def ended(cluster: Cluster) -> tuple[RunId, list[StreamEvent]]:
    """Run a talker to its end on thread `t`; return what a reader was given."""
    await cluster.start(TALKS)
    run_id = await cluster.submit(TALKS, thread="t")
    await cluster.receipt(run_id)
    return run_id, (await Read().take(read_stream(cluster.env, run_id))).events


async def policy(cluster: Cluster, run_id: RunId) -> PolicyNow:
    receipt = await cluster.receipt(run_id)
    return await cluster.store.read(lambda tx: policy_now(tx, receipt))


@pytest.mark.req("TR-41", "TR-15", "TR-30", "TR-16")
async def test_a_contradiction_blocks_until_it_is_resolved_and_the_receipt_stays_as_it_was(cluster: Cluster) -> None:
    run_id, events = await ended(cluster)
    receipt = await cluster.receipt(run_id)
    before = await policy(cluster, run_id)
    assert before.policy.policy is Policy.ALLOW
    strange = seen(run_id, altered(events, 2))
    record = await cluster.service.contradict(run_id, strange.marks(), actor="ada")
    facts = parse(record.body)
    assert isinstance(facts, dict)
    assert (record.kind, record.position, record.actor.name) == (EvidenceKind.CONTRADICTION, STREAM, "ada")
    assert (facts["diverged_at"], facts["agreed_through"], facts["never_left"]) == (2, 1, False)
    assert facts["seen"] == strange.mark.to_json()
    assert facts["stored"] == {"seq": 3, "chain": receipt.h2}
    blocked = await policy(cluster, run_id)
    assert (blocked.policy.rule, blocked.policy.policy) == ("R1", Policy.BLOCK)
    assert blocked.basis != before.basis
    with pytest.raises(ContinuationRefused):
        await cluster.submit(TALKS, thread="t")
    decision = await cluster.service.resolve(run_id, "the client's cache was broken", actor="bob")
    assert (decision.kind, decision.actor.name) == (EvidenceKind.DECISION, "bob")
    after = await policy(cluster, run_id)
    assert after.policy == before.policy
    await cluster.receipt(await cluster.submit(TALKS, thread="t"))
    assert await cluster.receipt(run_id) == receipt


@pytest.mark.req("TR-41", "TR-30")
async def test_the_same_contradiction_is_recorded_once_and_another_one_blocks_anew(cluster: Cluster) -> None:
    run_id, events = await ended(cluster)
    marks = seen(run_id, altered(events, 2)).marks()
    first = await cluster.service.contradict(run_id, marks)
    assert await cluster.service.contradict(run_id, marks) == first
    await cluster.service.resolve(run_id, "known")
    assert await cluster.service.contradict(run_id, marks) == first
    assert (await policy(cluster, run_id)).policy.policy is Policy.ALLOW
    await cluster.service.contradict(run_id, seen(run_id, altered(events, 3)).marks())
    assert (await policy(cluster, run_id)).policy.rule == "R1"
    records = (await cluster.service.inspect(run_id)).evidence
    assert [record.number for record in open_contradictions(records)] == [3]


@pytest.mark.req("TR-15", "TR-41")
async def test_what_does_not_differ_is_not_recorded_and_nothing_else_can_be_resolved(cluster: Cluster) -> None:
    run_id, events = await ended(cluster)
    for count in range(len(events) + 1):
        with pytest.raises(Refused, match="does not contradict"):
            await cluster.service.contradict(run_id, [seen(run_id, events[:count]).mark])
    with pytest.raises(Refused):
        await cluster.service.contradict(run_id, [])
    with pytest.raises(Refused):
        await cluster.service.resolve(run_id, "nothing")
    with pytest.raises(InvalidInput, match="grounds"):
        await cluster.service.resolve(run_id, "")
    stranger = ControlService(cluster.env, Caller(tenant="other"))
    strange = seen(run_id, altered(events, 1)).marks()
    with pytest.raises(NotFound):
        await stranger.contradict(run_id, strange)
    await cluster.service.contradict(run_id, strange)
    with pytest.raises(NotFound):
        await stranger.resolve(run_id, "mine")
    assert (await policy(cluster, run_id)).policy.rule == "R1"


@pytest.mark.req("TR-41", "TR-30")
async def test_a_queued_message_waits_for_the_decision_and_then_has_its_turn(cluster: Cluster) -> None:
    async def waits(run: Run) -> None:
        await run.emit("asleep", state_bearing=False)
        await run.sleep(3600)

    agent = declare_agent(waits)
    await cluster.start(agent, TALKS)
    run_id = await cluster.submit(agent, thread="t")
    await cluster.reaches(run_id, RunStatus.WAITING)
    events = await cluster.events(run_id)
    await cluster.service.contradict(run_id, [Mark(seq=1, chain=seen(run_id, altered(events, 1)).mark.chain)])
    queued = await cluster.submit(TALKS, thread="t", turn=TurnRequest(on_busy=OnBusy.ENQUEUE))
    await cluster.service.cancel(run_id)
    await cluster.receipt(run_id)
    run = await cluster.run(queued)
    assert [wait.kind for wait in run.waits] == [WaitKind.CHOICE]
    await cluster.service.resolve(run_id, "looked at")
    assert (await cluster.receipt(queued)).status is RunStatus.COMPLETED


@pytest.mark.req("TR-41", "TR-62")
def test_the_command_line_records_and_resolves(shell: Shell, tmp_path: Path) -> None:
    shell.run("start", "--case", "slow-stream", "--input", '{"tokens": 5, "delay_ms": 0}')
    lines = shell.run("watch", "last", "--json").out.splitlines()
    kept = tmp_path / "seen.jsonl"
    kept.write_text("\n".join([*lines[:2], json.dumps({**json.loads(lines[2]), "payload": "other"})]))
    recorded = shell.run("compare", "last", "--events", str(kept), "--record", "--actor", "ada", "--json")
    assert recorded.code == 0, recorded.err
    assert (recorded.json()["kind"], recorded.json()["body"]["diverged_at"]) == ("contradiction", 3)
    resolved = shell.run("compare", "last", "--resolve", "a broken cache")
    assert resolved.code == 0, resolved.err
    assert "resolved by" in resolved.out
