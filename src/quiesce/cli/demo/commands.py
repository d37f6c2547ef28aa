"""The two scenes of the control channel: an acknowledgement that is lost, and an answer that is."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from rich.text import Text

from quiesce.cases.destination import read_lines
from quiesce.cases.post import BOOK, letter
from quiesce.cli.demo.scenes import submit
from quiesce.cli.demo.stage import LEASE_MS, Stage
from quiesce.cli.output import grid, plural
from quiesce.domain.deliveries import Effect, HistoryEvent
from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus
from quiesce.runtime.queue import Entry, QueueService
from quiesce.runtime.run_owner import cancel_command

_WORDS_BEFORE_STOP = 5


async def lost_acknowledgement(stage: Stage) -> None:
    """The worker dies between the owner's commit and the delivery's; another one settles, and repeats nothing."""
    await stage.title("7  A Stop is a command, and its acknowledgement is lost")
    await stage.say(
        "This Stop is staged in somebody's own transaction. The worker that delivers it dies after the run has admitted it, and "
        "before the delivery is settled. Did it arrive? Did it act? Another worker finds out, and stops nothing twice."
    )
    queue = QueueService(stage.env)
    run_id = await submit(stage, "slow-stream", tokens=5000, delay_ms=25)
    worker = await stage.worker("worker-4", "slow-stream", crash_at="delivery.admitted")
    await stage.until(lambda: _flows(stage, run_id), "the stream to flow")
    staged = await stage.service.stage(
        cancel_command(run_id, producer="console", producer_key=f"stop {run_id}", subject="ada", reason="enough")
    )
    code = await worker.wait()
    await stage.expect(
        code == -signal.SIGKILL, f"process {worker.pid} ended by {signal.Signals(-code).name if code < 0 else code}"
    )
    entry = await queue.show(staged.intent.id)
    occurrence = await stage.env.store.read(lambda tx: tx.terminal.occurrence(run_id))
    await stage.show(
        grid([("delivery", entry.delivery), ("effect", str(entry.effect)), ("run", await _status(stage, run_id))]), 1.5
    )
    await stage.expect(entry.effect is Effect.UNKNOWN, f"the channel does not guess: the effect is {entry.effect}")
    await stage.expect(occurrence is not None, "the run knows better: its cancel is on record, and it is fenced")
    successor = await stage.worker("worker-5", "slow-stream")
    await stage.say(f"Its claim runs out after {LEASE_MS / 1000} s. The next worker asks the run first, under the same key:", 0.5)
    entry = await queue.settled(staged.intent.id, timeout_ms=30_000)
    lines = [line.what for line in await queue.history(staged.intent.id)]
    receipt = await stage.service.wait(run_id, timeout_ms=30_000)
    await stage.show(Text("  " + " → ".join(lines), style="dim"), 1.0)
    await stage.expect(
        lines.count(HistoryEvent.STARTED) == 1, "it was asked to stop once; the delivery is settled from its receipt"
    )
    await stage.expect(
        _proof(entry) == f"occurrence {receipt.occurrence_id}" and receipt.status is RunStatus.CANCELLED,
        f"the run is {receipt.status}, and its receipt names the same admission",
    )
    successor.send_signal(signal.SIGTERM)
    await successor.wait()


async def lost_answer(stage: Stage) -> None:
    """A remote owner has acted, or has not: the line was cut. Nothing is sent again on a hope."""
    await stage.title("8  An answer is lost, and nobody guesses")
    await stage.say(
        "Two letters go to a post office with a book of its own. One answer is lost on its way back, one letter on its way "
        "there. From here they look the same, so both are unknown, and neither is sent again."
    )
    queue = QueueService(stage.env)
    mark = stage.env.new_id()
    posted = await stage.service.stage(letter("ada", producer_key=f"{mark} answer", fails="answer"))
    lost = await stage.service.stage(letter("ben", producer_key=f"{mark} request", fails="request"))
    worker = await stage.worker("worker-6", "slow-stream")
    first = await stage.until(lambda: _was_unknown(queue, posted.intent.id), "the answer to be lost")
    await stage.expect(HistoryEvent.UNKNOWN in first, "the letter to ada: its answer was lost, its effect was unknown")
    entry = await queue.settled(posted.intent.id, timeout_ms=30_000)
    await stage.expect(entry.effect is Effect.ACCEPTED, f"then the office's own book was read: {_proof(entry)}, {entry.effect}")
    await stage.until(lambda: _was_unknown(queue, lost.intent.id), "the request to be lost")
    entry = await queue.show(lost.intent.id)
    await stage.expect(
        entry.effect is Effect.UNKNOWN, f"the letter to ben: still {entry.effect}, and it stays so until the book shows it"
    )
    book = read_lines((stage.place.artifacts or stage.place.destination().directory) / BOOK)
    await stage.expect(len(book) == 1, f"the world: {plural(len(book), 'letter')} in the book")
    worker.send_signal(signal.SIGTERM)
    with contextlib.suppress(asyncio.CancelledError):
        await worker.wait()


async def _flows(stage: Stage, run_id: RunId) -> bool | None:
    stream = (await stage.service.inspect(run_id)).stream
    return True if stream is not None and stream.stored_seq >= _WORDS_BEFORE_STOP else None


async def _was_unknown(queue: QueueService, name: str) -> list[HistoryEvent] | None:
    entry = await queue.show(name)
    if entry.command is None:
        return None
    lines = [line.what for line in await queue.history(name)]
    return lines if HistoryEvent.UNKNOWN in lines else None


async def _status(stage: Stage, run_id: RunId) -> str:
    return str((await stage.service.inspect(run_id)).run.status)


def _proof(entry: Entry) -> str:
    return "" if entry.settlement is None else entry.settlement.receipt.effect_ref
