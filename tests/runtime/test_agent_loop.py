"""The ready-made agent loop: turns, tools, budgets, restarts, and what its checkpoints cost (C21, NO-20)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from quiesce.adapters.models.scripted import ScriptedCall, Turn
from quiesce.domain.canonical import parse
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import RunId
from quiesce.domain.operations import OperationKind
from quiesce.ports.models import ModelReply
from quiesce.runtime.agent_loop import WRAP_UP, loop
from quiesce.runtime.conversation import NOT_STARTED
from quiesce.runtime.registry import declare_tool
from tests.runtime.cancel_kit import proven
from tests.runtime.kit import Cluster, Gate
from tests.runtime.loop_kit import ON_TWO_STORES, Recording, answers_in, call, conversation_now, is_accepted, looks

pytestmark = ON_TWO_STORES


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
    assert list(answers_in(last).values()) == ["met a", "met b", "met a"]
    journal = (await cluster.service.inspect(run_id)).operations
    assert sorted((o.position, o.name) for o in journal if o.kind is OperationKind.CALL) == [(p, "meet") for p in "345"]
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
    first, second = answers_in(model.requests[-1].messages).values()
    assert first == "saw a"
    assert second.startswith(answer), second
    assert seen == {"a": 1}
    assert is_accepted(await conversation_now(cluster, run_id))


@pytest.mark.req("C21")
async def test_arguments_that_are_no_json_are_answered_in_words(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()
    model = Recording(Turn(calls=(call("look", what="a"),)), Turn(text="I see."), garbled=True)
    agent = loop(model, [looks(seen)])
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "go")
    assert await cluster.result(run_id) == {"text": "I see.", "turns": 2, "ended_by": "answer"}
    assert list(answers_in(model.requests[-1].messages).values()) == ["error: the arguments are no JSON object"]
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
    conversation = await conversation_now(cluster, run_id)
    assert is_accepted(conversation)
    assert list(answers_in(conversation).values()) == ["saw a", NOT_STARTED]


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
    answers = list(answers_in(model.requests[-1].messages).values())
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
