"""Cases about tools and steps that are hard on a runtime: code that blocks, and code that fails before it succeeds."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

from quiesce.cases.declaring import bound, whole
from quiesce.cases.destination import EFFECTS_LOG, Destination, append_line, effect_line
from quiesce.domain.operations import RetryPolicy
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.registry import Agent, declare_tool

_BLOCK_MS_MAX: Final = 600_000
_FAILURES: Final = 2


def thread_tool(destination: Destination) -> tuple[Agent, ...]:
    """A plain function that blocks its thread for `block_ms`, then has its effect: nothing can interrupt it."""

    def grind(block_ms: int, *, call: Call) -> object:
        """Block, then act."""
        time.sleep(whole("block_ms", block_ms, 0, _BLOCK_MS_MAX) / 1000)
        destination.act(call)
        return {"ground_ms": block_ms}

    grinding = declare_tool(grind, effect="once")

    async def agent(run: Run, block_ms: int = 500) -> dict[str, object]:
        await run.emit("grinding\n")
        return {"answer": await run.call(grinding, block_ms)}

    return (bound(agent, "thread-tool"),)


def cut(block_ms: int, directory: str, *, call: Call) -> object:
    """Block this process of its own, then act. A cancel ends the process; what `finally` does still happens."""
    try:
        time.sleep(whole("block_ms", block_ms, 0, _BLOCK_MS_MAX) / 1000)
        append_line(Path(directory) / EFFECTS_LOG, effect_line(call))
        return {"cut_ms": block_ms}
    finally:
        append_line(Path(directory) / "cleanup.log", f"{call.run_id} {call.operation}")


def process_tool(destination: Destination) -> tuple[Agent, ...]:
    """The same in a process of its own, which a cancel can end. The directory crosses to it as an argument."""
    cutting = declare_tool(cut, effect="once", isolation="process")

    async def agent(run: Run, block_ms: int = 500) -> dict[str, object]:
        await run.emit("cutting\n")
        return {"answer": await run.call(cutting, block_ms, str(destination.directory))}

    return (bound(agent, "process-tool"),)


def retrying(destination: Destination) -> tuple[Agent, ...]:
    """A step that fails twice and succeeds the third time, `delay_ms` apart at first; the due time is stored."""

    async def try_it(run_id: str) -> int:
        tries = destination.count_try(run_id, "try_it")
        if tries <= _FAILURES:
            raise ConnectionError(f"try {tries}: nobody answered")
        return tries

    async def agent(run: Run, delay_ms: int = 200) -> dict[str, int]:
        retry = RetryPolicy(tries=_FAILURES + 2, first_delay_ms=whole("delay_ms", delay_ms, 0, _BLOCK_MS_MAX))
        tries = await run.step(partial(try_it, run.id), name="try_it", retry=retry)
        await run.emit(f"succeeded on try {tries}\n")
        return {"tries": tries}

    return (bound(agent, "retrying"),)
