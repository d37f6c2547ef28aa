"""Two processes on one SQLite file: waits are bounded, nothing is lost, commits are noticed (C87)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from quiesce.domain.errors import StoreBusy
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.notifier import WORK
from quiesce.ports.store import Store, Transaction
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]

_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("released", flush=True)
"""
_COUNT = """
import asyncio, sys
from quiesce.bootstrap import open_store
from quiesce.domain.ids import RunId
from quiesce.domain.limits import DEFAULT_LIMITS
from dataclasses import replace

def add_one(tx):
    run = tx.runs.lock(RunId(sys.argv[2]))
    tx.runs.save(replace(run, budget=run.budget.moved(used={"calls": 1}, reserved={})))

async def main():
    store = open_store(sys.argv[1])
    for _ in range(int(sys.argv[3])):
        await store.transact(add_one)
    await store.close()

asyncio.run(main())
"""
_RING = """
import asyncio, sys
from quiesce.bootstrap import open_store
from quiesce.testing.samples import Samples

async def main():
    store = open_store(sys.argv[1])
    sys.stdin.readline()
    await store.transact(lambda tx: tx.workers.insert(Samples().worker()))
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def held(sqlite_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a process that holds the write lock until it reads a line."""
    started: list[subprocess.Popen[str]] = []

    def hold() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(sqlite_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.communicate(timeout=30)


def _release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "released\n"


def _insert(run: Run) -> Callable[[Transaction], None]:
    def fn(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.streams.open(run.id)

    return fn


@pytest.mark.req("C87")
async def test_a_lock_held_for_too_long_is_reported_as_not_accepted(
    sqlite_url: str, opened: Open, make: Samples, held: Callable[[], subprocess.Popen[str]]
) -> None:
    store = await opened(f"{sqlite_url}?busy_timeout_ms=50")
    run, worker = make.running(), make.worker()
    await store.transact(_insert(run))
    holder = held()
    write = RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))
    with pytest.raises(StoreBusy, match="not accepted"):
        await store.write(write)
    with pytest.raises(StoreBusy):
        await store.transact(lambda tx: tx.workers.insert(worker))
    with pytest.raises(StoreBusy):
        await asyncio.to_thread(store.transact_blocking, lambda tx: tx.workers.insert(worker))
    assert await store.read(lambda tx: (tx.workers.get(worker.id), tx.streams.read(run.id, after=0, limit=9))) == (None, [])
    _release(holder)
    assert await store.write(write) is WriteOutcome.APPLIED
    assert len(await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9))) == 1


@pytest.mark.req("C87")
async def test_a_lock_held_for_less_than_the_timeout_is_waited_for(
    sqlite_url: str, opened: Open, make: Samples, held: Callable[[], subprocess.Popen[str]]
) -> None:
    store = await opened(f"{sqlite_url}?busy_timeout_ms=30000")
    run = make.running()
    await store.transact(_insert(run))
    holder = held()
    writing = asyncio.ensure_future(store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))))
    await store.read(lambda tx: tx.runs.get(run.id))
    assert not writing.done()
    await asyncio.to_thread(_release, holder)
    assert await writing is WriteOutcome.APPLIED


@pytest.mark.req("C87")
async def test_three_processes_that_write_at_once_lose_nothing(sqlite_url: str, opened: Open, make: Samples) -> None:
    store = await opened(sqlite_url)
    run = make.running()
    await store.transact(_insert(run))
    others = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _COUNT, f"{sqlite_url}?busy_timeout_ms=30000", run.id, "50")
        for _ in range(3)
    ]
    assert [await other.wait() for other in others] == [0, 0, 0]
    counted = await store.read(lambda tx: tx.runs.get(run.id))
    assert counted is not None
    assert counted.budget.of("calls").used == 150


async def test_a_commit_of_another_process_rings_who_waits(sqlite_url: str, opened: Open) -> None:
    store = await opened(sqlite_url)
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", _RING, sqlite_url, stdin=asyncio.subprocess.PIPE)
    bell = store.notifier.bell(WORK)
    waiting = asyncio.ensure_future(bell.wait(60_000))
    await other.communicate(b"\n")
    assert await waiting
    bell.close()


async def test_commits_of_this_process_ring_only_what_they_mean_to(sqlite_url: str, opened: Open, make: Samples) -> None:
    store = await opened(sqlite_url)
    bell = store.notifier.bell("another topic")
    waiting = asyncio.ensure_future(bell.wait(100))
    for _ in range(5):
        worker = make.worker()
        await store.transact(lambda tx, worker=worker: tx.workers.insert(worker))  # type: ignore[misc]
    assert not await waiting
    bell.close()


def test_the_file_is_whole_after_its_writer_was_killed(sqlite_path: Path, sqlite_url: str) -> None:
    script = _COUNT.replace("sys.argv[2]", '"none"').replace(
        "await store.transact(add_one)", "await store.transact(lambda tx: tx.threads.insert(thread()))"
    )
    script = (
        "from quiesce.testing.samples import Samples\nmake = Samples()\n"
        "def thread():\n    print('.', flush=True)\n    return make.thread()\n" + script
    )
    process = subprocess.Popen([sys.executable, "-c", script, sqlite_url, "none", "100000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline() == ".\n"
    process.kill()
    process.communicate(timeout=30)
    with sqlite3.connect(sqlite_path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM thread").fetchone()[0] >= 19
    connection.close()
