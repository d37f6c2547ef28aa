"""Requests and replies survive their JSON form, and what does not fit is named."""

import json

import pytest

from quiesce.domain.canonical import Json
from quiesce.domain.errors import InvalidInput
from quiesce.ports.models import ModelReply, ModelRequest, ToolCall, ToolSpec, system_message, tool_message, user_message

SPEC = ToolSpec(name="search", description="Find.", parameters={"type": "object", "properties": {}})
CALL = ToolCall(id="c1", name="search", arguments='{"query": "x"')
REPLY = ModelReply(text="t", tool_calls=(CALL,), usage={"tokens": 3}, finish_reason="tool_calls")


def through_text(value: dict[str, Json]) -> Json:
    parsed: Json = json.loads(json.dumps(value))
    return parsed


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_a_request_survives_its_json_form(temperature: float | None) -> None:
    request = ModelRequest(
        messages=(system_message("s"), user_message("u"), REPLY.to_message(), tool_message("c1", "r")),
        tools=(SPEC,),
        max_tokens=10,
        temperature=temperature,
    )
    assert ModelRequest.from_json(through_text(request.to_json())) == request


def test_a_reply_survives_its_json_form_with_arguments_that_are_no_json() -> None:
    assert ModelReply.from_json(through_text(REPLY.to_json())) == REPLY


def test_an_assistant_message_without_calls_has_no_list_of_calls() -> None:
    assert ModelReply(text="t").to_message() == {"role": "assistant", "content": "t"}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "reply"),
        ({"text": 1, "tool_calls": [], "usage": {}, "finish_reason": "stop"}, "reply.text"),
        ({"text": "", "tool_calls": {}, "usage": {}, "finish_reason": "stop"}, "tool_calls"),
        ({"text": "", "tool_calls": [{"id": 1, "function": {}}], "usage": {}, "finish_reason": "stop"}, "tool_call.id"),
        ({"text": "", "tool_calls": [], "usage": {"tokens": 1.5}, "finish_reason": "stop"}, "reply.usage.tokens"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused_by_the_name_of_its_part(value: Json, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ModelReply.from_json(value)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("temperature", ["hot", True])
def test_a_temperature_that_is_no_number_is_refused(temperature: Json) -> None:
    with pytest.raises(InvalidInput, match="must be a number"):
        ModelRequest.from_json({"messages": [], "tools": [], "max_tokens": 1, "temperature": temperature})
