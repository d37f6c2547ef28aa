"""The scripted model: a function of the history, streamed in order, countable from outside."""

import asyncio
import json
from pathlib import Path

import pytest

from quiesce.adapters.models.scripted import ScriptedCall, ScriptedModel, Turn, words
from quiesce.domain.errors import InvalidInput, ModelError
from quiesce.ports.models import Message, Model, ModelReply, ModelRequest, tool_message, user_message

TURNS = (
    Turn(text="Let me look.", calls=(ScriptedCall(name="search", arguments={"query": "durable"}),)),
    Turn(text="The answer is 42,\n  and no more. "),
)


def model(**options: object) -> ScriptedModel:
    return ScriptedModel("two-turns", TURNS, **options)  # type: ignore[arg-type]


def request(*messages: Message) -> ModelRequest:
    return ModelRequest(messages=(user_message("What is it?"), *messages), max_tokens=100)


async def ask(asked: Model, of: ModelRequest) -> tuple[ModelReply, list[str]]:
    pieces: list[str] = []

    async def on_text(piece: str) -> None:
        pieces.append(piece)

    return await asked.complete(of, on_text), pieces


async def test_the_turn_follows_from_the_number_of_answers_in_the_history() -> None:
    first, _ = await ask(model(), request())
    assert first.tool_calls[0].name == "search"
    assert json.loads(first.tool_calls[0].arguments) == {"query": "durable"}
    assert first.finish_reason == "tool_calls"
    second, _ = await ask(model(), request(first.to_message(), tool_message("call_0_0", "found")))
    assert second.text == TURNS[1].text
    assert second.finish_reason == "stop"


@pytest.mark.req("RR-20")
async def test_the_same_history_gives_the_same_reply_in_any_instance_and_at_any_time() -> None:
    asked = model()
    history = request((await ask(asked, request()))[0].to_message())
    assert (await ask(asked, history))[0] == (await ask(asked, history))[0] == (await ask(model(), history))[0]


async def test_text_is_streamed_word_by_word_and_in_order() -> None:
    history = request({"role": "assistant", "content": "Let me look."})
    reply, pieces = await ask(model(), history)
    assert pieces == ["The", " answer", " is", " 42,", "\n  and", " no", " more.", " "]
    assert "".join(pieces) == reply.text


async def test_usage_adds_up() -> None:
    reply, _ = await ask(model(), request())
    assert reply.usage["tokens"] == reply.usage["input_tokens"] + reply.usage["output_tokens"] > 0


async def test_a_conversation_beyond_the_script_is_an_error_that_names_both() -> None:
    answer: Message = {"role": "assistant", "content": "x"}
    history = request(answer, answer)
    with pytest.raises(ModelError, match="has 2 turns; the conversation asks for turn 3"):
        await ask(model(), history)


async def test_each_request_leaves_one_line_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    for _ in range(3):
        await ask(model(log_path=log), request())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["turn"] for line in lines] == [0, 0, 0]
    assert {line["binding"] for line in lines} == {"scripted:two-turns"}


@pytest.mark.req("RR-32")
async def test_a_held_request_is_logged_and_can_be_cancelled_while_it_pends(tmp_path: Path) -> None:
    log, hold = tmp_path / "requests.jsonl", tmp_path / "hold"
    hold.touch()
    pending = asyncio.create_task(ask(model(log_path=log, hold=hold), request()))
    for _ in range(50):
        await asyncio.sleep(0)  # far more turns than an answer without a hold takes
    assert len(log.read_text().splitlines()) == 1
    assert not pending.done()
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending


async def test_a_held_request_is_answered_when_the_hold_is_removed(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    pending = asyncio.create_task(ask(model(hold=hold), request()))
    await asyncio.sleep(0)
    hold.unlink()
    assert (await pending)[0].text == TURNS[0].text


async def test_a_cancel_between_two_words_hands_on_nothing_more() -> None:
    pieces: list[str] = []
    reached = asyncio.Event()

    async def on_text(piece: str) -> None:
        pieces.append(piece)
        reached.set()
        await asyncio.Event().wait()

    pending = asyncio.create_task(model().complete(request(), on_text))
    await reached.wait()
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert pieces == ["Let"]


@pytest.mark.req("RR-40")
def test_a_script_is_never_live_and_its_binding_is_its_name() -> None:
    assert (model().binding, model().is_live) == ("scripted:two-turns", False)


def test_a_script_without_turns_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one turn"):
        ScriptedModel("empty", [])


@pytest.mark.parametrize("text", ["", " ", "a", " a  b\n", "a\n\nb"])
def test_the_words_of_a_text_joined_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text
