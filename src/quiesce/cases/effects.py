"""Cases about effects on the world: what a restart may do with a call that left and whose answer is not stored."""

from __future__ import annotations

import asyncio
from functools import partial

from quiesce.cases.declaring import bound, whole
from quiesce.cases.destination import Destination
from quiesce.domain.operations import RetryPolicy
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.registry import Agent, Tool, declare_tool


def once_effect(destination: Destination) -> tuple[Agent, ...]:
    """One effect with policy `once`."""
    return (_story("once-effect", ordering(destination)),)


def probe_effect(destination: Destination) -> tuple[Agent, ...]:
    """One effect with policy `probe`: the destination's log is asked whether it took place."""

    async def pay(what: str, *, call: Call) -> object:
        """Pay: the destination keeps a book that can be read."""
        destination.act(call)
        return {"done": what, "key": call.key}

    async def find(key: str) -> Happened | Absent:
        return Happened({"done": "found in the destination's book", "key": key}) if destination.has_happened(key) else Absent()

    return (_story("probe-effect", declare_tool(pay, effect="probe", probe=find)),)


def idempotent_effect(destination: Destination) -> tuple[Agent, ...]:
    """One effect with policy `idempotent`: the destination knows the key again."""

    async def register(what: str, *, call: Call) -> object:
        """Register under a key: the second time changes nothing."""
        return {"done": what, "is_new": destination.act_once_per_key(call)}

    return (_story("idempotent-effect", declare_tool(register, effect="idempotent")),)


def parallel(destination: Destination) -> tuple[Agent, ...]:
    """Three effects at once, two of them by the same tool with the same arguments."""
    order, note = ordering(destination), noting(destination)

    async def agent(run: Run) -> dict[str, object]:
        results = await asyncio.gather(run.call(order, "tea"), run.call(order, "tea"), run.call(note, "both"))
        await run.checkpoint({"done": len(results)})
        return {"results": results}

    return (bound(agent, "parallel"),)


def nested(destination: Destination) -> tuple[Agent, ...]:
    """Effects at depth 0, within a step, and within a step of that step."""
    note = noting(destination)

    async def inner(run: Run) -> object:
        return await run.call(note, "depth 2")

    async def outer(run: Run) -> list[object]:
        return [await run.call(note, "depth 1"), await run.step(partial(inner, run), name="inner")]

    async def agent(run: Run) -> dict[str, object]:
        first = await run.call(note, "depth 0")
        await run.emit("at depth 0\n")
        rest = await run.step(partial(outer, run), name="outer")
        await run.checkpoint({"depths": 3})
        return {"first": first, "rest": rest}

    return (bound(agent, "nested"),)


def ordering(destination: Destination) -> Tool:
    """Return a tool that orders: no book, no key, so it is never repeated without a decision."""

    async def order(what: str, *, call: Call) -> object:
        """Order something: a second call is a second order."""
        destination.act(call)
        return {"done": what, "key": call.key}

    return declare_tool(order, effect="once")


def approval(destination: Destination) -> tuple[Agent, ...]:
    """Asks a person before an effect that may never be repeated, and has it only after a yes."""
    order = ordering(destination)

    async def agent(run: Run, what: str = "twelve cups", expires_s: float | None = None) -> dict[str, object]:
        await run.emit(f"May I order {what}?\n")
        if not await run.ask(f"Order {what}?", about={"tool": order.name, "what": what}, expires_in=expires_s):
            return {"approved": False}
        return {"approved": True, "answer": await run.call(order, what)}

    return (bound(agent, "approval"),)


def noting(destination: Destination) -> Tool:
    """Return a tool that notes something under its key, once however often it is asked."""

    async def note(what: str, *, call: Call) -> object:
        """Note something under a key."""
        destination.act_once_per_key(call)
        return {"noted": what}

    return declare_tool(note, effect="idempotent", retry=RetryPolicy(tries=3, first_delay_ms=20))


def _story(name: str, tool: Tool) -> Agent:
    """Return an agent that says what it is about to do, does it, and says that it was done."""

    async def agent(run: Run, what: str = "twelve cups", delay_ms: int = 0) -> dict[str, object]:
        for word in (*f"I am about to {tool.name} {what},".split(), "once", "and", "not", "twice.\n"):
            await run.emit(word if word.endswith("\n") else f"{word} ")
            await asyncio.sleep(whole("delay_ms", delay_ms, 0, 60_000) / 1000)
        await run.checkpoint({"about_to": tool.name})
        answer = await run.call(tool, what)
        await run.emit("It is done.\n")
        await run.checkpoint({"done": tool.name})
        return {"answer": answer}

    return bound(agent, name)
