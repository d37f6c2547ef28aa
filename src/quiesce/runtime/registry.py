"""Agents and tools as their authors declare them, and the names by which a run finds them again after a restart.

A declaration is data: what an effect may need on recovery (policy, probe) is fixed where the tool is written and not at
each call. Names are the identity: a worker can only advance runs of agents that are registered with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from quiesce.domain.budgets import Amounts, check_amount
from quiesce.domain.canonical import parse
from quiesce.domain.errors import BindingMismatch, InvalidInput, NotFound
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.operations import EffectPolicy, RetryPolicy
from quiesce.domain.runs import Run
from quiesce.runtime.codec import annotations_of

Isolation = Literal["task", "thread", "process"]
Function = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A declared tool. `cost`: units reserved before each dispatch (`tool_calls: 1` unless said otherwise)."""

    name: str
    fn: Function
    effect: EffectPolicy
    probe: Function | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    isolation: Isolation = "task"
    timeout_ms: int | None = None
    cost: Mapping[str, int] = field(default_factory=lambda: {"tool_calls": 1})
    description: str = ""

    @property
    def takes_call(self) -> bool:
        """Whether the function wants to be handed its `Call` (key, fence, deadline)."""
        return "call" in inspect.signature(self.fn).parameters

    def parameters(self) -> dict[str, object]:
        """Return the JSON schema of the arguments, as a model is shown it."""
        hints = annotations_of(self.fn)
        fields: list[tuple[str, type] | tuple[str, type, object]] = []
        for name, parameter in inspect.signature(self.fn).parameters.items():
            if name == "call":
                continue
            kind = hints.get(name, object)
            if parameter.default is inspect.Parameter.empty:
                fields.append((name, kind))  # type: ignore[arg-type]
            else:
                fields.append((name, kind, parameter.default))  # type: ignore[arg-type]
        schema = msgspec.json.schema(msgspec.defstruct(f"{self.name}_arguments", fields))
        (_, body), *rest = sorted(schema["$defs"].items(), key=lambda kv: not kv[0].endswith("_arguments"))
        body = {k: v for k, v in body.items() if k != "title"}
        return {**body, "$defs": dict(rest)} if rest else body


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A declared agent. `bindings`: what a run of it is tied to for life (the model's identity, say)."""

    name: str
    fn: Function
    bindings: Mapping[str, str] = field(default_factory=dict)

    async def start(self, run: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call the agent's function and await it."""
        result = self.fn(run, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result


def check_bindings(run: Run, agent: Agent) -> None:
    """Raise `BindingMismatch` unless this agent is bound as the run was at its submission (RR-17, RR-40)."""
    value = parse(run.bindings)
    bound = value if isinstance(value, dict) else {}
    offered = dict(agent.bindings)
    if any(bound.get(key) != text for key, text in offered.items()) or bound.get("model") != offered.get("model"):
        raise BindingMismatch(
            f"run {run.id} was bound to {run.bindings.decode()}; this process offers agent {agent.name!r} bound to {offered}. "
            "A run is never continued under another binding",
            run_id=run.id,
            bound=bound,
            offered=offered,
        )


class Registry:
    """The agents and tools that this process knows."""

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent) -> Agent:
        """Register an agent. Another one under its name is refused: two codes for one run cannot both be right."""
        known = self._agents.get(agent.name)
        if known is not None and known.fn is not agent.fn:
            raise InvalidInput(field="agent", value=agent.name, rule="is registered already with another function")
        self._agents[agent.name] = agent
        return agent

    def get(self, name: str) -> Agent:
        """Return an agent, or raise `NotFound` that lists the known ones."""
        agent = self._agents.get(name)
        if agent is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise NotFound("agent", name, f"this process knows: {known}")
        return agent

    def tool_of(self, agent: str, name: str) -> Tool | None:
        """Return the tool of that name that an agent's code can see: where it was made, else in its module.

        None if this process does not know the agent, or sees no such tool, or several.
        """
        known = self._agents.get(agent)
        if known is None:
            return None
        for values in (inspect.getclosurevars(known.fn).nonlocals, getattr(known.fn, "__globals__", {})):
            found = {id(t): t for value in values.values() for t in _tools_in(value) if t.name == name}
            if found:
                return next(iter(found.values())) if len(found) == 1 else None
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all registered agents."""
        return tuple(sorted(self._agents))


def _tools_in(value: object) -> list[Tool]:
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, Tool)]


def declare_tool(
    fn: Function,
    *,
    effect: str = "once",
    probe: Function | None = None,
    retry: RetryPolicy | None = None,
    isolation: Isolation | None = None,
    timeout_ms: int | None = None,
    cost: Amounts | None = None,
    name: str | None = None,
) -> Tool:
    """Check a declaration and return the tool. Raises `InvalidInput` naming what does not fit together."""
    try:
        policy = EffectPolicy(effect)
    except ValueError:
        rule = "must be one of pure, idempotent, probe, once"
        raise InvalidInput(field="effect", value=effect, rule=rule) from None
    if (policy is EffectPolicy.PROBE) != (probe is not None):
        raise InvalidInput(field="probe", value=probe, rule="goes with effect='probe', and that effect needs it")
    is_async = inspect.iscoroutinefunction(fn)
    if isolation is None:
        isolation = "task" if is_async else "thread"
    if isolation == "task" and not is_async:
        raise InvalidInput(field="isolation", value=isolation, rule="needs an async function; plain ones run in a thread")
    if isolation == "process" and (is_async or "<locals>" in getattr(fn, "__qualname__", "<locals>")):
        raise InvalidInput(field="isolation", value=isolation, rule="needs a plain function at the top of a module")
    for unit, amount in (cost or {}).items():
        check_amount(f"cost.{unit}", amount)
    return Tool(
        name=_checked_name(name or str(getattr(fn, "__name__", ""))),
        fn=fn,
        effect=policy,
        probe=probe,
        retry=retry or RetryPolicy(),
        isolation=isolation,
        timeout_ms=timeout_ms,
        cost={"tool_calls": 1} if cost is None else dict(cost),
        description=inspect.getdoc(fn) or "",
    )


def declare_agent(fn: Function, *, name: str | None = None, bindings: Mapping[str, str] | None = None) -> Agent:
    """Check a declaration and return the agent: an async function whose first parameter is the `Run`."""
    if not inspect.iscoroutinefunction(fn):
        raise InvalidInput(field="agent", value=getattr(fn, "__name__", fn), rule="must be an async function")
    if not inspect.signature(fn).parameters:
        raise InvalidInput(field="agent", value=fn.__name__, rule="must take the run as its first parameter")
    return Agent(name=_checked_name(name or str(getattr(fn, "__name__", ""))), fn=fn, bindings=dict(bindings or {}))


def _checked_name(name: str) -> str:
    if not name or len(name) > DEFAULT_LIMITS.name_chars_max or not name.isprintable():
        raise InvalidInput(field="name", value=name, rule="must be 1 to 200 printable characters")
    return name
