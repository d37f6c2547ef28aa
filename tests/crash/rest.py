"""When the processes of the crash tests are done: nothing stored moves by itself any more."""

from __future__ import annotations

import asyncio
from typing import Final

from quiesce.domain.runs import TERMINAL, Run, RunStatus, WaitKind
from quiesce.runtime.service import ControlService

PATIENCE_S: Final = 40.0
NOT_QUIET: Final = 3
_UNFINISHED: Final = tuple(status for status in RunStatus if status not in TERMINAL)


async def until_quiet(service: ControlService, stop: asyncio.Event) -> int:
    """Return 0 once every run has ended, or waits for a person or for a run that does."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while loop.time() < until and not stop.is_set():
        if all(is_quiet(run) for run in await service.list(statuses=_UNFINISHED, limit=200)):
            return 0
        await asyncio.sleep(0.03)
    return NOT_QUIET


def is_quiet(run: Run) -> bool:
    """Return whether no worker will do anything about a run: the child that it may wait for is asked as well."""
    return run.is_terminal or (run.status is RunStatus.WAITING and all(w.kind is not WaitKind.TIMER for w in run.waits))
