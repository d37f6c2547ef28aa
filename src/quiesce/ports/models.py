"""Models: what the ready-made agent loop asks, what comes back, and the one Protocol that an adapter implements.

Requests and replies are values with a JSON form, since a model request is a journaled step: its arguments are fingerprinted
and its reply is stored once and never asked for again. Messages are plain JSON objects in the common chat format, so that
an adapter passes them on and a log can be read by other tools:

    {"role": "system" | "user", "content": TEXT}
    {"role": "assistant", "content": TEXT, "tool_calls": [{"id", "type": "function", "function": {"name", "arguments"}}]}
    {"role": "tool", "tool_call_id": ID, "content": TEXT}

`arguments` is the JSON text that the model wrote: kept as it came, because a model may write text that is no JSON.
Knows no provider, no key and no network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quiesce.domain.canonical import Json
from quiesce.domain.errors import InvalidInput

Message = dict[str, Json]
"""One entry of a conversation, in the common chat format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """Return the tool in the common chat format."""
        function: dict[str, Json] = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    @classmethod
    def from_json(cls, value: Json) -> ToolSpec:
        """Return what `to_json` was made from; `InvalidInput` names the part that does not fit."""
        function = _object(_object(value, "tool").get("function"), "tool.function")
        return cls(
            name=_text(function.get("name"), "tool.function.name"),
            description=_text(function.get("description"), "tool.function.description"),
            parameters=_object(function.get("parameters"), "tool.function.parameters"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a model proposes. `id` pairs it with its answer in the conversation; it is no idempotency key (C56)."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it; it need not be valid."""

    def to_json(self) -> dict[str, Json]:
        """Return the call as it stands in an assistant message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @classmethod
    def from_json(cls, value: Json) -> ToolCall:
        """Return what `to_json` was made from; `InvalidInput` names the part that does not fit."""
        call = _object(value, "tool_call")
        function = _object(call.get("function"), "tool_call.function")
        return cls(
            id=_text(call.get("id"), "tool_call.id"),
            name=_text(function.get("name"), "tool_call.function.name"),
            arguments=_text(function.get("arguments"), "tool_call.function.arguments"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request: the conversation so far, the tools on offer, and the bound on the answer."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int
    temperature: float | None = None
    """None leaves it to the model."""

    def to_json(self) -> dict[str, Json]:
        """Return the request; equal requests give equal JSON."""
        request: dict[str, Json] = {
            "messages": [dict(message) for message in self.messages],
            "tools": [tool.to_json() for tool in self.tools],
            "max_tokens": self.max_tokens,
        }
        if self.temperature is not None:
            request["temperature"] = self.temperature
        return request

    @classmethod
    def from_json(cls, value: Json) -> ModelRequest:
        """Return what `to_json` was made from; `InvalidInput` names the part that does not fit."""
        request = _object(value, "request")
        temperature = request.get("temperature")
        if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
            raise InvalidInput(field="request.temperature", value=temperature, rule="must be a number")
        return cls(
            messages=tuple(_object(message, "request.messages") for message in _list(request, "messages")),
            tools=tuple(ToolSpec.from_json(tool) for tool in _list(request, "tools")),
            max_tokens=_whole(request.get("max_tokens"), "request.max_tokens"),
            temperature=temperature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One whole answer. `text` is exactly what was handed to `on_text`, joined."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    """`tokens`, `input_tokens`, `output_tokens`, as far as the model counts them: the units that budgets are drawn in."""
    finish_reason: str = "stop"
    """The model's own word: `stop`, `tool_calls`, `length`, `content_filter`."""

    def to_message(self) -> Message:
        """Return the answer as the assistant message that the next request carries."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return message

    def to_json(self) -> dict[str, Json]:
        """Return the reply as it is stored."""
        return {
            "text": self.text,
            "tool_calls": [call.to_json() for call in self.tool_calls],
            "usage": dict(self.usage),
            "finish_reason": self.finish_reason,
        }

    @classmethod
    def from_json(cls, value: Json) -> ModelReply:
        """Return what `to_json` was made from; `InvalidInput` names the part that does not fit."""
        reply = _object(value, "reply")
        usage = _object(reply.get("usage"), "reply.usage")
        return cls(
            text=_text(reply.get("text"), "reply.text"),
            tool_calls=tuple(ToolCall.from_json(call) for call in _list(reply, "tool_calls")),
            usage={unit: _whole(amount, f"reply.usage.{unit}") for unit, amount in usage.items()},
            finish_reason=_text(reply.get("finish_reason"), "reply.finish_reason"),
        )


class Model(Protocol):
    """A language model. Stateless: what it answers depends on the request and on nothing that this process remembers."""

    @property
    def binding(self) -> str:
        """Stable identity, equal in every process: `scripted:NAME`, `openai:MODEL@HOST`, `local:NAME`. Holds no secret.

        A run stores it at its start and is not continued with another one (RR-40).
        """

    @property
    def is_live(self) -> bool:
        """Whether answers come from a real model rather than from a script."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        """Ask once and return the whole answer; each piece of text is awaited through `on_text` as it arrives.

        A slow `on_text` slows the reading, nothing is dropped. Cancelling the awaiting task ends the request: no piece is
        handed on afterwards. Raises `ModelError` if there is no whole answer (`ModelUnavailable` if asking again may
        help); nothing is retried here, since the caller's journal decides that. What `on_text` raises is passed on.
        """


def system_message(text: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": text}


def user_message(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant_message(text: str) -> Message:
    """Return a model's words."""
    return {"role": "assistant", "content": text}


def tool_message(tool_call_id: str, text: str) -> Message:
    """Return the answer to a tool call."""
    return {"role": "tool", "tool_call_id": tool_call_id, "content": text}


def _object(value: Json, name: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InvalidInput(field=name, value=value, rule="must be an object")
    return value


def _list(parent: Mapping[str, Json], name: str) -> list[Json]:
    value = parent.get(name)
    if not isinstance(value, list):
        raise InvalidInput(field=name, value=value, rule="must be a list")
    return value


def _text(value: Json, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field=name, value=value, rule="must be text")
    return value


def _whole(value: Json, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field=name, value=value, rule="must be a whole number")
    return value
