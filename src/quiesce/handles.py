"""`RunHandle`: one run, as a caller holds it. Names what the service does, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from quiesce.domain.boundary import CancelMode, CancelScope
from quiesce.domain.canonical import Json, canonical
from quiesce.domain.comparison import Mark
from quiesce.domain.mailbox import MailboxEntry
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.codec import annotations_of, decode
from quiesce.runtime.comparison import Compared
from quiesce.runtime.readers import Frame
from quiesce.runtime.registry import Agent
from quiesce.runtime.service import ControlService


class RunHandle:
    """One run, as a caller holds it."""

    def __init__(self, service: ControlService, run: Run, agent: Agent | None = None) -> None:
        self._service = service
        self._agent = agent
        self.id = run.id
        self.thread_id = run.thread_id

    async def status(self) -> RunStatus:
        """Return the run's execution state now."""
        return (await self._service.get(self.id)).status

    async def receipt(self, *, timeout_ms: float | None = None) -> TerminalReceipt:
        """Wait for the end of the run and return its receipt."""
        return await self._service.wait(self.id, timeout_ms=timeout_ms)

    async def result(self, *, timeout_ms: float | None = None) -> object:
        """Wait for the end and return what the agent returned; None if the run did not complete (ask the receipt why)."""
        await self._service.wait(self.id, timeout_ms=timeout_ms)
        value = await self._service.result(self.id)
        hint = annotations_of(self._agent.fn).get("return") if self._agent else None
        return None if value is None else decode(canonical(value), hint, field="result")

    async def cancel(
        self,
        *,
        reason: str = "",
        mode: CancelMode | str = CancelMode.NOW,
        scope: CancelScope | str = CancelScope.TREE,
        grace_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> TerminalReceipt:
        """Cancel the run, wait for its boundary, and return the receipt.

        Of a run that had ended already, the receipt of that end: nothing changed, and that is no failure.
        """
        await self._service.cancel(self.id, reason=reason, mode=mode, scope=scope, grace_ms=grace_ms)
        return await self._service.wait(self.id, timeout_ms=timeout_ms)

    async def wake(self, name: str, value: Json = None, *, key: str | None = None) -> MailboxEntry:
        """Wake the run if it waits, or once it waits, for `name`. Raises `RunEnded` that names the receipt."""
        return await self._service.wake(self.id, name, value, key=key)

    async def correct(self, text: str, *, key: str | None = None) -> MailboxEntry:
        """Give the running agent a person's words, for its next safe boundary. Raises `RunEnded` that names the receipt."""
        return await self._service.correct(self.id, text, key=key)

    async def mailbox(self) -> list[MailboxEntry]:
        """Return what reached the run from outside, and what became of each."""
        return await self._service.mailbox(self.id)

    def stream(self, *, after: int = 0) -> AsyncIterator[Frame]:
        """Read the run's stream from a number on; ends with `StreamEnd`."""
        return self._service.stream(self.id, after=after)

    def attending(self) -> AbstractAsyncContextManager[None]:
        """Be a client of the run for the length of a block: it matters where it was started with `on_disconnect="cancel"`.

        Leaving the block ends nothing at once: the grace begins, and whoever attends within it annuls that.
        """
        return self._service.attending(self.id)

    async def compare(self, *seen: Mark) -> Compared:
        """Compare what a client saw (`Seen.marks`) with what is stored; without marks, D with V. See `docs/streams.md`."""
        return await self._service.compare(self.id, seen)
