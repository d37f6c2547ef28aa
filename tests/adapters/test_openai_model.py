"""The adapter for chat-completions servers, against a server of our own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from quiesce.adapters.models.openai_compatible import OpenAICompatibleModel
from quiesce.domain.canonical import Json
from quiesce.domain.errors import ModelError, ModelUnavailable
from quiesce.ports.models import ModelReply, ModelRequest, ToolCall, ToolSpec, user_message

KEY = "sk-very-secret-key"
USAGE: dict[str, Json] = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
REQUEST = ModelRequest(
    messages=(user_message("hello"),),
    tools=(ToolSpec(name="search", description="Find.", parameters={"type": "object"}),),
    max_tokens=50,
    temperature=0.0,
)


Answer = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request to a server on this machine, and the way to answer it. The connection closes when the answer ends."""

    def __init__(self, head: str, body: dict[str, Json], writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.body = body
        self._writer = writer
        self.cut_by_client = asyncio.Event()

    async def refuse(self, status: int, error: dict[str, Json]) -> None:
        data = json.dumps({"error": error}).encode()
        self._head(f"{status} Refused", "application/json", f"Content-Length: {len(data)}\r\n")
        self._writer.write(data)
        await self._writer.drain()

    def begin(self) -> None:
        self._head("200 OK", "text/event-stream", "Transfer-Encoding: chunked\r\n")

    async def send(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def delta(self, delta: dict[str, Json], finish_reason: str | None = None) -> None:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        await self.send(json.dumps(_chunk(choices=[choice])))

    async def finish(self, usage: dict[str, Json] | None = None) -> None:
        if usage is not None:
            await self.send(json.dumps(_chunk(choices=[], usage=usage)))
        await self.send("[DONE]")
        await self.end()

    async def end(self) -> None:
        """End the body in due form."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: str, content_type: str, more: str) -> None:
        self._writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}Connection: close\r\n\r\n".encode())


def _chunk(**fields: Json) -> dict[str, Json]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", **fields}


@asynccontextmanager
async def chat_server(answer: Answer) -> AsyncIterator[str]:
    """Serve on a free port; give the base URL."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
        exchange = Exchange(head, json.loads(await reader.readexactly(length)), writer)
        listener = asyncio.create_task(_listen(reader, exchange))
        try:
            await answer(exchange)
        finally:
            listener.cancel()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await asyncio.gather(*connections)


async def _listen(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    """Notice when the client closes the connection."""
    await reader.read()
    exchange.cut_by_client.set()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@asynccontextmanager
async def model_of(answer: Answer) -> AsyncIterator[OpenAICompatibleModel]:
    async with chat_server(answer) as base_url:
        model = OpenAICompatibleModel("gpt-x", base_url=base_url)
        try:
            yield model
        finally:
            await model.close()


async def ask(answer: Answer, request: ModelRequest = REQUEST) -> tuple[ModelReply, list[str]]:
    pieces: list[str] = []

    async def on_text(piece: str) -> None:
        pieces.append(piece)

    async with model_of(answer) as model:
        return await model.complete(request, on_text), pieces


async def test_text_is_streamed_piece_by_piece_with_usage_at_the_end() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.delta({"role": "assistant", "content": ""})
        for piece in ("Hel", "lo", " there"):
            await exchange.delta({"content": piece})
        await exchange.delta({}, finish_reason="stop")
        await exchange.finish(USAGE)

    reply, pieces = await ask(answer)
    assert pieces == ["Hel", "lo", " there"]
    assert reply == ModelReply(
        text="Hello there", usage={"tokens": 12, "input_tokens": 7, "output_tokens": 5}, finish_reason="stop"
    )


async def test_streamed_tool_calls_are_put_together() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        opening: Json = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": ""}}
        await exchange.delta({"role": "assistant", "content": None, "tool_calls": [opening]})
        await exchange.delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"que'}}]})
        await exchange.delta({"tool_calls": [{"index": 1, "function": {"name": "save", "arguments": "{}"}}]})
        await exchange.delta({"tool_calls": [{"index": 0, "function": {"arguments": 'ry": 1}'}}]})
        await exchange.delta({}, finish_reason="tool_calls")
        await exchange.finish()

    reply, pieces = await ask(answer)
    assert pieces == []
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == {}
    assert reply.tool_calls == (
        ToolCall(id="a", name="search", arguments='{"query": 1}'),
        ToolCall(id="call_1", name="save", arguments="{}"),
    )


async def test_the_request_goes_out_as_it_is_and_the_key_only_in_its_header() -> None:
    seen: list[Exchange] = []

    async def answer(exchange: Exchange) -> None:
        seen.append(exchange)
        exchange.begin()
        await exchange.delta({"content": "x"}, finish_reason="stop")
        await exchange.finish()

    await ask(answer)
    (exchange,) = seen
    assert exchange.body == {
        "model": "gpt-x",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [REQUEST.tools[0].to_json()],
        "max_tokens": 50,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert f"Bearer {KEY}" in exchange.head
    await ask(answer, ModelRequest(messages=(user_message("hello"),), max_tokens=1))
    assert {"tools", "temperature"}.isdisjoint(seen[1].body)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "invalid_request", False),
        (401, "invalid_api_key", False),
        (404, None, False),
        (429, "rate_limit_exceeded", True),
        (429, "insufficient_quota", False),
        (500, None, True),
        (503, "overloaded", True),
    ],
)
async def test_a_refusal_says_its_status_and_whether_asking_again_may_help(
    status: int, code: str | None, retryable: bool
) -> None:
    requests = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal requests
        requests += 1
        await exchange.refuse(status, {"message": f"Refused key {KEY}.", "code": code, "type": "t", "param": None})

    with pytest.raises(ModelError, match=f"status {status}") as caught:
        await ask(answer)
    assert caught.value.retryable is retryable
    assert caught.value.details["status"] == status
    assert requests == 1


async def test_no_error_shows_the_key() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.refuse(401, {"message": f"Incorrect API key provided: {KEY}", "code": KEY, "type": "t"})

    with pytest.raises(ModelError) as caught:
        await ask(answer)
    error = caught.value
    assert "[key]" in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert KEY not in f"{error} {error!r} {error.to_json()}"


@pytest.mark.req("C88")
@pytest.mark.parametrize("in_due_form", [False, True])
async def test_a_connection_that_ends_before_the_answer_is_whole_gives_no_reply(in_due_form: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.delta({"content": "half an"})
        if in_due_form:
            await exchange.end()

    pieces: list[str] = []

    async def on_text(piece: str) -> None:
        pieces.append(piece)

    async with model_of(answer) as model:
        with pytest.raises(ModelUnavailable):
            await model.complete(REQUEST, on_text)
    assert pieces == ["half an"]


async def test_an_error_in_the_stream_gives_no_reply() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.delta({"content": "half an"})
        await exchange.send(json.dumps({"error": {"message": "overloaded", "type": "server_error"}}))
        await exchange.end()

    with pytest.raises(ModelUnavailable, match="overloaded"):
        await ask(answer)


async def test_an_answer_that_is_no_json_is_an_error() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.send("{nonsense")
        await exchange.end()

    with pytest.raises(ModelError, match="not JSON"):
        await ask(answer)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    model = OpenAICompatibleModel("gpt-x", base_url="http://127.0.0.1:9/v1")

    async def on_text(piece: str) -> None: ...

    with pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1:9"):
        await model.complete(REQUEST, on_text)
    await model.close()


@pytest.mark.req("RR-32")
async def test_a_cancel_closes_the_connection_and_hands_on_nothing_more() -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()
    pieces: list[str] = []

    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.delta({"content": "first"})
        await exchange.cut_by_client.wait()
        closed.set()

    async def on_text(piece: str) -> None:
        pieces.append(piece)
        arrived.set()

    async with model_of(answer) as model:
        pending = asyncio.create_task(model.complete(REQUEST, on_text))
        await arrived.wait()
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await closed.wait()
    assert pieces == ["first"]


async def test_what_the_receiver_of_text_raises_is_passed_on() -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.begin()
        await exchange.delta({"content": "first"})
        await exchange.cut_by_client.wait()

    async def on_text(piece: str) -> None:
        raise ValueError("not mine")

    async with model_of(answer) as model:
        with pytest.raises(ValueError, match="not mine"):
            await model.complete(REQUEST, on_text)


@pytest.mark.req("RR-40")
@pytest.mark.parametrize(
    ("base_url", "binding"),
    [
        ("https://api.openai.com/v1", "openai:gpt-x@api.openai.com"),
        ("http://user:password@localhost:8080/v1", "openai:gpt-x@localhost:8080"),
    ],
)
async def test_the_binding_is_live_and_names_model_and_host_and_no_secret(base_url: str, binding: str) -> None:
    model = OpenAICompatibleModel("gpt-x", base_url=base_url)
    assert (model.binding, model.is_live) == (binding, True)
    assert KEY not in repr(model)
    await model.close()


def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ModelError, match="OPENAI_API_KEY is not set"):
        OpenAICompatibleModel("gpt-x")


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelError, match=r"pip install 'quiesce\[openai\]'"):
        OpenAICompatibleModel("gpt-x")
