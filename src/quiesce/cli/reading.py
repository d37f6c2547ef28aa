"""Verbs that read: `list`, `inspect`, `explain`, `trace`, `watch`, `receipt`. They change nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.inspection_view import show_inspection
from quiesce.cli.options import ArtifactsOption, JsonOption, RunArgument, SessionOption, StoreOption
from quiesce.cli.output import age, console, listing, print_json, print_json_line, status_text
from quiesce.cli.receipt_view import show_receipt
from quiesce.cli.session import find_run, locate, opened
from quiesce.cli.streaming import Teller
from quiesce.domain.instant import to_iso
from quiesce.domain.runs import Run, RunStatus
from quiesce.runtime.readers import KeepAlive, StreamStatus
from quiesce.runtime.service import ControlService
from quiesce.runtime.trace import Capture, TraceLine


def list_runs(
    *,
    status: Annotated[list[RunStatus] | None, typer.Option("--status", help="Only these. Repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 20,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            runs = await ControlService(env).list(statuses=[str(s) for s in status or []], limit=limit)
            now = env.clock.now()
        if as_json:
            print_json([_row(run) for run in runs])
        else:
            rows = [(run.id, run.agent, status_text(run.status), age(run.created_at, now)) for run in runs]
            console().print(listing(("run", "agent", "status", "age"), rows) if rows else Text("no runs"))
        return Exit.OK

    perform(work, as_json=as_json)


def inspect(
    run: RunArgument,
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything stored of a run."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            service = ControlService(env)
            seen = await service.inspect(await find_run(service, run))
        if as_json:
            print_json(seen.to_json())
        else:
            show_inspection(console(), seen)
        return Exit.OK

    perform(work, as_json=as_json)


def explain(
    run: RunArgument,
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a run waits for."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            service = ControlService(env)
            seen = await service.inspect(await find_run(service, run))
        if as_json:
            facts = {"run_id": seen.run.id, "status": str(seen.run.status), "waits": [w.to_json() for w in seen.run.waits]}
            print_json({**facts, "explanation": seen.explain()})
        else:
            console().print(Text(f"{seen.run.id} ({seen.run.agent}): {seen.explain()}"), soft_wrap=True)
        return Exit.OK

    perform(work, as_json=as_json)


def trace(
    run: RunArgument,
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is on record of a run, in the order of time."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            service = ControlService(env)
            lines = await service.trace(await find_run(service, run))
        if as_json:
            print_json([line.to_json() for line in lines])
        else:
            began = lines[0].at or 0
            rows = [_trace_row(line, began) for line in lines]
            console().print(listing(("after", "what", "of"), rows))
        return Exit.OK

    perform(work, as_json=as_json)


def _trace_row(line: TraceLine, began: int) -> tuple[str, Text, str]:
    after = "" if line.at is None else f"{(line.at - began) / 1_000_000:.3f} s"
    style = {Capture.MISSING: "yellow", Capture.UNKNOWN: "bold red"}.get(line.capture, "")
    words = line.what if line.capture is Capture.CAPTURED else f"{line.capture}: {line.what}"
    return after, Text(words, style=style), line.subject


def watch(
    run: RunArgument,
    *,
    after: Annotated[int, typer.Option("--after", help="Go on behind this number.")] = 0,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a run's stream."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            service = ControlService(env)
            run_id = await find_run(service, run)
            teller = Teller(sys.stdout)
            async for frame in service.stream(run_id, after=after):
                if not as_json:
                    teller.show(frame)
                elif not isinstance(frame, KeepAlive) and not (isinstance(frame, StreamStatus) and not frame.waits):
                    print_json_line(frame.to_json())
        return Exit.OK

    perform(work, as_json=as_json)


def receipt(
    run: RunArgument,
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the receipt of a run that has ended."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            service = ControlService(env)
            found = await service.receipt(await find_run(service, run))
        if as_json:
            print_json(found.to_json())
        else:
            show_receipt(console(), found)
        return Exit.OK

    perform(work, as_json=as_json)


def _row(run: Run) -> dict[str, object]:
    return {
        "run_id": run.id,
        "agent": run.agent,
        "status": str(run.status),
        "thread_id": run.thread_id,
        "parent_id": run.parent_id,
        "key": run.key,
        "attempt": run.attempt,
        "waits": [w.to_json() for w in run.waits],
        "created_at": to_iso(run.created_at),
        "ended_at": None if run.ended_at is None else to_iso(run.ended_at),
    }
