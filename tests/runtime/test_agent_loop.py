"""The ready-made agent loop: turns, tools, budgets, restarts, and the conversation after any end (C21, NO-20)."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.adapters.models.scripted import ScriptedCall, ScriptedModel, Turn
from quiesce.adapters.process_tools import ProcessTools
from quiesce.domain.canonical import parse
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import RunId
from quiesce.domain.operations import OperationKind, OperationStatus
from quiesce.domain.runs import RunStatus
from quiesce.ports.models import Message, ModelReply, ModelRequest
from quiesce.runtime.agent_loop import NO_ANSWER, NOT_STARTED, OUTCOME_UNKNOWN, WRAP_UP, conversation_of, loop
from quiesce.runtime.registry import Tool, declare_tool
from tests.adapters import tool_functions
from tests.runtime.cancel_kit import Pause, cancel, cancelled, proven
from tests.runtime.kit import Cluster, Gate, eventually

pytestmark = pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
"""The loop uses nothing but the `Run`, which the other modules try on every store."""


class Recording:
    """Implements `ports.models.Model`: a script, and what it was asked. A reply's arguments may be garbled."""

    def __init__(self, *turns: Turn, garbled: bool = False, log: Path | None = None, name: str = "script") -> None:
        self._script = ScriptedModel(name, turns, log_path=log)
        self._garbled = garbled
        self.requests: list[ModelRequest] = []

    @property
    def binding(self) -> str:
        return self._script.binding

    @property
    def is_live(self) -> bool:
        return False

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        self.requests.append(request)
        reply = await self._script.complete(request, on_text)
        if not self._garbled:
            return reply
        return replace(reply, tool_calls=tuple(replace(call, arguments='{"what": ') for call in reply.tool_calls))


def call(name: str, **arguments: str) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def looks(seen: Counter[str]) -> Tool:
    async def look(what: str) -> str:
        """Look at something."""
        seen[what] += 1
        return f"saw {what}"

    return declare_tool(look, effect="idempotent")


def _answers(messages: tuple[Message, ...] | list[Message]) -> dict[str, str]:
    return {str(m["tool_call_id"]): str(m["content"]) for m in messages if m["role"] == "tool"}


def _is_accepted(messages: list[Message]) -> bool:
    """Whether each proposed call has exactly one answer, right behind its reply: what models insist on."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(str(message["tool_call_id"]))
        elif waiting:
            return False
        calls = message.get("tool_calls", [])
        assert isinstance(calls, list)
        waiting.extend(str(c["id"]) for c in calls if isinstance(c, dict))
    return not waiting


async def _conversation(cluster: Cluster, run_id: RunId, message: str = "go") -> list[Message]:
    return conversation_of("", message, [], (await cluster.service.inspect(run_id)).operations)


# -- turns and tools -------------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-20", "C56")
async def test_calls_of_one_turn_run_side_by_side_and_two_to_one_tool_keep_their_answers_apart(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    gate = Gate()

    async def meet(what: str) -> str:
        if gate.arrivals == 2:
            gate.open()
        await gate.wait()  # opens only once three are here at the same time
        return f"met {what}"

    model = Recording(
        Turn(text="Looking.", calls=(call("meet", what="a"), call("meet", what="b"), call("meet", what="a"))),
        Turn(text="Done."),
    )
    agent = loop(model, [declare_tool(meet), looks(seen)], system="Be brief.")
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    assert await cluster.result(run_id) == {"text": "Done.", "turns": 2, "ended_by": "answer"}
    assert gate.arrivals == 3
    last = model.requests[-1].messages
    assert [m["role"] for m in last] == ["system", "user", "assistant", "tool", "tool", "tool"]
    assert list(_answers(last).values()) == ["met a", "met b", "met a"]
    journal = (await cluster.service.inspect(run_id)).operations
    assert sorted((o.position, o.name) for o in journal if o.kind is OperationKind.CALL) == [(p, "meet") for p in "234"]
    keys = {o.key for o in journal if o.kind is OperationKind.CALL}
    assert len(keys) == 3


@pytest.mark.req("NO-20")
async def test_what_the_model_says_is_streamed_and_is_the_result(cluster: Cluster) -> None:
    agent = loop(Recording(Turn(text="The answer is 42.")))
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    await cluster.result(run_id)
    pieces = [parse(e.payload) for e in await cluster.events(run_id)]
    assert "".join(str(p["text"]) for p in pieces if isinstance(p, dict)) == "The answer is 42."
    receipt = await proven(cluster, run_id)
    assert receipt.gap.kind == "none"


@pytest.mark.req("C21", "C22")
@pytest.mark.parametrize(
    ("proposal", "answer"),
    [
        (call("fly"), "error: there is no tool 'fly' (known: breaks, look)"),
        (call("look", where="here"), "error: arguments of look"),
        (call("look"), "error: look: TypeError"),
        (call("breaks"), "error: breaks: ValueError: out of order"),
    ],
    ids=["unknown tool", "unknown argument", "missing argument", "failing tool"],
)
async def test_a_call_that_cannot_be_made_is_answered_in_words_and_the_run_goes_on(
    cluster: Cluster, proposal: ScriptedCall, answer: str
) -> None:
    seen: Counter[str] = Counter()

    async def breaks() -> None:
        raise ValueError("out of order")

    model = Recording(Turn(calls=(call("look", what="a"), proposal)), Turn(text="I see."))
    agent = loop(model, [looks(seen), declare_tool(breaks)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    assert await cluster.result(run_id) == {"text": "I see.", "turns": 2, "ended_by": "answer"}
    first, second = _answers(model.requests[-1].messages).values()
    assert first == "saw a"
    assert second.startswith(answer), second
    assert seen == {"a": 1}
    assert _is_accepted(await _conversation(cluster, run_id))


@pytest.mark.req("C21")
async def test_arguments_that_are_no_json_are_answered_in_words(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(Turn(calls=(call("look", what="a"),)), Turn(text="I see."), garbled=True)
    agent = loop(model, [looks(seen)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    assert await cluster.result(run_id) == {"text": "I see.", "turns": 2, "ended_by": "answer"}
    assert list(_answers(model.requests[-1].messages).values()) == ["error: the arguments are no JSON object"]
    assert seen == {}


async def test_a_loop_ends_after_its_last_turn(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(*(Turn(calls=(call("look", what=str(n)),)) for n in range(5)))
    agent = loop(model, [looks(seen)], turns_max=3)
    await cluster.start(agent)
    assert await cluster.result(await cluster.submit(agent, "go")) == {"text": "", "turns": 3, "ended_by": "turns"}
    assert len(model.requests) == 3


async def test_tools_of_one_name_are_refused(url: str) -> None:
    seen: Counter[str] = Counter()
    with pytest.raises(InvalidInput, match="different names"):
        loop(Recording(Turn(text="")), [looks(seen), looks(seen)])


# -- budgets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-20", "RR-19")
async def test_when_the_tokens_run_out_the_model_gets_one_bounded_turn_without_tools(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(
        Turn(text="I look first of all.", calls=(call("look", what="a"),)),
        Turn(text="With what I have.", calls=(call("look", what="b"),)),
        Turn(text="never asked for"),
    )
    agent = loop(model, [looks(seen)], tokens_per_turn=100, wrap_up_tokens=20)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go", budget={"tokens": 125})
    assert await cluster.result(run_id) == {"text": "With what I have.", "turns": 2, "ended_by": "budget"}
    assert [(len(r.tools), r.max_tokens) for r in model.requests] == [(1, 100), (0, 20)]
    assert model.requests[-1].messages[-1] == {"role": "user", "content": WRAP_UP}
    assert seen == {"a": 1}
    receipt = await proven(cluster, run_id)
    tokens = receipt.usage["tokens"]
    assert tokens["reserved"] == 0
    used = sum(reply.usage["tokens"] for reply in await _replies(cluster, run_id))
    assert tokens["used"] == used
    conversation = await _conversation(cluster, run_id)
    assert _is_accepted(conversation)
    assert list(_answers(conversation).values()) == ["saw a", NOT_STARTED]


async def _replies(cluster: Cluster, run_id: RunId) -> list[ModelReply]:
    operations = (await cluster.service.inspect(run_id)).operations
    return [ModelReply.from_json(parse(o.result)) for o in operations if o.name == "model" and o.result_kind == "ok" and o.result]


@pytest.mark.req("NO-20", "RR-19")
async def test_when_the_tool_calls_run_out_the_refused_one_is_named_and_the_loop_wraps_up(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(
        Turn(calls=(call("look", what="a"), call("look", what="b"))),
        Turn(text="One of two."),
    )
    agent = loop(model, [looks(seen)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go", budget={"tool_calls": 1})
    assert await cluster.result(run_id) == {"text": "One of two.", "turns": 2, "ended_by": "budget"}
    answers = list(_answers(model.requests[-1].messages).values())
    assert sorted(answer.split(":")[0] for answer in answers) == ["error", "saw a"] or "saw b" in answers
    assert sum("error: not started" in answer for answer in answers) == 1
    assert model.requests[-1].tools == ()
    assert seen.total() == 1
    assert (await proven(cluster, run_id)).usage["tool_calls"] == {"limit": 1, "used": 1, "reserved": 0}


@pytest.mark.req("NO-20")
async def test_without_even_the_tokens_for_a_last_turn_the_loop_ends_in_silence(cluster: Cluster) -> None:
    model = Recording(Turn(text="never asked for"))
    agent = loop(model, tokens_per_turn=100, wrap_up_tokens=20)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go", budget={"tokens": 19})
    assert await cluster.result(run_id) == {"text": "", "turns": 1, "ended_by": "budget"}
    assert model.requests == []


# -- restarts --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("RR-10", "RR-11", "C57", "C60")
@pytest.mark.parametrize(
    ("point", "nth"), [("dispatch.before", 2), ("result.after", 2), ("checkpoint.after", 1), ("step.after", 2)]
)
async def test_a_restart_in_the_middle_asks_the_model_nothing_again(
    cluster: Cluster, tmp_path: Path, point: str, nth: int
) -> None:
    seen: Counter[str] = Counter()
    log = tmp_path / "requests.jsonl"
    turns = (
        Turn(text="First.", calls=(call("look", what="a"), call("look", what="b"))),
        Turn(text="Second.", calls=(call("look", what="c"),)),
        Turn(text="Done."),
    )
    agents = [loop(Recording(*turns, log=log), [looks(seen)]) for _ in range(2)]
    first = await cluster.start(agents[0], crash_at=point, nth=nth)
    run_id = await cluster.submit(agents[0], "go")
    await first.death()
    await cluster.start(agents[1])
    assert await cluster.result(run_id) == {"text": "Done.", "turns": 3, "ended_by": "answer"}
    asked = [json.loads(line)["turn"] for line in log.read_text().splitlines()]
    assert asked == [0, 1, 2]
    assert set(seen) == {"a", "b", "c"}
    assert (await cluster.run(run_id)).attempt == 2
    text = "".join(
        str(p["text"]) for e in await cluster.events(run_id) if isinstance(p := parse(e.payload), dict) and "text" in p
    )
    assert text == "First.Second.Done."


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
    await eventually(lambda: _have_arrived(gate, 2))
    await cancelled(cluster, run_id)
    conversation = await _conversation(cluster, run_id)
    assert [m["role"] for m in conversation] == ["user", "assistant", "tool", "tool"]
    assert list(_answers(conversation).values()) == [OUTCOME_UNKNOWN, NO_ANSWER]
    assert _is_accepted(conversation)
    following = Recording(Turn(text="unreached"), Turn(text="X is done."), name="following")
    other = loop(following, tools, name="other")
    await cluster.start(other)
    result = await cluster.result(await cluster.submit(other, "never mind, do X", conversation))
    assert isinstance(result, dict)
    assert result["text"] == "X is done."
    asked = list(following.requests[0].messages)
    assert asked == [*conversation, {"role": "user", "content": "never mind, do X"}]
    assert _is_accepted(asked)
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
    conversation = await _conversation(cluster, run_id)
    assert list(_answers(conversation).values()) == [NOT_STARTED, NOT_STARTED]
    assert _is_accepted(conversation)
    assert (seen, len(model.requests)) == ({}, 1)


async def _have_arrived(gate: Gate, count: int) -> bool:
    return gate.arrivals == count


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
    assert await _conversation(cluster, run_id) == [{"role": "user", "content": "go"}]
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
    assert (await cluster.journal(run_id))["2"].status is OperationStatus.UNKNOWN


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


# -- costs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-33", "C100")
async def test_checkpoints_cost_the_length_of_a_conversation_and_not_its_square(cluster: Cluster) -> None:
    sums: dict[int, int] = {}
    seen: Counter[str] = Counter()
    for count in (10, 20):
        turns = [Turn(text="I look.", calls=(call("look", what="a thing"),)) for _ in range(count - 1)]
        agent = loop(Recording(*turns, Turn(text="Done.")), [looks(seen)], name=f"loop {count}", turns_max=count)
        await cluster.start(agent)
        run_id = await cluster.submit(agent, "go")
        await cluster.result(run_id)
        checkpoints = await _states(cluster, run_id)
        assert len(checkpoints) == count + 1
        sums[count] = sum(len(state) for state in checkpoints)
    assert 1.8 < sums[20] / sums[10] < 2.2


async def _states(cluster: Cluster, run_id: RunId) -> list[bytes]:
    return [c.state for c in await cluster.store.read(lambda tx: tx.checkpoints.of_run(run_id))]
