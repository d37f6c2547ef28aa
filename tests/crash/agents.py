"""Agents that pass every durable boundary, and tools whose effects can be counted afterwards.

An effect is one line in `effects.jsonl`, forced to the disk before the tool goes on: what the outside world has seen
survives the death of the process as certainly as the store does.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

from quiesce.application import agent, tool
from quiesce.domain.errors import OutcomeUnknown
from quiesce.domain.operations import RetryPolicy
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.registry import Agent

DIRECTORY: Final = "QUIESCE_TEST_DIRECTORY"


def directory() -> Path:
    """Return the directory of this world."""
    return Path(os.environ[DIRECTORY])


def append(name: str, row: dict[str, object]) -> None:
    """Append one line to a file of this world, durably."""
    data = json.dumps({**row, "pid": os.getpid()}).encode() + b"\n"
    handle = os.open(directory() / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(name: str) -> list[dict[str, object]]:
    """Read such a file back."""
    path = directory() / name
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def act(kind: str, call: Call) -> None:
    """Have an effect."""
    append(
        "effects.jsonl",
        {"tool": kind, "run": call.run_id, "operation": call.operation, "key": call.key, "try": call.try_number},
    )


# -- steps: they leave a line too, so that a repetition shows ------------------------------------------------------------


async def think(run_id: str, question: str) -> str:
    append("steps.jsonl", {"step": "think", "run": run_id, "question": question})
    return f"thoughts about {question}"


async def stumble(run_id: str) -> int:
    """Fail twice, whichever processes the tries fall to."""
    tries = sum(line["step"] == "stumble" and line["run"] == run_id for line in lines("steps.jsonl"))
    append("steps.jsonl", {"step": "stumble", "run": run_id})
    if tries < 2:
        raise ConnectionError(f"try {tries + 1} failed")
    return tries + 1


# -- tools: one of each policy ---------------------------------------------------------------------------------------------


@tool(effect="pure")
async def look(what: str, *, call: Call) -> str:
    act("look", call)
    return f"saw {what}"


@tool(effect="idempotent")
async def note(what: str, *, call: Call) -> str:
    act("note", call)
    return f"noted {what}"


async def find_payment(key: str) -> object:
    """The destination's own answer. Absent is certain here: whoever dispatched it is dead or fenced out."""
    paid = any(line["tool"] == "pay" and line["key"] == key for line in lines("effects.jsonl"))
    return Happened("paid") if paid else Absent()


@tool(effect="probe", probe=find_payment)
async def pay(what: str, *, call: Call) -> str:
    act("pay", call)
    return "paid"


@tool(effect="once")
async def order(what: str, *, call: Call) -> str:
    act("order", call)
    return "ordered"


@tool(effect="once")
async def doubt(what: str, *, call: Call) -> str:
    act("doubt", call)
    raise OutcomeUnknown("the line went dead after the request was sent")


@tool(effect="once")
async def linger(what: str, *, call: Call) -> str:
    act("linger", call)
    await asyncio.sleep(60)
    return "at last"


@tool(effect="idempotent")
async def wait_for_gate(what: str, *, call: Call) -> str:
    """Act, then hold the result in hand until a file says go."""
    act("gate", call)
    while not (directory() / "gate").exists():
        await asyncio.sleep(0.01)
    append("through.jsonl", {"key": call.key})
    return "through"


# -- agents ----------------------------------------------------------------------------------------------------------------

WORDS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")
"""What a reader of `everything` has seen in the end, once and in this order."""


@agent
async def helper(run: Run, question: str) -> str:
    await run.emit({"word": "helping"})
    await run.step(think, run.id, question)
    return str(await run.call(order, question))


@agent
async def everything(run: Run, question: str) -> dict[str, object]:
    """Pass every boundary that a run by itself can pass."""

    async def write(_: str) -> str:
        await run.emit({"word": "four"})
        inner = await run.step(think, run.id, "what to write")
        await run.emit({"word": "five"})
        return inner

    thoughts = await run.step(think, run.id, question, reserve={"tokens": 10}, usage=lambda _: {"tokens": 7})
    await run.step(stumble, run.id, retry=RetryPolicy(tries=4, first_delay_ms=40))
    await run.emit({"word": "one"})
    await run.emit({"word": "two"})
    await run.checkpoint({"thoughts": thoughts})
    await run.save_artifact("thoughts.txt", thoughts)
    await run.emit({"word": "three"})
    alone = [await run.call(t, "alone") for t in (look, note, pay, order)]
    written = await run.step(write, "a page")
    beside = await asyncio.gather(*(run.call(t, "beside") for t in (note, pay, order, order)))
    outcomes = []
    for topic in ("left", "right"):
        child = await run.spawn(helper, topic)
        outcomes.append(str((await child.outcome()).status))
    await run.emit({"word": "six"})
    await run.checkpoint({"alone": alone})
    await run.save_artifact("page.txt", written)
    await run.sleep(0.15)
    await run.emit({"word": "seven"})
    await run.sleep(0.15)
    await run.emit({"word": "eight"})
    return {"alone": alone, "beside": list(beside), "children": outcomes, "written": written}


@agent
async def small(run: Run, question: str) -> list[object]:
    """A few of everything, quickly: twenty of these run side by side."""
    await run.step(think, run.id, question)
    await run.emit({"word": "one"})
    calls: list[Awaitable[object]] = [run.call(order, "a"), run.call(note, "b"), run.call(pay, "c")]
    answers = list(await asyncio.gather(*calls))
    await run.checkpoint({"answers": answers})
    await run.emit({"word": "two"})
    answers.append(await run.call(order, "d"))
    return answers


@agent
async def steady(run: Run, question: str) -> int:
    """Many short operations with time in each: something is always in flight."""

    async def dwell(number: int) -> int:
        append("steps.jsonl", {"step": "dwell", "run": run.id, "number": number})
        await asyncio.sleep(0.02)
        return number

    for number in range(25):
        await run.step(dwell, number)
        if number % 5 == 0:
            await run.emit({"word": f"{number}"})
            await run.call(order, str(number))
    return 25


@agent
async def forever(run: Run) -> None:
    async def stay(_: str) -> None:
        append("steps.jsonl", {"step": "stay", "run": run.id})
        await asyncio.sleep(60)

    await run.emit({"word": "staying"})
    await run.step(stay, "here")


@agent
async def endless(run: Run, question: str) -> None:
    """Has a checkpoint, output beyond it, a finished effect, one in flight, and a child; ends by a cancel only."""
    await run.step(think, run.id, question)
    await run.emit({"word": "one"})
    await run.checkpoint({"at": 1})
    await run.emit({"word": "two"})
    await run.call(order, "first")
    child = await run.spawn(forever)
    await asyncio.gather(run.call(linger, "second"), child.outcome())


@agent
async def doubtful(run: Run, question: str) -> list[object]:
    """Two effects of which nobody knows whether they took place."""
    return list(await asyncio.gather(run.call(doubt, "a"), run.call(doubt, "b")))


@agent
async def gated(run: Run, question: str) -> object:
    """Holds a result in hand, with more to write behind it."""
    await run.emit({"word": "one"})
    answer = await run.call(wait_for_gate, question)
    await run.emit({"word": "two"})
    await run.checkpoint({"answer": answer})
    await run.call(order, question)
    return answer


@agent
async def patient(run: Run, question: str) -> str:
    """One long step: what a model request looks like from the store."""

    async def ask(_: str) -> str:
        append("steps.jsonl", {"step": "ask", "run": run.id})
        while not (directory() / "gate").exists():
            await asyncio.sleep(0.01)
        return "answered"

    answer = await run.step(ask, question)
    await run.emit({"word": "one"})
    await run.call(order, question)
    return answer


@agent
async def listener(run: Run) -> list[object]:
    """Take what comes from outside; have one effect in between."""
    heard: list[object] = [c.text for c in await run.corrections()]
    await run.call(look, "around")
    heard += [await run.wait_for("order-7"), [c.text for c in await run.corrections()]]
    return heard


@agent
async def asking(run: Run) -> list[object]:
    """Ask a person between two effects that may never be repeated."""
    first = await run.call(order, "before")
    answer = await run.ask("Go on?", answer=bool)
    return [first, answer, await run.call(order, "behind") if answer else "no"]


AGENTS: Final[tuple[Agent, ...]] = (
    asking,
    listener,
    helper,
    everything,
    small,
    steady,
    forever,
    endless,
    doubtful,
    gated,
    patient,
)
