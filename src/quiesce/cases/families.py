"""Cases about runs that wait: for runs of their own, or for a long time."""

from __future__ import annotations

import asyncio

from quiesce.cases.declaring import bound, whole
from quiesce.cases.destination import Destination
from quiesce.cases.effects import noting
from quiesce.runtime.context import Run
from quiesce.runtime.registry import Agent

CHILDREN = 3


def family(destination: Destination) -> tuple[Agent, ...]:
    """A parent with three children and a grandchild each. Children and grandchildren have `ticks` effects apiece."""
    note = noting(destination)

    async def tick(run: Run, who: str, ticks: int, delay_ms: int) -> int:
        for number in range(1, whole("ticks", ticks, 0, 10_000) + 1):
            await run.call(note, f"{who} {number}")
            await run.emit(f"{who} {number}\n")
            await asyncio.sleep(whole("delay_ms", delay_ms, 0, 60_000) / 1000)
        return ticks

    async def grandchild(run: Run, name: str, ticks: int, delay_ms: int) -> int:
        return await tick(run, f"grandchild {name}", ticks, delay_ms)

    grandchildren = bound(grandchild, "family-grandchild")

    async def child(run: Run, name: str, ticks: int, delay_ms: int) -> int:
        below = await run.spawn(grandchildren, name, ticks, delay_ms)
        mine = await tick(run, f"child {name}", ticks, delay_ms)
        outcome = await below.outcome()
        return mine + (outcome.result if isinstance(outcome.result, int) else 0)

    children = bound(child, "family-child")

    async def parent(run: Run, ticks: int = 3, delay_ms: int = 20) -> dict[str, object]:
        spawned = [await run.spawn(children, str(number), ticks, delay_ms) for number in range(1, CHILDREN + 1)]
        await run.checkpoint({"children": len(spawned)})
        outcomes = [await one.outcome() for one in spawned]
        return {"statuses": [str(o.status) for o in outcomes], "results": [o.result for o in outcomes]}

    return (bound(parent, "family"), children, grandchildren)


def sleeper(_: Destination) -> tuple[Agent, ...]:
    """Sleeps for `seconds`: parked, it holds no process."""

    async def agent(run: Run, seconds: float = 3600) -> dict[str, float]:
        await run.emit("good night\n")
        await run.sleep(seconds)
        await run.emit("good morning\n")
        return {"slept": seconds}

    return (bound(agent, "sleeper"),)
