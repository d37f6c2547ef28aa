"""A scheduler is killed where a timer has fired and nothing says so yet: five times at one place, and once at each other.

Real processes, real SIGKILL. Whatever dies, each planned time is decided once, and one timer waits for the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.runs import Run
from quiesce.domain.schedules import Fire, FireStatus, Missed, Schedule, ScheduleId
from quiesce.ports.store import Transaction
from quiesce.runtime.schedules import SCOPE, run_key
from tests.crash.conftest import STORES, NewWorld, Player
from tests.crash.schedules import TIMING
from tests.crash.world import SIGKILLED, World

RESTARTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that is stored of the schedule."""

    schedule: Schedule
    fires: list[Fire]
    runs: list[Run]
    waiting: int
    """Places that its timers hold."""


def look(world: World) -> Found:
    """Read it, while no process runs."""
    return asyncio.run(_look(world))


async def _look(world: World) -> Found:
    store = await asyncio.to_thread(open_store, world.url)
    try:
        return await store.read(_read)
    finally:
        await store.close()


def _read(tx: Transaction) -> Found:
    schedule, room = tx.schedules.get(ScheduleId("planted")), tx.intents.capacity("local", SCOPE)
    assert schedule is not None
    return Found(
        schedule=schedule,
        fires=tx.schedules.fires(schedule.id, before=None, limit=100)[::-1],
        runs=tx.runs.page(tenant="local", statuses=(), before=None, limit=100)[::-1],
        waiting=0 if room is None else room.used,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One policy, and the places where scheduler after scheduler dies, over one store."""

    missed: Missed
    points: tuple[str, ...]
    store: str

    def __str__(self) -> str:
        return f"{self.store}-{self.missed}-{self.points[0]}-{len(self.points)}"

    def play(self, new_world: NewWorld) -> None:
        world = new_world(self.store, str(self))
        assert world.process("plant", missed=str(self.missed)).wait() == 0, world.logs()
        first = look(world).schedule.next_at
        for point in self.points:
            assert world.process("attend", crash_at=point).wait() == SIGKILLED, world.logs()
        assert world.process("attend").wait() == 0, world.logs()
        found = look(world)
        assert world.process("attend").wait() == 0, world.logs()
        check(found, first, self.missed)
        check(look(world), first, self.missed)


def check(found: Found, first: int | None, missed: Missed) -> None:
    """Each planned time from the first on is decided once, each run is an occurrence's, and one timer waits."""
    decided = [instant for fire in found.fires for instant in fire.stands_for]
    assert decided[0] == first
    assert all(TIMING.next_after(earlier) == later for earlier, later in pairwise(decided))
    assert found.schedule.next_at == TIMING.next_after(decided[-1])
    fired = [fire for fire in found.fires if fire.status is FireStatus.FIRED]
    assert sorted(str(fire.run_id) for fire in fired) == sorted(run.id for run in found.runs)
    assert {run.key for run in found.runs} == {run_key(fire.schedule_id, fire.planned) for fire in fired}
    assert found.waiting == 1, "the next timer, and no other"
    if missed is Missed.ALL:
        assert len(fired) == len(decided) >= 3
    if missed is Missed.ONE:
        assert len(fired) == len(found.fires)
        assert len(found.fires[0].stands_for) >= 3


ONCE: Final = ("relay.inside", "relay.after", "delivery.claiming", "delivery.claimed", "delivery.read", "delivery.started")
SEQUENCES: Final[tuple[tuple[str, ...], ...]] = (
    *((point,) for point in ONCE),
    ("delivery.settled",),
    ("admission.inside",) * RESTARTS,
    ("delivery.admitted", *("delivery.acting",) * RESTARTS),
)
CASES: Final = [
    *(Case(missed=Missed.ALL, points=points, store=store) for store in STORES for points in SEQUENCES),
    *(Case(missed=policy, points=SEQUENCES[-1], store=store) for store in STORES for policy in (Missed.ONE, Missed.SKIP)),
]


@pytest.mark.req("C71", "C74", "NO-13")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_dies_each_planned_time_is_decided_once_and_one_timer_waits(player: Player, case: Case) -> None:
    player(case).result()
