"""Plays built-in cases in this process, on a memory store: for tests about what a run leaves behind, not about processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from quiesce.bootstrap import make_environment
from quiesce.cases import registry
from quiesce.cases.destination import EFFECTS_LOG, Destination, Hold, read_lines
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.runs import Run
from quiesce.domain.streams import StreamEvent
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.bundle import Bundle, gather_tx
from quiesce.runtime.codec import encode
from quiesce.runtime.context import Run as AgentRun
from quiesce.runtime.environment import Environment
from quiesce.runtime.registry import Registry, declare_agent
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker

PATIENCE_MS: Final = 100_000
SAID: Final = 12


async def halting(run: AgentRun) -> None:
    """Say twelve words, keep what was said after each fifth, and wait to be stopped: two words are seen and not kept."""
    for number in range(1, SAID + 1):
        await run.emit(f"word {number} ")
        if number % 5 == 0:
            await run.checkpoint({"written": number})
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Theatre:
    """A worker of all cases over an empty store."""

    env: Environment
    known: Registry
    directory: Path

    @property
    def service(self) -> ControlService:
        """Commands and questions."""
        return ControlService(self.env)

    async def submit(self, case: str, **given: object) -> Run:
        """Submit a run of a case."""
        return await self.service.submit(self._wanted(case, given))

    async def stop_halting(self) -> TerminalReceipt:
        """Cancel a run of `halting` once all that it says has been seen, and wait for its receipt."""
        return await self.play_until(SAID, halting.__name__)

    async def play(self, case: str, **given: object) -> TerminalReceipt:
        """Submit a run and wait for its receipt."""
        run = await self.submit(case, **given)
        return await self.service.wait(run.id, timeout_ms=PATIENCE_MS)

    async def play_in(self, thread: str, case: str) -> TerminalReceipt:
        """The same as the next run of a thread."""
        run = await self.service.submit(replace(self._wanted(case, {}), thread_id=ThreadId(thread)))
        return await self.service.wait(run.id, timeout_ms=PATIENCE_MS)

    def _wanted(self, case: str, given: Mapping[str, object]) -> Submission:
        bindings = canonical(dict(self.known.get(case).bindings))
        return Submission(agent=case, input=encode({"args": [], "kwargs": given}, field="input"), bindings=bindings)

    async def play_until(self, seq: int, case: str, **given: object) -> TerminalReceipt:
        """Submit a run, cancel it once an event has been seen, and wait for its receipt."""
        run = await self.submit(case, **given)
        async for frame in self.service.stream(run.id):
            if isinstance(frame, StreamEvent) and frame.seq >= seq:
                break
        await self.service.cancel(run.id, reason="seen enough")
        return await self.service.wait(run.id, timeout_ms=PATIENCE_MS)

    async def bundle(self, run_id: RunId) -> Bundle:
        """Gather a run's evidence."""
        return await self.env.store.read(lambda tx: gather_tx(tx, run_id))

    def effects(self) -> list[str]:
        """Return all effects so far."""
        return read_lines(self.directory / EFFECTS_LOG)


@contextlib.asynccontextmanager
async def theatre(directory: Path) -> AsyncIterator[Theatre]:
    """Open one, and close it at the end of the block."""
    env = await make_environment("memory://", artifacts=directory)
    known = registry(Destination(directory, Hold()))
    known.add(declare_agent(halting, bindings={"model": "none"}))
    worker = RunWorker(env, known)
    await worker.start()
    try:
        yield Theatre(env=env, known=known, directory=directory)
    finally:
        await worker.close()
        await env.store.close()
