"""The scene of the thread: a conversation that was stopped goes on, and nothing that was seen is silently erased."""

from __future__ import annotations

import json

from rich.text import Text

from quiesce.cli.demo.stage import Finished, Stage
from quiesce.domain.continuations import Carry, Continuation
from quiesce.domain.history import Turn
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.threads import ThreadService

_NEXT = json.dumps({"tokens": 6, "delay_ms": 10})


async def goes_on(stage: Stage, receipt: TerminalReceipt) -> None:
    """The next message is refused without a choice, then goes on under one; the thread shows who decided what."""
    await stage.title("6  The next message, behind words that were seen and are no state")
    await stage.say(
        "Elsewhere the next message starts from the checkpoint, and what the user saw beyond it is gone without a word. Here it "
        "is refused, and told what would do."
    )
    refused = await _next_message(stage, receipt)
    await stage.show(Text(refused.output.rstrip(), style="dim"), 1.5)
    turns = await _turns(stage, receipt)
    await stage.expect(
        refused.code == 4 and len(turns) == 1, f"refused (exit code {refused.code}); {len(turns)} run in the thread, as before"
    )
    await stage.say("Somebody has read the receipt, and chooses: keep what was seen, as what it is, partial.")
    done = await _next_message(stage, receipt, "--accept", receipt.id, "--policy", "reconcile")
    await stage.expect(done.code == 0, f"it went on (exit code {done.code})")
    shown = await stage.command("thread", receipt.thread_id)
    await stage.show(Text(shown.output.rstrip()), 2.5)
    before, after = await _turns(stage, receipt)
    record = after.continuation
    await stage.expect(
        before.partial is not None and _goes_on_behind(after) == before.partial.text,
        "the new run was given exactly the words that were seen beyond the checkpoint, marked as partial",
    )
    await stage.expect(
        before.state is not None and before.is_behind, f"the state of before is as it was: it ends at event {before.cursor}"
    )
    await stage.expect(
        record is not None and (record.receipt_id, record.carry) == (receipt.id, Carry.KEEP_PARTIAL),
        f"on record: {_words(record)}",
    )


async def _next_message(stage: Stage, receipt: TerminalReceipt, *choice: str) -> Finished:
    return await stage.command("continue", receipt.thread_id, "--agent", "slow-stream", "--input", _NEXT, *choice)


async def _turns(stage: Stage, receipt: TerminalReceipt) -> list[Turn]:
    return await ThreadService(stage.env).history(receipt.thread_id)


def _goes_on_behind(turn: Turn) -> object:
    return turn.result.get("goes_on_behind") if isinstance(turn.result, dict) else None


def _words(record: Continuation | None) -> str:
    if record is None:
        return "nothing"
    return f"{record.policy} ({record.rule}), {record.carry}, by {record.actor.name}, about receipt {record.receipt_id}"
