"""What a run costs in commits, counted by the store and asserted exactly. Times are measured in `bench/`, never here."""

import asyncio
from pathlib import Path

import pytest

from quiesce import Quiesce, Run, Settings, agent, tool
from quiesce.stores.notifier import LocalNotifier

QUIET = Settings(poll_ms=60_000, sweep_ms=3_600_000, beat_ms=1_000_000, lease_ms=4_000_000)
"""No beat, sweep or poll falls into a measurement."""


async def _same(value: int) -> int:
    return value


@tool(effect="pure")
async def look(value: int) -> int:
    return value


@agent
async def steps(run: Run, count: int) -> None:
    for i in range(count):
        await run.step(_same, i)


@agent
async def calls(run: Run, count: int) -> None:
    for i in range(count):
        await run.call(look, i)


@agent
async def events(run: Run, count: int) -> None:
    for i in range(count):
        await run.emit(i)


@agent
async def checkpoints(run: Run, count: int) -> None:
    for i in range(count):
        await run.checkpoint(i)


@agent
async def waiting(run: Run) -> None:
    await run.sleep(1_000)


async def until_idle(q: Quiesce) -> None:
    """Wait until the worker holds nothing and only listens: a look for work could share a commit with what is counted."""
    notifier, worker = q.env.store.notifier, q._worker
    assert isinstance(notifier, LocalNotifier)
    assert worker is not None
    async with asyncio.timeout(60):
        listened = 0
        while listened < 10:  # turns of the loop in a row: a ring that is on its way has been heard by then
            await asyncio.sleep(0)
            listened = listened + 1 if not worker._held and notifier.waiting == 2 else 0  # worker and deliverer
            if not listened:
                await asyncio.sleep(0.005)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'session.sqlite'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.mark.parametrize(
    ("subject", "count", "commits"),
    [
        pytest.param(steps, 0, 3, id="an empty run: submitted, claimed, ended"),
        pytest.param(steps, 10, 13, id="a step: its result"),
        pytest.param(calls, 10, 23, id="a call: sealed and dispatched together, then its result"),
        pytest.param(checkpoints, 10, 13, id="a checkpoint"),
        pytest.param(events, 10, 4, id="events share commits"),
    ],
)
async def test_a_run_costs_exactly_these_commits(url: str, subject: object, count: int, commits: int) -> None:
    from quiesce.runtime.registry import Agent

    assert isinstance(subject, Agent)
    async with Quiesce(url, settings=QUIET) as q:
        await (await q.start(subject, 0)).receipt()
        await until_idle(q)
        before = q.env.store.counters.commits
        await (await q.start(subject, count)).receipt()
        await until_idle(q)
        assert q.env.store.counters.commits - before == commits


@pytest.mark.req("TR-18")
async def test_cancelling_a_waiting_run_costs_four_commits_one_for_each_of_c_f_p_and_t(url: str) -> None:
    async with Quiesce(url, settings=QUIET) as q:
        handle = await q.start(waiting)
        parked = q.env.store.notifier.bell(f"run:{handle.id}")
        while await handle.status() != "waiting":
            await parked.wait(1_000)
        await until_idle(q)
        before = q.env.store.counters.commits
        await handle.cancel()
        await until_idle(q)
        assert q.env.store.counters.commits - before == 4
