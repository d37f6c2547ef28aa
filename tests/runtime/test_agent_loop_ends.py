"""The agent loop after a cancel: the conversation has an answer to every call, and nothing runs on (C21, C19)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quiesce.adapters.models.scripted import Turn
from quiesce.adapters.process_tools import ProcessTools
from quiesce.domain.canonical import parse
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import RunStatus
from quiesce.ports.models import ModelReply, ModelRequest
from quiesce.runtime.agent_loop import loop
from quiesce.runtime.conversation import NO_ANSWER, NOT_STARTED, OUTCOME_UNKNOWN
from quiesce.runtime.registry import declare_tool
from tests.adapters import tool_functions
from tests.runtime.cancel_kit import Pause, cancel, cancelled, proven
from tests.runtime.kit import Cluster, Gate, eventually
from tests.runtime.loop_kit import ON_TWO_STORES, Recording, answers_in, call, conversation_now, is_accepted, looks

pytestmark = ON_TWO_STORES


# -- the conversation after an end -------------------------------------------------------------------------------------------


@pytest.mark.req("C21", "RR-36", "TR-44")
async def test_after_a_cancel_in_the_first_tool_every_proposed_call_has_an_answer_and_none_is_made(cluster: Cluster) -> None:
    gate = Gate()
    calls: Counter[str] = Counter()

    async def pay() -> None:
        calls["pay"] += 1
        await gate.wait()

    async def read() -> None:
        calls["read"] += 1
        await gate.wait()

    tools = [declare_tool(pay, effect="once"), declare_tool(read, effect="pure")]
    model = Recording(Turn(text="Both.", calls=(call("pay"), call("read"))), Turn(text="unreached"))
    agent = loop(model, tools)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    await gate.arrival(2)
    await cancelled(cluster, run_id)
    conversation = await conversation_now(cluster, run_id)
    assert [m["role"] for m in conversation] == ["user", "assistant", "tool", "tool"]
    assert list(answers_in(conversation).values()) == [OUTCOME_UNKNOWN, NO_ANSWER]
    assert is_accepted(conversation)
    following = Recording(Turn(text="unreached"), Turn(text="X is done."), name="following")
    other = loop(following, tools, name="other")
    await cluster.start(other)
    result = await cluster.result(await cluster.submit(other, "never mind, do X", conversation))
    assert isinstance(result, dict)
    assert result["text"] == "X is done."
    asked = list(following.requests[0].messages)
    assert asked == [*conversation, {"role": "user", "content": "never mind, do X"}]
    assert is_accepted(asked)
    assert calls == {"pay": 1, "read": 1}


@pytest.mark.req("C21", "C09")
async def test_after_a_cancel_before_any_dispatch_every_proposed_call_is_said_not_to_have_started(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(Turn(calls=(call("look", what="a"), call("look", what="b"))), Turn(text="unreached"))
    agent = loop(model, [looks(seen)])
    host = cluster.host(agent, crash_at="dispatch.before")
    pause = Pause(host)
    await host.start()
    run_id = await cluster.submit(agent, "go")
    await pause.arrival()
    await cancel(cluster, run_id)
    pause.resume()
    await proven(cluster, run_id)
    conversation = await conversation_now(cluster, run_id)
    assert list(answers_in(conversation).values()) == [NOT_STARTED, NOT_STARTED]
    assert is_accepted(conversation)
    assert (seen, len(model.requests)) == ({}, 1)


@pytest.mark.req("C21", "RR-33")
async def test_a_reply_that_never_became_whole_is_not_in_the_conversation(cluster: Cluster) -> None:
    reached, for_ever = asyncio.Event(), asyncio.Event()

    class Slow(Recording):
        async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
            await on_text("half a ")
            reached.set()
            await for_ever.wait()
            return await super().complete(request, on_text)

    agent = loop(Slow(Turn(text="half a sentence")))
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    await asyncio.wait_for(reached.wait(), 20)
    await cancelled(cluster, run_id)
    assert await conversation_now(cluster, run_id) == [{"role": "user", "content": "go"}]
    assert [parse(e.payload) for e in await cluster.events(run_id)] == [{"text": "half a "}]


# -- isolated tools --------------------------------------------------------------------------------------------------------


@pytest.mark.req("C19", "RR-38", "TR-10")
async def test_an_isolated_tool_that_ignores_its_cancel_is_killed_after_its_grace_with_all_its_group(
    cluster: Cluster, tmp_path: Path
) -> None:
    tool = declare_tool(tool_functions.stubborn_family, isolation="process", effect="once")
    pids = tmp_path / "pids"
    agent = loop(Recording(Turn(calls=(call("stubborn_family", pids=str(pids)),)), Turn(text="unreached")), [tool])
    await cluster.start(agent, tool_process=ProcessTools())
    run_id = await cluster.submit(agent, "go")
    await eventually(lambda: _exists(pids))
    family = [int(pid) for pid in pids.read_text().split()]
    assert all(_is_alive(pid) for pid in family)
    await cancel(cluster, run_id, grace_ms=100)
    receipt = await proven(cluster, run_id)
    assert not any(_is_alive(pid) for pid in family)
    assert (receipt.status, receipt.escalated, receipt.cleanup_completed) == (RunStatus.CANCELLED, True, True)
    assert [o["status"] for o in receipt.unresolved] == ["unknown"]
    assert (await cluster.journal(run_id))["3"].status is OperationStatus.UNKNOWN


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
