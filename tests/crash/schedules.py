"""What the processes of the schedules' crash tests do: plant a schedule that nobody has attended to, and attend to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.schedules import Definition, Missed, Timing
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment
from quiesce.runtime.schedules import ScheduleOwner
from quiesce.runtime.service import ControlService
from tests.planting import plant_tx

Job = Mapping[str, Any]
TIMING: Final = Timing(cron="*/10 * * * *")


async def plant(env: Environment, _: ControlService, job: Job) -> int:
    """Store a schedule whose timer has been due for 35 minutes, as if no process had run since."""
    definition = Definition(agent="nobody", input=b"{}", timing=TIMING, missed=Missed(job["missed"]))
    await env.store.transact(lambda tx: plant_tx(tx, env, definition, TIMING.next_after(after_ms(tx.now, -35 * 60_000))))
    return 0


async def attend(env: Environment, _: ControlService, __: Job) -> int:
    """Deliver timers until none is due and none is under way, whoever has left it."""
    deliverer = Deliverer(env, [ScheduleOwner(env)])
    async with asyncio.timeout(60):
        while True:
            dealt = await deliverer.pass_once()
            next_due, now, counts = await env.store.read(
                lambda tx: (tx.commands.next_due(now=Instant(0)), tx.now, tx.commands.counts("local"))
            )
            if not dealt and set(counts) <= {"staged"} and (next_due is None or next_due > now):
                return 0
            await asyncio.sleep(0.02)


COMMANDS: Final = {"plant": plant, "attend": attend}
