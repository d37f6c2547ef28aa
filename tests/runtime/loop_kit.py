"""What the tests of the agent loop share: a script that remembers what it was asked, and readings of a conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.adapters.models.scripted import ScriptedCall, ScriptedModel, Turn
from quiesce.domain.ids import RunId
from quiesce.ports.models import Message, ModelReply, ModelRequest
from quiesce.runtime.conversation import conversation_of
from quiesce.runtime.registry import Tool, declare_tool
from tests.runtime.kit import Cluster

ON_TWO_STORES = pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
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


def answers_in(messages: tuple[Message, ...] | list[Message]) -> dict[str, str]:
    return {str(m["tool_call_id"]): str(m["content"]) for m in messages if m["role"] == "tool"}


def is_accepted(messages: list[Message]) -> bool:
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


async def conversation_now(cluster: Cluster, run_id: RunId, message: str = "go") -> list[Message]:
    return conversation_of("", message, [], (await cluster.service.inspect(run_id)).operations)
