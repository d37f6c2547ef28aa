"""The ready-made agent: propose, seal, call, consume, until the model has answered. For who has a model and some tools.

A turn takes what people have corrected meanwhile, as user messages; then it is one journaled step (the model's reply: sealed
once, never asked for again) and one journaled call per proposed tool call, side by side. Each proposed call takes exactly one
position behind its reply, also one that names no known tool, so that the conversation can be rebuilt from the journal alone,
however the run ended (`conversation.py`). On a thread it begins with what the run builds on: the turns before, with partial
output only where the continuation record keeps it.

Checkpoints hold what a turn added, not the whole conversation: a long run costs its length and not its square.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from quiesce.domain.canonical import Json, canonical, digest_of, parse
from quiesce.domain.errors import BudgetExceeded, InvalidInput, OutcomeUnknown, ToolFailed
from quiesce.domain.operations import RetryPolicy
from quiesce.ports.models import (
    Message,
    Model,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolSpec,
    tool_message,
    user_message,
)
from quiesce.runtime.context import Run
from quiesce.runtime.conversation import MODEL_STEP, as_text, opening
from quiesce.runtime.registry import Agent, Tool, declare_agent

WRAP_UP = "Your budget is used up. Answer now, briefly, with what you have; no tool can be called any more."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """What the loop ended with. `ended_by`: `answer`, `budget` or `turns`."""

    text: str
    turns: int
    ended_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Bounds of the loop. Tokens are reserved before each request; enough for the wrap-up always stays in reserve."""

    system: str = ""
    turns_max: int = 20
    tokens_per_turn: int = 2048
    wrap_up_tokens: int = 512
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(tries=3, first_delay_ms=500))


def loop(
    model: Model,
    tools: Sequence[Tool] = (),
    *,
    name: str = "loop",
    system: str = "",
    turns_max: int = 20,
    tokens_per_turn: int = 2048,
    wrap_up_tokens: int = 512,
) -> Agent:
    """Make an agent from a model and tools. Start it with a message: `q.start(loop(model, tools), "Find out why ...")`.

    Budgets are the run's own (`start(..., budget={"tokens": 20_000, "tool_calls": 10})`). When one runs out, the model
    gets one bounded wrap-up turn without tools. The run is bound to the model for life.
    """
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidInput(field="tools", value=names, rule="must have different names")
    options = LoopOptions(system=system, turns_max=turns_max, tokens_per_turn=tokens_per_turn, wrap_up_tokens=wrap_up_tokens)

    async def converse(run: Run, message: str, history: list[dict[str, object]] | None = None) -> LoopResult:
        return await _Conversation(run, model, tools, options).hold(message, history or await run.messages())

    return declare_agent(converse, name=name, bindings={"model": model.binding})


class _Conversation:
    """One run of the loop."""

    def __init__(self, run: Run, model: Model, tools: Sequence[Tool], options: LoopOptions) -> None:
        self._run = run
        self._model = model
        self._tools = {tool.name: tool for tool in tools}
        self._specs = tuple(spec_of(tool) for tool in tools)
        self._options = options
        self._messages: list[Message] = []
        self._kept = 0

    async def hold(self, message: str, history: Sequence[Mapping[str, object]]) -> LoopResult:
        self._messages = opening(self._options.system, message, history)
        for turn in range(1, self._options.turns_max + 1):
            self._messages.extend(user_message(c.text) for c in await self._run.corrections())
            try:
                reply = await self._ask(self._options.tokens_per_turn, self._specs)
            except BudgetExceeded:
                return await self._wrap_up(turn)
            if not reply.tool_calls:
                await self._keep()
                return LoopResult(text=reply.text, turns=turn, ended_by="answer")
            answers = await asyncio.gather(*[self._carry_out(call) for call in reply.tool_calls])
            self._messages.extend(tool_message(c.id, text) for c, (text, _) in zip(reply.tool_calls, answers, strict=True))
            await self._keep()
            if any(is_over_budget for _, is_over_budget in answers):
                return await self._wrap_up(turn + 1)
        return LoopResult(text="", turns=self._options.turns_max, ended_by="turns")

    async def _ask(self, tokens: int, tools: tuple[ToolSpec, ...]) -> ModelReply:
        """Ask the model in a journaled step; its text is streamed as it arrives."""
        request = ModelRequest(messages=tuple(self._messages), tools=tools, max_tokens=tokens)

        async def ask(_: str) -> dict[str, Json]:
            return (await self._model.complete(request, self._show)).to_json()

        spare = self._options.wrap_up_tokens if tools is self._specs else 0
        stored = await self._run.step(
            ask,
            digest_of(request.to_json()),
            name=MODEL_STEP,
            retry=self._options.retry,
            reserve={"model_calls": 1, "tokens": tokens + spare},
            usage=_usage_of,
        )
        reply = ModelReply.from_json(stored)
        self._messages.append(reply.to_message())
        return reply

    async def _show(self, text: str) -> None:
        await self._run.emit({"text": text})

    def _carry_out(self, call: ToolCall) -> Awaitable[tuple[str, bool]]:
        """Carry out one proposed call. Takes its position here, in the order of the proposal."""
        tool = self._tools.get(call.name)
        arguments = _arguments_of(call)
        if tool is None or arguments is None:
            known = ", ".join(sorted(self._tools)) or "none"
            problem = f"there is no tool {call.name!r} (known: {known})" if tool is None else "the arguments are no JSON object"
            return _refused(self._run.step(_refuse, problem, name=f"refuse {call.name}"))
        return _answered(self._run.call(tool, **arguments))

    async def _wrap_up(self, turn: int) -> LoopResult:
        """Let the model answer with what it has: bounded, without tools (NO-20)."""
        self._messages.append(user_message(WRAP_UP))
        try:
            reply = await self._ask(self._options.wrap_up_tokens, ())
        except BudgetExceeded:
            return LoopResult(text="", turns=turn, ended_by="budget")
        await self._keep()
        return LoopResult(text=reply.text, turns=turn, ended_by="budget")

    async def _keep(self) -> None:
        """Checkpoint what this turn added."""
        added, self._kept = self._messages[self._kept :], len(self._messages)
        await self._run.checkpoint({"from": len(self._messages) - len(added), "messages": added})


def spec_of(tool: Tool) -> ToolSpec:
    """Return a tool as a model is told of it."""
    parameters = parse(canonical(tool.parameters()))
    return ToolSpec(name=tool.name, description=tool.description, parameters=parameters if isinstance(parameters, dict) else {})


def _usage_of(stored: object) -> dict[str, int]:
    usage = stored.get("usage") if isinstance(stored, dict) else None
    tokens = usage.get("tokens") if isinstance(usage, dict) else None
    return {"model_calls": 1, "tokens": tokens if isinstance(tokens, int) else 0}


def _arguments_of(call: ToolCall) -> dict[str, object] | None:
    try:
        value = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _refuse(problem: str) -> str:
    return f"error: {problem}"


async def _refused(step: Awaitable[str]) -> tuple[str, bool]:
    return await step, False


async def _answered(call: Awaitable[object]) -> tuple[str, bool]:
    """Return a call's answer as text for the model, and whether it was refused for lack of budget."""
    try:
        return as_text(await call), False
    except BudgetExceeded as error:
        return f"error: not started: {error}", True
    except (ToolFailed, OutcomeUnknown, InvalidInput) as error:
        return f"error: {error}", False
