"""Recovery of one call: every effect policy at every stored position, after the process is gone (RR-09...RR-14, RR-20)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import ToolFailed
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import RunId
from quiesce.domain.operations import Operation, OperationStatus, ResultKind
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.registry import Agent, Tool, declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate

POLICIES = ("pure", "idempotent", "probe", "once")


@dataclass(slots=True)
class Ledger:
    """What stands outside of the store: how often an effect took place, under which keys, and who asked about it."""

    keys: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answer: object = None
    models: int = 0

    def tool(self, effect: str) -> Tool:
        async def act(amount: int, *, call: Call) -> dict[str, int]:
            self.keys.append(call.key)
            return {"paid": amount, "fence": call.fence}

        async def ask(key: str) -> object:
            self.questions.append(key)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return declare_tool(act, effect=effect, probe=ask if effect == "probe" else None, name="act")

    def agent(self, tool: Tool, gate: Gate | None = None) -> Agent:
        async def propose() -> int:
            self.models += 1
            return 7

        async def pays(run: Run) -> object:
            amount = await run.step(propose)
            paid = await run.call(tool, amount)
            if gate is not None:
                await run.step(gate.wait)
            return paid

        return declare_agent(pays)


async def _die_at(cluster: Cluster, agent: Agent, point: str) -> RunId:
    """Let a first process die at a crash point of the agent's call."""
    host = await cluster.start(agent, crash_at=point)
    run_id = await cluster.submit(agent)
    await host.death()
    return run_id


async def _rewrite(cluster: Cluster, run_id: RunId, status: OperationStatus) -> None:
    """Give the dispatched call another stored position."""
    journal = await cluster.journal(run_id)
    row = replace(journal["2"], status=status)
    await cluster.store.transact(lambda tx: tx.operations.put_many([row]))


async def _status(cluster: Cluster, run_id: RunId) -> Operation:
    return (await cluster.journal(run_id))["2"]


@pytest.mark.req("RR-09", "RR-10")
@pytest.mark.parametrize("effect", POLICIES)
async def test_a_call_that_was_not_yet_sealed_is_made_once(cluster: Cluster, effect: str) -> None:
    ledger = Ledger()
    agent = ledger.agent(ledger.tool(effect))
    run_id = await _die_at(cluster, agent, "dispatch.before")
    assert "2" not in await cluster.journal(run_id)
    await cluster.start(agent)
    await cluster.result(run_id)
    assert ledger.keys == [f"{run_id}:2"]
    assert (ledger.models, ledger.questions) == (1, [])


@pytest.mark.req("RR-09", "RR-10")
@pytest.mark.parametrize("effect", POLICIES)
async def test_a_sealed_call_is_dispatched_and_nothing_is_proposed_again(cluster: Cluster, effect: str) -> None:
    ledger = Ledger()
    agent = ledger.agent(ledger.tool(effect))
    run_id = await _die_at(cluster, agent, "dispatch.after")
    await _rewrite(cluster, run_id, OperationStatus.SEALED)
    await cluster.start(agent)
    await cluster.result(run_id)
    assert ledger.keys == [f"{run_id}:2"]
    assert (ledger.models, ledger.questions) == (1, [])


@pytest.mark.req("RR-09", "RR-12", "RR-13", "RR-20", "C56")
@pytest.mark.parametrize("effect", ["pure", "idempotent"])
@pytest.mark.parametrize("point", ["dispatch.after", "effect.after"])
async def test_a_dispatched_call_that_may_be_repeated_is_repeated_under_its_key(
    cluster: Cluster, effect: str, point: str
) -> None:
    ledger = Ledger()
    agent = ledger.agent(ledger.tool(effect))
    run_id = await _die_at(cluster, agent, point)
    assert (await _status(cluster, run_id)).status is OperationStatus.DISPATCHED
    await cluster.start(agent)
    result = await cluster.result(run_id)
    assert set(ledger.keys) == {f"{run_id}:2"}
    assert len(ledger.keys) == (2 if point == "effect.after" else 1)
    assert isinstance(result, dict)
    assert result["fence"] == (await cluster.run(run_id)).fence - 1
    operation = await _status(cluster, run_id)
    assert [t.number for t in operation.tries] == [1, 2]
    assert operation.tries[0].fence < operation.tries[1].fence
    assert ledger.models == 1


@pytest.mark.req("RR-12", "RR-13", "RR-20", "RR-38", "C56")
@pytest.mark.parametrize("point", ["dispatch.after", "effect.after"])
async def test_a_dispatched_call_of_policy_once_becomes_unknown_and_is_never_repeated(cluster: Cluster, point: str) -> None:
    ledger = Ledger()
    agent = ledger.agent(ledger.tool("once"))
    run_id = await _die_at(cluster, agent, point)
    before = list(ledger.keys)
    second = await cluster.start(agent)
    run = await cluster.reaches(run_id, RunStatus.WAITING)
    assert [(w.kind, w.position) for w in run.waits] == [(WaitKind.UNKNOWN, "2")]
    assert (await _status(cluster, run_id)).status is OperationStatus.UNKNOWN
    await second.kill()
    await cluster.start(agent)
    assert (await cluster.reaches(run_id, RunStatus.WAITING)).waits == run.waits
    assert ledger.keys == before
    inspection = await cluster.service.inspect(run_id)
    assert "unknown" in inspection.explain()
    assert [item["operation"] for item in inspection.authority()["must_stop"]] == ["2"]


@pytest.mark.req("RR-12", "RR-20")
@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_an_unknown_call_is_left_to_a_decision(cluster: Cluster, effect: str) -> None:
    ledger = Ledger()
    agent = ledger.agent(ledger.tool(effect))
    run_id = await _die_at(cluster, agent, "dispatch.after")
    await _rewrite(cluster, run_id, OperationStatus.UNKNOWN)
    await cluster.start(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    assert ledger.keys == []


@pytest.mark.req("RR-14", "RR-20", "C56")
@pytest.mark.parametrize("status", [OperationStatus.DISPATCHED, OperationStatus.UNKNOWN])
async def test_a_destination_that_says_it_happened_gives_the_result_without_a_call(
    cluster: Cluster, status: OperationStatus
) -> None:
    ledger = Ledger(answer=Happened({"paid": 7}))
    agent = ledger.agent(ledger.tool("probe"))
    run_id = await _die_at(cluster, agent, "effect.after")
    await _rewrite(cluster, run_id, status)
    await cluster.start(agent)
    assert await cluster.result(run_id) == {"paid": 7}
    assert ledger.keys == ledger.questions == [f"{run_id}:2"]
    (evidence,) = (await cluster.service.inspect(run_id)).evidence
    assert (evidence.kind, evidence.verdict) == (EvidenceKind.PROBE, Verdict.HAPPENED)


@pytest.mark.req("RR-14", "RR-20")
@pytest.mark.parametrize("status", [OperationStatus.DISPATCHED, OperationStatus.UNKNOWN])
async def test_a_destination_that_proves_absence_has_the_call_made_once(cluster: Cluster, status: OperationStatus) -> None:
    ledger = Ledger(answer=Absent())
    agent = ledger.agent(ledger.tool("probe"))
    run_id = await _die_at(cluster, agent, "dispatch.after")
    await _rewrite(cluster, run_id, status)
    await cluster.start(agent)
    await cluster.result(run_id)
    assert ledger.keys == ledger.questions == [f"{run_id}:2"]
    (evidence,) = (await cluster.service.inspect(run_id)).evidence
    assert (evidence.kind, evidence.verdict) == (EvidenceKind.PROBE, Verdict.DID_NOT_HAPPEN)


@pytest.mark.req("RR-12", "RR-14", "CC-44")
@pytest.mark.parametrize("answer", [None, "perhaps", ConnectionError("away")])
async def test_a_destination_that_cannot_tell_leaves_the_call_unknown(cluster: Cluster, answer: object) -> None:
    ledger = Ledger(answer=answer)
    agent = ledger.agent(ledger.tool("probe"))
    run_id = await _die_at(cluster, agent, "effect.after")
    await cluster.start(agent)
    await cluster.reaches(run_id, RunStatus.WAITING)
    assert (await _status(cluster, run_id)).status is OperationStatus.UNKNOWN
    assert len(ledger.keys) == 1


@pytest.mark.req("RR-11", "RR-31", "RR-37")
@pytest.mark.parametrize("effect", POLICIES)
async def test_a_committed_result_is_consumed_and_the_tool_is_not_called(cluster: Cluster, effect: str) -> None:
    ledger = Ledger(answer=Absent())
    agent = ledger.agent(ledger.tool(effect))
    run_id = await _die_at(cluster, agent, "result.after")
    committed = await _status(cluster, run_id)
    assert committed.status is OperationStatus.COMMITTED
    await cluster.start(agent)
    assert await cluster.result(run_id) == parse(committed.result or b"")
    consumed = await _status(cluster, run_id)
    assert consumed == replace(committed, status=OperationStatus.CONSUMED)
    assert (len(ledger.keys), ledger.questions, ledger.models) == (1, [], 1)


@pytest.mark.req("RR-11", "RR-31")
@pytest.mark.parametrize("effect", POLICIES)
async def test_a_consumed_result_is_read_again(cluster: Cluster, effect: str) -> None:
    ledger = Ledger(answer=Absent())
    gate = Gate()
    agent = ledger.agent(ledger.tool(effect), gate)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.service.inspect(run_id)
    await host.kill()
    gate.open()
    await cluster.start(agent)
    result = await cluster.result(run_id)
    assert isinstance(result, dict)
    assert result["paid"] == 7
    assert (await _status(cluster, run_id)).status is OperationStatus.CONSUMED
    assert (len(ledger.keys), ledger.questions, ledger.models) == (1, [], 1)


@pytest.mark.req("RR-13", "C56")
@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_the_key_of_a_call_comes_from_its_place_and_not_from_its_arguments(cluster: Cluster, effect: str) -> None:
    ledger = Ledger()
    tool = ledger.tool(effect)

    async def pays_twice(run: Run) -> None:
        await run.call(tool, 7)
        await run.call(tool, 7)

    agent = declare_agent(pays_twice)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await cluster.result(run_id)
    assert ledger.keys == [f"{run_id}:1", f"{run_id}:2"]


@pytest.mark.req("RR-39", "C22")
async def test_a_tool_that_raised_has_answered_and_is_not_asked_again(cluster: Cluster) -> None:
    calls = 0
    gate = Gate()

    async def refuses() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("declined: \0\ud800")

    tool = declare_tool(refuses)

    async def pays(run: Run) -> str:
        try:
            await run.call(tool)
        except ToolFailed as error:
            await run.step(gate.wait)
            return str(error)
        return "it answered"

    agent = declare_agent(pays)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await host.kill()
    gate.open()
    await cluster.start(agent)
    text = await cluster.result(run_id)
    assert isinstance(text, str)
    assert text.startswith("refuses: ValueError: declined")
    assert (await cluster.journal(run_id))["1"].result_kind is ResultKind.ERROR
    assert calls == 1
