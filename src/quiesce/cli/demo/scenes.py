"""The first five scenes. Each reads what it shows, and says what it expects of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from quiesce.cases import agents_of
from quiesce.cli.demo.stage import LEASE_MS, Stage
from quiesce.cli.inspection_view import journal_table
from quiesce.cli.output import grid, plural
from quiesce.cli.receipt_view import show_receipt
from quiesce.cli.streaming import Teller
from quiesce.domain.boundary import GapKind
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import RunId
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.codec import encode
from quiesce.runtime.inspection import Inspection
from quiesce.runtime.submission import Submission

_SEEN_BEFORE_STOP = 40
_SAID_BEFORE_DEATH = 12
_DECIDES = "ada"
_LETTER = re.compile(rb'"payload": "[^"\\A-Za-z]*([A-Za-z])')


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """The two runs whose worker died between effect and record."""

    probe: RunId
    once: RunId


async def submit(stage: Stage, case: str, **given: object) -> RunId:
    """Submit a run of a case."""
    agent = agents_of(case, stage.place.destination())[0]
    data = encode({"args": [], "kwargs": given}, field="input")
    run = await stage.service.submit(Submission(agent=agent.name, input=data, bindings=canonical(dict(agent.bindings))))
    return run.id


# -- 1 and 2: a worker streams, and dies at the worst moment ---------------------------------------------------------------


async def death(stage: Stage) -> Orphans:
    """A worker dies between an effect and its record; twice, with tools that differ in one word."""
    await stage.title("1  A run streams from a worker process")
    await stage.say("Everything is durable before it is shown, so this terminal reads the words from the store, by number.")
    probe = await submit(stage, "probe-effect", delay_ms=80)
    await _die(stage, probe, "probe-effect", "worker-1")
    await stage.title("2  That worker is gone: SIGKILL, after the effect and before its record")
    await _show_orphan(stage, probe, "pay")
    await stage.say("The journal says that the call left. It cannot say what came of it. Whoever retries on a hope pays twice.")
    await stage.say("A second run, and the same death. The only difference: its tool is declared `once` instead of `probe`.")
    once = await submit(stage, "once-effect", delay_ms=30)
    await _die(stage, once, "once-effect", "worker-2")
    await _show_orphan(stage, once, "order")
    return Orphans(probe=probe, once=once)


async def death_of_a_live_model(stage: Stage) -> RunId:
    """With a real model: its worker dies in the middle of a sentence. Nobody can have the rest of that sentence again."""
    await stage.title("2b A real model speaks, and its worker dies in the middle of a sentence")
    run_id = await submit(stage, "live-stream")
    await _die(stage, run_id, "live-stream", "worker-live", crash_at=f"emit.after:{_SAID_BEFORE_DEATH}")
    return run_id


async def _die(stage: Stage, run_id: RunId, case: str, name: str, *, crash_at: str = "effect.after") -> None:
    worker = await stage.worker(name, case, crash_at=crash_at)
    await stage.show(grid([("run", run_id), ("worker", f"{name}, process {worker.pid}")]), 0.5)
    following = asyncio.create_task(_follow(stage, run_id))
    code = await worker.wait()
    await _settle_screen(stage, following)
    await stage.expect(code == -signal.SIGKILL, f"process {worker.pid} ended by {ended_by(code)}")


async def _show_orphan(stage: Stage, run_id: RunId, tool: str) -> None:
    seen = await stage.service.inspect(run_id)
    lines = stage.effects(run_id)
    await stage.show(journal_table(seen), 1.0)
    await stage.show(Text("\n".join(["effects.log:", *(f"  {line}" for line in lines)]), style="dim"), 1.0)
    call = _call(seen, tool)
    await stage.expect(
        call.status is OperationStatus.DISPATCHED and call.result is None,
        f"journal: {call.name} is {call.status}, its result is {'not stored' if call.result is None else 'stored'}",
    )
    await stage.expect(len(lines) == 1, f"the world: {plural(len(lines), 'effect')} took place")


# -- 3: another process takes over -----------------------------------------------------------------------------------------


async def rescue(stage: Stage, orphans: Orphans) -> asyncio.subprocess.Process:
    """Another process takes both runs over: one destination can be asked, the other needs a person."""
    await stage.title("3  Another process takes over")
    await stage.say(
        f"The dead worker's lease runs out after {LEASE_MS / 1000} s; then its runs may be claimed, with a higher fence."
    )
    worker = await stage.worker("worker-3", "probe-effect", "once-effect", "slow-stream", "live-stream")
    await _asked(stage, orphans.probe, worker.pid)
    await _decided(stage, orphans.once)
    return worker


async def _asked(stage: Stage, run_id: RunId, pid: int) -> None:
    await stage.say(f"`probe`: process {pid} asks the destination before it does anything.")
    receipt = await stage.service.wait(run_id, timeout_ms=30_000)
    seen = await stage.service.inspect(run_id)
    probes = [e for e in seen.evidence if e.kind is EvidenceKind.PROBE]
    attempts = [(a.number, a.fence, a.worker_name) for a in seen.attempts]
    await stage.show(grid([(f"attempt {n}", f"fence {fence}, {name}") for n, fence, name in attempts]), 1.0)
    await stage.expect(
        any(e.verdict is Verdict.HAPPENED for e in probes),
        f"the destination's answer is on record: {', '.join(_answer(e.body) for e in probes) or 'none'}",
    )
    await stage.expect(receipt.status is RunStatus.COMPLETED, f"the run went on where it stood and is {receipt.status}")
    await stage.expect(len(stage.effects(run_id)) == 1, f"the world: still {plural(len(stage.effects(run_id)), 'effect')}")


async def _decided(stage: Stage, run_id: RunId) -> None:
    await stage.say("`once`: nobody can be asked. It is not retried, and it is not called failed. It is unknown, and says so.")

    async def parked() -> Inspection | None:
        seen = await stage.service.inspect(run_id)
        return seen if any(w.kind is WaitKind.UNKNOWN for w in seen.run.waits) else None

    seen = await stage.until(parked, "the run to wait for a decision")
    call = _call(seen, "order")
    await stage.show(grid([("explain", seen.explain()), *((w, _names(seen, w)) for w in ("must_stop",))]), 2.0)
    await stage.expect(call.status is OperationStatus.UNKNOWN, f"journal: {call.name} is {call.status} (TOOL_OUTCOME_UNKNOWN)")
    await stage.expect(len(stage.effects(run_id)) == 1, f"the world: still {plural(len(stage.effects(run_id)), 'effect')}")
    await stage.say("A person looks it up, and decides:")
    decision = await stage.command(
        "reconcile",
        run_id,
        call.position,
        "--verdict",
        "happened",
        "--result",
        json.dumps({"found": len(stage.effects(run_id))}),
        "--grounds",
        "it stands in effects.log",
        "--actor",
        _DECIDES,
    )
    await stage.expect(decision.code == 0, f"recorded (exit code {decision.code})")
    receipt = await stage.service.wait(run_id, timeout_ms=30_000)
    seen = await stage.service.inspect(run_id)
    deciders = [e.actor.name for e in seen.evidence if e.kind is EvidenceKind.DECISION]
    await stage.expect(deciders == [_DECIDES], f"the decision stays on record, by {', '.join(deciders)}")
    await stage.expect(receipt.status is RunStatus.COMPLETED, f"the run went on and is {receipt.status}")
    await stage.expect(len(stage.effects(run_id)) == 1, f"the world: still {plural(len(stage.effects(run_id)), 'effect')}")


# -- 4: Stop ---------------------------------------------------------------------------------------------------------------


async def stop(stage: Stage, worker: asyncio.subprocess.Process, live: RunId | None) -> TerminalReceipt:
    """A stream is cancelled from another process, and leaves a receipt. `live`: the run whose model spoke before."""
    await stage.title("4  Stop, in mid-stream, from another process")
    if live is not None:
        await _begun_anew(stage, live)
    run_id = live or await submit(stage, "slow-stream", tokens=5000, delay_ms=25, checkpoints=1)
    await stage.show(grid([("run", run_id), ("worker", f"worker-3, process {worker.pid}")]), 0.5)
    following = asyncio.create_task(_follow(stage, run_id))
    await stage.until(lambda: _shown(stage, run_id), "the stream to flow")
    stage.out.print()
    cancelled = await stage.command("cancel", run_id, "--reason", "changed my mind", "--json")
    seen_here = await _settle_screen(stage, following)
    await stage.expect(cancelled.code == 0, f"accepted, and the receipt is there (exit code {cancelled.code})")
    receipt = await stage.service.receipt(run_id)
    await stage.say(
        "D: the state that is durable. V: the last word that may have been seen. T: the end. Not one number, but three."
    )
    stage.out.print()
    show_receipt(stage.out, receipt)
    stage.out.print()
    frontier = receipt.frontier
    await stage.expect(
        receipt.status is RunStatus.CANCELLED, f"{receipt.status}, by {receipt.actor.name}: {receipt.reason_text!r}"
    )
    await stage.expect(
        frontier.emitted_exact and seen_here == frontier.emitted_seq,
        f"the receipt names event {frontier.emitted_seq}; the last one on this screen was {seen_here}",
    )
    gap = receipt.gap
    await stage.expect(
        gap.kind is GapKind.RECOVERABLE and gap.last_seq == frontier.emitted_seq,
        f"what was shown beyond the last state is kept as evidence: events {gap.first_seq} to {gap.last_seq}",
    )
    await stage.expect(worker.returncode is None, f"process {worker.pid} lives: the run was stopped, not its worker")
    return receipt


async def _begun_anew(stage: Stage, run_id: RunId) -> None:
    """The successor asks the model again; what its predecessor's reader saw is marked as replaced, and stays readable."""

    async def look() -> StreamEvent | None:
        events = await stage.env.store.read(lambda tx: tx.streams.read(run_id, after=0, limit=1000))
        return next((e for e in events if e.kind is EventKind.SUPERSEDED), None)

    mark = await stage.until(look, "another worker to take the model's run over")
    first, last = gap_range(mark)
    await stage.expect(first <= last < mark.seq, f"events {first} to {last} are replaced by what follows, and stay readable")


async def _shown(stage: Stage, run_id: RunId) -> int | None:
    stream = (await stage.service.inspect(run_id)).stream
    return stream.stored_seq if stream is not None and stream.stored_seq >= _SEEN_BEFORE_STOP else None


# -- 5: proof --------------------------------------------------------------------------------------------------------------


async def proof(stage: Stage, receipt: TerminalReceipt) -> None:
    """The receipt is computed again from its evidence; a bundle with one changed byte does not pass."""
    await stage.title("5  Nobody has to believe it")
    verified = await stage.command("verify", receipt.run_id)
    await stage.show(Text(verified.output.rstrip()), 1.5)
    await stage.expect(verified.code == 0, f"every claim holds, computed again (exit code {verified.code})")
    file = (stage.place.directory or Path()) / f"{receipt.run_id}.json"
    exported = await stage.command("export", receipt.run_id, "-o", str(file))
    await stage.expect(exported.code == 0, f"the evidence, in one file of {file.stat().st_size} bytes")
    at = change_one_byte(file)
    await stage.say(f"Now byte {at} of that file is changed: one letter of one word that the agent said.")
    forged = await stage.command("verify", "--bundle", str(file), "--json")
    failed = _failed(forged.output)
    await stage.expect(forged.code == 7 and bool(failed), f"found out (exit code {forged.code}): {', '.join(failed)}")


def change_one_byte(file: Path) -> int:
    """Change one letter of an event's text in a bundle file; return where."""
    data = bytearray(file.read_bytes())
    *_, last = _LETTER.finditer(data)
    at = last.start(1)
    data[at] ^= 0x01 if chr(data[at] ^ 0x01).isalpha() else 0x02
    file.write_bytes(data)
    return at


def _failed(output: str) -> list[str]:
    start = output.find("{")
    document = json.JSONDecoder().raw_decode(output[start:])[0] if start >= 0 else {}
    return [str(check["name"]) for check in document.get("checks", []) if not check["ok"]]


# -- helpers ---------------------------------------------------------------------------------------------------------------


async def _follow(stage: Stage, run_id: RunId) -> int:
    """Show a run's stream as it comes, to its end or until this is ended; return the last number shown."""
    teller = Teller(sys.stdout)
    last = 0
    try:
        async for frame in stage.service.stream(run_id):
            teller.show(frame)
            last = frame.seq if isinstance(frame, StreamEvent) else last
    except asyncio.CancelledError:
        pass
    teller.finish()
    return last


async def _settle_screen(stage: Stage, following: asyncio.Task[int]) -> int:
    """Let the reader catch up, then end it; return the last number that it has shown."""
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(asyncio.shield(following), 2 * stage.env.settings.poll_ms / 1000)
    following.cancel()
    return await following


def _call(seen: Inspection, tool: str) -> Operation:
    return next(o for o in seen.operations if o.kind is OperationKind.CALL and o.name == tool)


def _names(seen: Inspection, which: str) -> str:
    return ", ".join(f"{i['operation']} {i['name']} ({i['why']})" for i in seen.authority()[which]) or "nothing"


def _answer(body: bytes) -> str:
    facts = parse(body)
    return str(facts.get("answer")) if isinstance(facts, dict) else "?"


def ended_by(code: int) -> str:
    """Say how a process ended."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
