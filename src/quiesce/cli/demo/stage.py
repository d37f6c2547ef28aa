"""The stage of the demo: narration, expectations, and the processes that play.

Nothing that is shown as a fact is written here: scenes read it from the store or from the logs, and say what they expect.
An expectation that does not hold is shown, counted, and makes the demo fail.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from quiesce.cases.destination import EFFECTS_LOG, read_lines
from quiesce.cli.output import console
from quiesce.cli.session import Place
from quiesce.domain.errors import QuiesceError
from quiesce.domain.ids import RunId
from quiesce.runtime.environment import Environment
from quiesce.runtime.service import ControlService

T = TypeVar("T")

LEASE_MS: Final = 1500
BEAT_MS: Final = 400
_POLL_MS: Final = 40.0
_PATIENCE_MS: Final = 30_000


class StoryBroken(QuiesceError):
    """What the next scene needs did not come about; the demo ends here."""

    code = "STORY_BROKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a command ended."""

    code: int
    output: str


@dataclass(slots=True, kw_only=True)
class Stage:
    """What every scene is given."""

    env: Environment
    place: Place
    is_fast: bool
    out: Console = field(default_factory=console)
    failures: int = 0
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def service(self) -> ControlService:
        """The demo's own eyes: a third process that runs nothing."""
        return ControlService(self.env)

    # -- narration -----------------------------------------------------------------------------------------------------

    async def title(self, words: str) -> None:
        """Begin a scene."""
        self.out.print()
        self.out.rule(Text(words, style="bold"), align="left")
        await self._pause(0.8)

    async def say(self, words: str, seconds: float = 2.0) -> None:
        """Say what to look at, and leave time to read it."""
        self.out.print(Text(words, style="italic"))
        await self._pause(seconds)

    async def show(self, what: RenderableType, seconds: float = 2.0) -> None:
        """Show something that was just read."""
        self.out.print(what)
        await self._pause(seconds)

    async def expect(self, holds: bool, words: str) -> None:
        """Say whether something that the story claims holds."""
        mark = Text("  ✓ ", style="bold green") if holds else Text("  ✗ ", style="bold red")
        self.out.print(mark.append(words, style="" if holds else "red"))
        self.failures += 0 if holds else 1
        await self._pause(0.7)

    async def _pause(self, seconds: float) -> None:
        if not self.is_fast:
            await self.env.clock.sleep(seconds * 1000)

    # -- processes -----------------------------------------------------------------------------------------------------

    async def worker(self, name: str, *cases: str, crash_at: str = "") -> asyncio.subprocess.Process:
        """Start a worker process for some cases; with `crash_at`, it dies by SIGKILL at that crash point."""
        flags = [text for case in cases for text in ("--case", case)]
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *_quiesce("worker", "--name", name, *flags, *self._where),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(crash_at),
            )
        self.processes.append(process)
        return process

    async def command(self, *arguments: str) -> Finished:
        """Run one command to its end, in a process of its own; show it as somebody would type it."""
        await self.show(Text(f"  $ quiesce {' '.join(map(_quoted, arguments))}", style="cyan"), 0.6)
        process = await asyncio.create_subprocess_exec(
            *_quiesce(*arguments, *(() if "--bundle" in arguments else self._where)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(""),
        )
        output, _ = await process.communicate()
        return Finished(code=process.returncode or 0, output=output.decode())

    async def dismiss(self) -> None:
        """End whatever processes are left."""
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.wait()

    @property
    def _where(self) -> tuple[str, ...]:
        return ("--session", str(self.place.directory))

    @property
    def _log(self) -> Path:
        return (self.place.directory or Path()) / "workers.log"

    # -- reading -------------------------------------------------------------------------------------------------------

    def effects(self, run_id: RunId) -> list[str]:
        """Return this run's lines in the effects log: what really happened, whoever says what."""
        log = (self.place.artifacts or Path()) / EFFECTS_LOG
        return [line for line in read_lines(log) if line.startswith(f"{run_id} ")]

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Look until there is something; raise `StoryBroken` if it does not come about in half a minute."""
        waited_ms = 0.0
        while (found := await look()) is None:
            if waited_ms >= _PATIENCE_MS:
                raise StoryBroken(f"waited {_PATIENCE_MS // 1000} s for {what}; see {self._log}")
            await self.env.clock.sleep(_POLL_MS)
            waited_ms += _POLL_MS
        return found


def _quiesce(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "quiesce", *arguments)


def _environment(crash_at: str) -> dict[str, str]:
    """Return the environment of a player: short leases, so that nobody waits long for the dead."""
    theirs = {
        "QUIESCE_LEASE_MS": str(LEASE_MS),
        "QUIESCE_BEAT_MS": str(BEAT_MS),
        "QUIESCE_COMMAND_LEASE_MS": str(LEASE_MS),
        "QUIESCE_CRASH_AT": crash_at,
    }
    return {**{k: v for k, v in os.environ.items() if k not in ("QUIESCE_STORE", "QUIESCE_SESSION")}, **theirs}


def _quoted(argument: str) -> str:
    return f"'{argument}'" if set(argument) & set(' "{') else argument
