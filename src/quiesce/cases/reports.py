"""Cases that talk to a model and stream what it says. The models are scripted; no socket is opened.

Shown here: a model request is a step (asked once, never again after its answer is stored), words are streamed from inside
the step that writes them, a checkpoint closes what is finished, and an artifact outlives whatever becomes of the run.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from quiesce.adapters.models.local_smollm import BINDING, LocalSmolLM
from quiesce.adapters.models.scripted import ScriptedModel, Turn
from quiesce.cases.declaring import bound, whole
from quiesce.cases.destination import Destination
from quiesce.ports.models import Model
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.registry import Agent, declare_tool

QUESTION: Final = "What must hold when a run is stopped?"
_PLAN: Final = "frontier; effects; receipt"
_FACTS: Final = {
    "frontier": "what was shown is numbered, so it is known how far a reader may have got",
    "effects": "a call that left and did not answer is unknown, and is not repeated on a hope",
    "receipt": "the end is published once, with its cause and with what may follow",
}
_REPORT: Final = (
    "# A stop that can be trusted\n\n"
    "A run is stopped at a known place. What it showed is numbered and stored before it is shown, so nobody has to guess "
    "what a reader saw. What it asked of the world is on record before it was asked, so an answer that never came stays "
    "unknown instead of being asked for twice. And its end is one receipt: why, how far, what was seen beyond the last "
    "finished state, and what may follow.\n"
)
_STREAM: Final = "every word here has a number and none is given twice "
_ANSWER: Final = "Place one order of twelve."


async def _discard(_: str) -> None:
    """Take a piece of text and show it to nobody."""


def durable_report(destination: Destination) -> tuple[Agent, ...]:
    """The default case: ends by itself within a second or two, with a report."""
    planner = ScriptedModel("durable-report", [Turn(text=_PLAN)])
    writer = ScriptedModel("durable-report", [Turn(text=_REPORT)], token_delay_ms=2)

    async def look_up(topic: str) -> str:
        """Look a topic up: no outside effect, so it may be repeated."""
        return _FACTS.get(topic, "nothing is known about it")

    async def announce(report: str, *, call: Call) -> object:
        """Announce a report to a destination that knows a key again."""
        return {"announced": report, "is_new": destination.act_once_per_key(call)}

    async def plan(run: Run, question: str) -> list[str]:
        reply = await destination.ask(planner, f"Plan an answer: {question}", run.id, _discard)
        return [topic.strip() for topic in reply.text.split(";")]

    async def write(run: Run, question: str, facts: list[object]) -> str:
        prompt = "\n".join([f"Answer: {question}", *map(str, facts)])
        return (await destination.ask(writer, prompt, run.id, run.emit)).text

    looking_up = declare_tool(look_up, effect="pure")
    announcing = declare_tool(announce, effect="idempotent")
    cost = {"model_requests": 1}

    async def agent(run: Run, question: str = QUESTION) -> dict[str, object]:
        topics = await run.step(partial(plan, run), question, name="plan", reserve=cost)
        await run.emit({"plan": topics}, channel="progress", state_bearing=False)
        await run.checkpoint({"plan": topics})
        facts = [await run.call(looking_up, topic) for topic in topics]
        text = await run.step(partial(write, run), question, facts, name="write", reserve=cost)
        await run.checkpoint({"plan": topics, "words": len(text.split())})
        report = await run.save_artifact("report.md", text)
        await run.call(announcing, report.name)
        return {"report": report.path, "digest": report.digest, "words": len(text.split())}

    return (bound(agent, "durable-report", model=writer.binding),)


def slow_stream(_: Destination) -> tuple[Agent, ...]:
    """Streams `tokens` words, `delay_ms` apart, and checkpoints after each `every` of them, at most `checkpoints` times.

    On a thread it says behind which words it goes on, if the choice was to keep what was seen of a stream that was stopped.
    """
    words = _STREAM.split()

    async def agent(
        run: Run, tokens: int = 200, delay_ms: int = 20, every: int = 25, checkpoints: int = 1_000_000
    ) -> dict[str, object]:
        size, most = whole("every", every, 1, 1_000_000), whole("checkpoints", checkpoints, 0, 1_000_000)
        kept = [turn.partial.text for turn in await run.history(limit=1) if turn.partial is not None]
        for number in range(1, whole("tokens", tokens, 1, 1_000_000) + 1):
            await run.emit(words[(number - 1) % len(words)] + " ")
            if number % size == 0 and number // size <= most:
                await run.checkpoint({"written": number})
            await asyncio.sleep(whole("delay_ms", delay_ms, 0, 60_000) / 1000)
        return {"written": tokens, **({"goes_on_behind": kept[0]} if kept else {})}

    return (bound(agent, "slow-stream", model="scripted:slow-stream"),)


def live_stream(destination: Destination) -> tuple[Agent, ...]:
    """A small real model on this machine writes, as long as it is let (extra `local-model`). It is loaded when first asked."""
    loaded: list[Model] = []

    async def write(run: Run, question: str) -> str:
        if not loaded:
            loaded.append(LocalSmolLM())
        return (await destination.ask(loaded[0], question, run.id, run.emit)).text

    async def agent(run: Run, question: str = "Tell a long story about a lighthouse.") -> dict[str, int]:
        await run.checkpoint({"question": question})
        text = await run.step(partial(write, run), question, name="write", reserve={"model_requests": 1})
        return {"words": len(text.split())}

    return (bound(agent, "live-stream", model=BINDING),)


def pending_model(destination: Destination) -> tuple[Agent, ...]:
    """Asks a model whose answer is held back, then acts on the answer.

    The request is made by plain code in a thread, as by a client library that cannot be interrupted: after a cancel the
    answer still comes, late, and must have no force. With `interruptible`, a cancel reaches the request itself.
    """
    model = ScriptedModel("pending-model", [Turn(text=_ANSWER)])

    async def order(what: str, *, call: Call) -> object:
        """Act on the model's proposal: once, or it stays unknown."""
        destination.act(call)
        return {"ordered": what}

    async def propose(run_id: str, question: str) -> str:
        return (await destination.ask(model, question, run_id, _discard)).text

    def propose_blocking(run_id: str, question: str) -> str:
        return asyncio.run(propose(run_id, question))

    ordering = declare_tool(order, effect="once")

    async def agent(run: Run, question: str = "What shall be ordered?", interruptible: bool = False) -> dict[str, object]:
        await run.emit("asking the model\n")
        body = partial(propose, run.id) if interruptible else partial(propose_blocking, run.id)
        proposal = await run.step(body, question, name="propose", reserve={"model_requests": 1})
        await run.checkpoint({"proposal": proposal})
        return {"proposal": proposal, "answer": await run.call(ordering, proposal)}

    return (bound(agent, "pending-model", model=model.binding),)
