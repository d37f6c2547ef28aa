"""What simulated agents do: random plans, written into the input of a run, and the one agent that carries them out.

A plan is data, so a replay does the same as the first time and a failing seed can be read. Whatever differs from try to
try (how often a step has failed, what the outside answers) is kept outside, as it would be.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from quiesce.domain.errors import BudgetExceeded, OutcomeUnknown, StepFailed, ToolFailed
from quiesce.domain.ids import RunId
from quiesce.domain.operations import EffectPolicy, RetryPolicy
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.registry import Agent, Tool, declare_agent, declare_tool
from quiesce.testing.sim.config import Deed
from quiesce.testing.sim.outside import Outside

AGENT_NAMES: Final = ("common", "rare")
"""Every process offers the first; only some offer the second."""

UNIT: Final = "tokens"
LONG_S: Final = 3_600
_BORNE: Final = (ToolFailed, StepFailed, OutcomeUnknown, BudgetExceeded)
_SIDE_BY_SIDE: Final = frozenset(
    {Deed.STEP, Deed.FLAKY, Deed.TALK, Deed.PURE, Deed.IDEMPOTENT, Deed.PROBE, Deed.ONCE, Deed.SPEND}
)
_GATHERED: Final = _SIDE_BY_SIDE | {Deed.NESTED, Deed.CHECKPOINT, Deed.SLEEP}
_CALLS: Final = frozenset({Deed.PURE, Deed.IDEMPOTENT, Deed.PROBE, Deed.ONCE})
_INSIDE: Final = _SIDE_BY_SIDE | {Deed.NESTED, Deed.EMIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act of a plan. `label` is its own within the plan; what a kind does not use is left as it is."""

    deed: Deed
    label: str
    ms: int = 0
    words: int = 0
    """Events emitted; by a stubborn step after its interruption."""
    fails: int = 0
    """How often it fails, over all tries, before it succeeds."""
    tries: int = 1
    units: int = 0
    has_timeout: bool = False
    bears: bool = True
    """Whether the agent goes on after a failure of it."""
    awaits: bool = True
    """Of a child: whether its end is awaited. Of a gathering: whether failures are returned rather than raised."""
    limit: int | None = None
    """Of a child: its budget of tool calls."""
    acts: list[Act] = field(default_factory=list)


class Planner:
    """Draws plans from the deeds that a world allows."""

    def __init__(self, rng: random.Random, deeds: Collection[Deed], acts_max: int) -> None:
        self._rng = rng
        self._deeds = tuple(deeds)
        self._acts_max = acts_max

    def plan(self, depth: int = 0) -> list[Act]:
        """Draw a plan."""
        count = self._rng.randint(1, max(1, self._acts_max - 2 * depth))
        return [self._act(str(i), self._deeds, depth) for i in range(count)]

    def _act(self, label: str, deeds: Collection[Deed], depth: int) -> Act:
        rng = self._rng
        deed = rng.choice(tuple(deeds))
        act = Act(deed=deed, label=label, ms=rng.choice((0, 5, 40)), bears=depth > 0 or rng.random() < 0.9)
        match deed:
            case Deed.FLAKY:
                return replace(act, fails=rng.randint(1, 3), tries=rng.randint(2, 4))
            case Deed.STUBBORN:
                return replace(act, ms=rng.choice((50, 300, 1_500)), words=rng.choice((0, 2)))
            case Deed.SPEND:
                return replace(act, units=rng.randint(1, 4))
            case Deed.EMIT:
                return replace(act, words=rng.randint(1, 5))
            case Deed.TALK:
                return replace(act, words=rng.randint(1, 4), fails=rng.choice((0, 0, 1)), tries=2)
            case Deed.SLEEP:
                return replace(act, ms=rng.choice((0, 20, 300, 1_200)))
            case Deed.PURE | Deed.IDEMPOTENT | Deed.PROBE | Deed.ONCE:
                return replace(act, has_timeout=rng.random() < 0.4)
            case Deed.NESTED | Deed.GATHER | Deed.CHILD:
                return self._compound(act, depth)
            case _:
                return act

    def _compound(self, act: Act, depth: int) -> Act:
        rng = self._rng
        if act.deed is Deed.CHILD:
            if depth >= 2:
                return replace(act, deed=Deed.STEP)
            limit = rng.choice((None, None, 0, 2))
            return replace(act, acts=self.plan(depth + 1), awaits=rng.random() < 0.75, limit=limit)
        allowed = [d for d in self._deeds if d in _parts_of(act, depth)]
        acts = [self._act(f"{act.label}.{i}", allowed or [Deed.STEP], depth + 1) for i in range(rng.randint(1, 3))]
        if act.deed is Deed.GATHER:
            is_lenient = rng.random() < 0.5  # else its first failure ends the run, for the others may be left half done
            return replace(act, acts=acts, awaits=is_lenient, bears=is_lenient)
        return replace(act, acts=acts, words=rng.choice((0, 2)), fails=rng.choice((0, 0, 1)), tries=2)


def _parts_of(act: Act, depth: int) -> Collection[Deed]:
    if act.deed is Deed.GATHER and depth < 2:
        return _GATHERED
    return _INSIDE if act.deed is Deed.NESTED and depth < 2 else _SIDE_BY_SIDE


def words_of(acts: Collection[Act]) -> Iterator[tuple[str, int]]:
    """Return label and number of words of every act that a completed run has carried out, children's apart."""
    for act in acts:
        yield act.label, act.words
        if act.deed is not Deed.CHILD:
            yield from words_of(act.acts)


class Player:
    """Carries out plans: the agents and tools of one world. `on_step` is told of a step that begins, and of the act before it."""

    def __init__(self, outside: Outside, on_step: Callable[[RunId, str, str], None]) -> None:
        self._outside = outside
        self._on_step = on_step
        self._failures: Counter[tuple[RunId, str]] = Counter()
        self._tools = {(p, t): self._tool(p, has_timeout=t) for p in EffectPolicy for t in (False, True)}

        async def common(run: Run, plan: list[Act]) -> list[str]:
            return await self._play(run, plan)

        async def rare(run: Run, plan: list[Act]) -> list[str]:
            return await self._play(run, plan)

        self.agents: Mapping[str, Agent] = {fn.__name__: declare_agent(fn) for fn in (common, rare)}

    def _tool(self, policy: EffectPolicy, *, has_timeout: bool) -> Tool:
        async def act(label: str, *, call: Call) -> str:  # noqa: ARG001 - part of the operation's identity
            return await self._outside.ask(call, policy, has_timeout=has_timeout)

        return declare_tool(
            act,
            name=f"{policy}{'_timed' if has_timeout else ''}",
            effect=policy,
            probe=self._outside.probe if policy is EffectPolicy.PROBE else None,
            retry=RetryPolicy(tries=3, first_delay_ms=60),
            timeout_ms=400 if has_timeout else None,
        )

    async def _play(self, run: Run, acts: Collection[Act]) -> list[str]:
        results: list[str] = []
        before = ""
        for act in acts:
            try:
                results.append(f"{act.label}: {await self._begin(run, act, before)}")
            except _BORNE as error:
                if not act.bears:
                    raise
                results.append(f"{act.label}: {error.code}")
            before = act.label
        return results

    def _begin(self, run: Run, act: Act, before: str = "") -> Coroutine[object, object, object]:
        """Begin an act. Takes its position here, as an agent does that gathers operations."""
        match act.deed:
            case Deed.EMIT:
                return self._talk(run, act)
            case Deed.CHECKPOINT:
                return run.checkpoint({"at": act.label})
            case Deed.SLEEP:
                return run.sleep(act.ms / 1000)
            case Deed.LONG_SLEEP:
                return run.sleep(LONG_S)
            case Deed.RAISE:
                return _stumble(act)
            case Deed.GATHER:
                return self._gather(run, act)
            case Deed.CHILD:
                return self._child(run, act)
            case deed if deed in _CALLS:
                return run.call(self._tools[EffectPolicy(str(deed)), act.has_timeout], act.label)
            case _:
                return self._step(run, act, before)

    def _step(self, run: Run, act: Act, before: str) -> Coroutine[object, object, object]:
        retry = RetryPolicy(tries=act.tries, first_delay_ms=50)
        if act.units:
            return run.step(
                self._body(run, act, before),
                act.label,
                name=act.deed,
                retry=retry,
                reserve={UNIT: act.units},
                usage=lambda _: {UNIT: act.units // 2},
            )
        return run.step(self._body(run, act, before), act.label, name=act.deed, retry=retry)

    def _body(self, run: Run, act: Act, before: str) -> Callable[[str], Coroutine[object, object, str]]:
        async def body(label: str) -> str:
            self._on_step(run.id, label, before)
            if act.deed is Deed.STUBBORN:
                await _dawdle(act.ms)
            await self._talk(run, act)
            if act.ms and act.deed is not Deed.STUBBORN:
                await asyncio.sleep(act.ms / 1000)
            await self._play(run, act.acts)
            self._failures[run.id, label] += 1
            if self._failures[run.id, label] <= act.fails:
                raise ConnectionError(f"{label} fails")
            return label

        return body

    async def _talk(self, run: Run, act: Act) -> None:
        for i in range(act.words):
            await run.emit({"act": act.label, "word": i}, state_bearing=i % 2 == 0)

    async def _gather(self, run: Run, act: Act) -> str:
        results = await asyncio.gather(*[self._begin(run, a) for a in act.acts], return_exceptions=act.awaits)
        return ", ".join("error" if isinstance(r, BaseException) else str(r) for r in results)

    async def _child(self, run: Run, act: Act) -> str:
        name = AGENT_NAMES[len(act.acts) % len(AGENT_NAMES)]
        budget = None if act.limit is None else {"tool_calls": act.limit}
        child = await run.spawn(self.agents[name], act.acts, budget=budget)
        return str((await child.outcome()).status) if act.awaits else "left alone"


async def _stumble(act: Act) -> None:
    if not act.bears:
        raise LookupError(f"{act.label} was not thought of")


async def _dawdle(ms: int) -> None:
    """Take a while, and let nobody hurry it: what clean-up code does that swallows its cancellation."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ms / 1000
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            continue
