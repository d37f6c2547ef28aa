"""A model that follows a script: for tests, demonstrations and the built-in cases. Never live (RR-40).

The turn is chosen by the number of assistant messages in the request, so an answer is a function of the history alone: the
same after a restart, in another process, or on replay. Nothing is counted in memory; who wants to count requests from
outside gives a log file, to which each request appends one line before it is answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quiesce.domain.canonical import Json
from quiesce.domain.errors import InvalidInput, ModelError
from quiesce.ports.models import Message, ModelReply, ModelRequest, ToolCall

_WORD: Final = re.compile(r"\s*\S+|\s+")
_HOLD_POLL_MS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call of a turn. The arguments are given as a value; the model's JSON text is made from it."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer: text, tool calls, or both."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()


class ScriptedModel:
    """Implements `ports.models.Model` from a fixed list of turns.

    `token_delay_ms` is waited before each word. `log_path`: a file that gets one JSON line per request (`binding`, `turn`,
    `pid`). `hold`: while a file exists at this path, a request that has been logged stays unanswered.
    """

    def __init__(
        self,
        name: str,
        turns: Sequence[Turn],
        *,
        token_delay_ms: float = 0,
        log_path: Path | None = None,
        hold: Path | None = None,
    ) -> None:
        if not turns:
            raise InvalidInput(field="turns", value=list(turns), rule="must hold at least one turn")
        self._name = name
        self._turns = tuple(turns)
        self._token_delay_ms = token_delay_ms
        self._log_path = log_path
        self._hold = hold

    @property
    def binding(self) -> str:
        """`scripted:NAME`."""
        return f"scripted:{self._name}"

    @property
    def is_live(self) -> bool:
        """False."""
        return False

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        """Answer with the turn that follows the history, word by word. `ModelError` past the end of the script."""
        index = sum(1 for message in request.messages if message.get("role") == "assistant")
        self._log(index)
        await self._held()
        if index >= len(self._turns):
            raise ModelError(
                f"the script {self.binding} has {len(self._turns)} turns; the conversation asks for turn {index + 1}",
                binding=self.binding,
                turn=index,
            )
        turn = self._turns[index]
        for piece in words(turn.text):
            await asyncio.sleep(self._token_delay_ms / 1000)
            await on_text(piece)
        return ModelReply(
            text=turn.text,
            tool_calls=tuple(_call(call, index, n) for n, call in enumerate(turn.calls)),
            usage=_usage(request.messages, turn),
            finish_reason="tool_calls" if turn.calls else "stop",
        )

    def _log(self, turn: int) -> None:
        if self._log_path is None:
            return
        line = json.dumps({"binding": self.binding, "turn": turn, "pid": os.getpid()}) + "\n"
        # One write to a file opened for appending: lines of several processes do not mix.
        handle = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    async def _held(self) -> None:
        while self._hold is not None and self._hold.exists():  # noqa: ASYNC110 - another process ends it, by removing a file
            await asyncio.sleep(_HOLD_POLL_MS / 1000)


def words(text: str) -> list[str]:
    """Split text into the pieces that are streamed: words with the space before them. Joined, they are the text."""
    return _WORD.findall(text)


def _call(call: ScriptedCall, turn: int, number: int) -> ToolCall:
    return ToolCall(id=f"call_{turn}_{number}", name=call.name, arguments=json.dumps(dict(call.arguments), sort_keys=True))


def _usage(messages: Sequence[Message], turn: Turn) -> dict[str, int]:
    """Count words as tokens: any deterministic measure serves to draw on a budget."""
    read = sum(len(words(content)) for message in messages if isinstance(content := message.get("content"), str))
    written = len(words(turn.text)) + sum(len(words(json.dumps(dict(call.arguments)))) for call in turn.calls)
    return {"tokens": read + written, "input_tokens": read, "output_tokens": written}
