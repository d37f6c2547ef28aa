"""The ready-made agent on a thread: its model reads what the run builds on.

Of an answer that was stopped it reads exactly what was seen, marked, or nothing of it (C24).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from quiesce.adapters.models.scripted import Turn
from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.continuations import Carry, OnGap
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position
from quiesce.domain.streams import EventKind
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.models import ModelReply, ModelRequest
from quiesce.runtime.agent_loop import loop
from quiesce.runtime.context import Run
from quiesce.runtime.conversation import NOT_STARTED, OUTCOME_UNKNOWN, STOPPED_HERE
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import Agent, declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate, within
from tests.runtime.loop_kit import ON_TWO_STORES, Recording, answers_in, call, is_accepted, looks
from tests.runtime.talk import accept

pytestmark = ON_TWO_STORES

FIRST, ANSWER = {"role": "user", "content": "first"}, {"role": "assistant", "content": "Answer one."}


class Halting(Recording):
    """A model that answers by its script, and says 30 words of its second answer and no more."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__(*turns)
        self.is_halting = True
        self.said = asyncio.Event()

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        if str(request.messages[-1]["content"]) != "second" or not self.is_halting:
            return await super().complete(request, on_text)
        self.requests.append(request)
        for n in range(30):
            await on_text(f"word{n} ")
        self.said.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def _stopped(cluster: Cluster, model: Halting, agent: Agent) -> TerminalReceipt:
    """Have one turn answered and the next stopped behind its 30th word."""
    await cluster.start(agent)
    await cluster.result(await cluster.submit(agent, "first", thread="t-1"))
    run_id = await cluster.submit(agent, "second", thread="t-1")
    await within(model.said.wait())
    await cluster.stored(run_id, 30)
    await cluster.service.cancel(run_id)
    return await cluster.receipt(run_id)


@pytest.mark.req("C24", "TR-36")
async def test_the_next_model_reads_exactly_what_was_seen_up_to_the_receipts_last_event_marked_as_stopped(
    cluster: Cluster,
) -> None:
    model = Halting(Turn(text="Answer one."), Turn(text="unreached"), Turn(text="It goes on."))
    agent = loop(model)
    receipt = await _stopped(cluster, model, agent)
    last = await cluster.submit(agent, "third", thread="t-1", turn=accept(receipt, OnGap.RECONCILE))
    await cluster.receipt(last)
    seen = "".join(f"word{n} " for n in range(30))
    assert list(model.requests[-1].messages) == [
        FIRST,
        ANSWER,
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": seen},
        {"role": "user", "content": STOPPED_HERE},
        {"role": "user", "content": "third"},
    ]
    events = [e for e in await cluster.events(receipt.run_id) if e.kind is EventKind.DATA]
    assert events[-1].seq == receipt.frontier.emitted_seq


@pytest.mark.req("C24", "TR-29")
async def test_after_a_rollback_the_next_model_reads_nothing_of_it_and_its_usage_still_counts(cluster: Cluster) -> None:
    model = Halting(Turn(text="Answer one."), Turn(text="It goes on."))
    agent = loop(model)
    receipt = await _stopped(cluster, model, agent)
    last = await cluster.submit(agent, "third", thread="t-1", turn=accept(receipt, OnGap.RECONCILE, Carry.ROLLBACK))
    await cluster.receipt(last)
    assert list(model.requests[-1].messages) == [FIRST, ANSWER, {"role": "user", "content": "third"}]
    assert receipt.usage["model_calls"]["used"] or receipt.usage["model_calls"]["reserved"]


@pytest.mark.req("TR-37", "C24")
async def test_after_a_restart_the_next_model_reads_what_the_checkpoint_holds(cluster: Cluster) -> None:
    model = Halting(Turn(text="Answer one."), Turn(text="It goes on."))
    agent = loop(model)
    receipt = await _stopped(cluster, model, agent)
    last = await cluster.submit(agent, "third", thread="t-1", turn=accept(receipt, OnGap.RESTART))
    await cluster.receipt(last)
    asked = [FIRST, ANSWER, {"role": "user", "content": "second"}, {"role": "user", "content": "third"}]
    assert list(model.requests[-1].messages) == asked


@pytest.mark.req("C21", "TR-60")
async def test_calls_that_were_open_have_answers_and_none_is_made_by_going_on(cluster: Cluster) -> None:
    gate = Gate()
    calls: Counter[str] = Counter()

    async def pay() -> None:
        calls["pay"] += 1
        await gate.wait()

    model = Recording(Turn(text="Both.", calls=(call("pay"), call("look", what="a"))), Turn(text="X is done."))
    agent = loop(model, [declare_tool(pay, effect="idempotent"), looks(calls)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go", thread="t-1")
    await gate.arrival()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    for unknown in receipt.unresolved:
        await cluster.service.reconcile(
            Decision(
                run_id=run_id,
                position=Position(str(unknown["operation"])),
                verdict=Verdict.GIVE_UP,
                actor=Actor(kind=ActorKind.USER, name="ada"),
                grounds="nobody can say",
            )
        )
    policy = OnGap.RECONCILE if receipt.gap.first_seq is not None else None
    last = await cluster.submit(agent, "never mind, do X", thread="t-1", turn=accept(receipt, policy))
    result = await cluster.result(last)
    assert isinstance(result, dict)
    assert result["text"] == "X is done."
    asked = list(model.requests[-1].messages)
    assert is_accepted(asked)
    assert set(answers_in(asked).values()) <= {OUTCOME_UNKNOWN, NOT_STARTED, "saw a"}
    assert len(answers_in(asked)) == 2
    assert calls["pay"] == 1


@pytest.mark.req("RR-02")
async def test_a_run_that_is_taken_over_reads_the_same_past_again(cluster: Cluster) -> None:
    model = Recording(Turn(text="Answer one."), Turn(text="Answer two."))
    agent = loop(model)
    await cluster.start(agent)
    await cluster.result(await cluster.submit(agent, "first", thread="t-1"))
    await cluster.hosts[0].close()
    dying = await cluster.start(agent, crash_at="checkpoint.after")
    second = await cluster.submit(agent, "second", thread="t-1")
    await dying.death()
    await cluster.start(agent)
    await cluster.result(second)
    assert len(model.requests) == 2  # the reply was stored; a past that differed would not have matched the journal


async def test_turns_of_another_agent_are_read_as_question_and_answer(cluster: Cluster) -> None:
    async def adder(run: Run, a: int, b: int) -> int:
        return a + b

    other = declare_agent(adder)
    model = Recording(Turn(text="unreached"), Turn(text="Right."))
    agent = loop(model)
    await cluster.start(other, agent)
    await cluster.result(await cluster.submit(other, 1, 2, thread="t-1"))
    await cluster.result(await cluster.submit(agent, "right?", thread="t-1"))
    assert [m["content"] for m in model.requests[0].messages] == ["[1, 2]", "3", "right?"]
