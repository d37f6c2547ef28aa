"""Any server that speaks the OpenAI chat-completions API, streamed. Needs the extra `openai`.

Nothing is retried here: a request is one journaled try, and whether to try again is the journal's decision. The API key is
read from the environment and kept out of everything that can be stored or shown: the binding, representations, and error
texts, of which servers are known to make an echo of the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from quiesce.domain.errors import ModelError, ModelUnavailable
from quiesce.ports.models import ModelReply, ModelRequest, ToolCall

if TYPE_CHECKING:
    from openai import APIError, AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolUnionParam
    from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

_BASE_URL: Final = "https://api.openai.com/v1"
_MESSAGE_CHARS_MAX: Final = 500
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_NEVER_RETRYABLE: Final = frozenset({"insufficient_quota"})


class OpenAICompatibleModel:
    """Implements `ports.models.Model`.

    `api_key_env` names the environment variable that holds the key (servers that want none still need it set, to any
    text). `timeout_ms` bounds the wait for the next piece, not the whole answer. Raises `ModelError` if the variable is
    not set or the extra is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = _BASE_URL,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_ms: int = 60_000,
    ) -> None:
        key = os.environ.get(api_key_env)
        if not key:
            raise ModelError(f"the environment variable {api_key_env} is not set", variable=api_key_env)
        self._model = model
        self._host = _host(base_url)
        self._key = key
        self._client = _make_client(base_url, key, timeout_ms)

    @property
    def binding(self) -> str:
        """`openai:MODEL@HOST`."""
        return f"openai:{self._model}@{self._host}"

    @property
    def is_live(self) -> bool:
        """True."""
        return True

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        """Ask once; see the port. Cancelling closes the connection, which servers take as the end of the request."""
        answer = _Answer()
        async with aclosing(self._chunks(request)) as chunks:
            async for chunk in chunks:
                if text := answer.take(chunk):
                    await on_text(text)
        if answer.finish_reason is None:
            raise ModelUnavailable(f"{self.binding}: the answer was cut off", binding=self.binding)
        return answer.reply(answer.finish_reason)

    async def close(self) -> None:
        """Close idle connections. Idempotent."""
        await self._client.close()

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[ChatCompletionChunk, None]:
        from openai import APIError, omit

        # OpenAI's newer models know only the newer name, most other servers only the older one.
        limit = {"max_completion_tokens" if self._host == "api.openai.com" else "max_tokens": request.max_tokens}
        try:
            async with await self._client.chat.completions.create(
                model=self._model,
                messages=cast("list[ChatCompletionMessageParam]", list(request.messages)),
                tools=cast("list[ChatCompletionToolUnionParam]", [tool.to_json() for tool in request.tools]) or omit,
                temperature=omit if request.temperature is None else request.temperature,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=limit,
            ) as stream:
                async for chunk in stream:
                    yield chunk
        except APIError as error:
            # Not chained: the client's errors carry the request, and with it the key.
            raise self._error(error) from None
        except json.JSONDecodeError:
            raise ModelError(f"{self.binding}: the answer is not JSON", binding=self.binding) from None

    def _error(self, error: APIError) -> ModelError:
        from openai import APIConnectionError, APIStatusError

        message = error.message.replace(self._key, "[key]")[:_MESSAGE_CHARS_MAX]
        if isinstance(error, APIConnectionError):
            return ModelUnavailable(f"{self.binding}: {message}", binding=self.binding)
        status = error.status_code if isinstance(error, APIStatusError) else None
        is_retryable = (status is None or status >= 500 or status in _RETRYABLE) and error.code not in _NEVER_RETRYABLE
        kind = ModelUnavailable if is_retryable else ModelError
        shown = f"status {status}: {message}" if status is not None else message
        return kind(f"{self.binding}: {shown}", binding=self.binding, status=status)


@dataclass(slots=True)
class _Answer:
    """An answer that is put together from chunks."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, _PartialCall] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None

    def take(self, chunk: ChatCompletionChunk) -> str:
        """Add a chunk and return the text in it. The chunk with the usage has no choices."""
        if chunk.usage is not None:
            self.usage = {
                "tokens": chunk.usage.total_tokens,
                "input_tokens": chunk.usage.prompt_tokens,
                "output_tokens": chunk.usage.completion_tokens,
            }
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        for piece in choice.delta.tool_calls or ():
            self.calls.setdefault(piece.index, _PartialCall()).take(piece)
        text = choice.delta.content or choice.delta.refusal or ""
        self.text.append(text)
        return text

    def reply(self, finish_reason: str) -> ModelReply:
        """Return the whole answer."""
        return ModelReply(
            text="".join(self.text),
            tool_calls=tuple(self.calls[index].call(index) for index in sorted(self.calls)),
            usage=self.usage,
            finish_reason=finish_reason,
        )


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def take(self, piece: ChoiceDeltaToolCall) -> None:
        self.id = piece.id or self.id
        if piece.function is not None:
            self.name = piece.function.name or self.name
            self.arguments.append(piece.function.arguments or "")

    def call(self, index: int) -> ToolCall:
        """Return the call; some servers give no id."""
        return ToolCall(id=self.id or f"call_{index}", name=self.name, arguments="".join(self.arguments))


def _make_client(base_url: str, key: str, timeout_ms: int) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise ModelError("this model needs the extra 'openai': pip install 'quiesce[openai]'", extra="openai") from None
    return AsyncOpenAI(api_key=key, base_url=base_url, timeout=timeout_ms / 1000, max_retries=0)


def _host(base_url: str) -> str:
    """Return host and port, without what else a URL may hold (a password, say)."""
    parts = urlsplit(base_url)
    return f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"
