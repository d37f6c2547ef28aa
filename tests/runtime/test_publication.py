"""Whoever is to be told of an end is told at least once, and whatever becomes of the telling changes nothing of the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quiesce import Quiesce, Run, RunStatus, Settings, agent
from quiesce.domain.publication import Notice
from quiesce.domain.runs import Run as RunRow
from quiesce.runtime.publication import BATCH, Publisher
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import Cluster, Gate, eventually, within

QUICK = Settings(poll_ms=20, sweep_ms=40, defer_ms=1, defer_ms_max=1)


async def _echo(run: Run, text: str) -> str:
    return text


ECHO = declare_agent(_echo, name="echo")


@agent
async def says(run: Run, text: str) -> str:
    return text


async def _ended(cluster: Cluster) -> RunRow:
    await cluster.start(ECHO)
    run_id = await cluster.submit(ECHO, "done")
    await cluster.receipt(run_id)
    return await cluster.run(run_id)


@pytest.mark.req("NO-04", "NO-06", "C33")
async def test_an_end_is_told_once_with_the_receipt_and_its_delivery_is_a_fact_of_its_own(url: str) -> None:
    told: list[Notice] = []

    async def tell(notice: Notice) -> None:
        told.append(notice)

    async with Quiesce(url, settings=QUICK, agents=[says], subscriber=tell) as q:
        handle = await q.start(says, "done")
        receipt = await handle.receipt()

        async def is_told() -> bool:
            return bool(told) and not await q.env.store.read(lambda tx: tx.outbox.pending(limit=9))

        await eventually(is_told)
        assert await handle.status() is RunStatus.COMPLETED
        assert await handle.receipt() == receipt
    (notice,) = told
    assert (notice.id, notice.topic, notice.attempt) == (f"terminal:{handle.id}", "terminal", 1)
    assert notice.body == {"run_id": handle.id, "receipt_id": receipt.id, "status": "completed"}


@pytest.mark.req("NO-06")
async def test_a_subscriber_that_fails_is_told_again_and_changes_nothing_of_the_run(cluster: Cluster) -> None:
    run = await _ended(cluster)
    receipt = await cluster.receipt(run.id)
    attempts: list[int] = []

    def fails(notice: Notice) -> None:
        attempts.append(notice.attempt)
        raise ConnectionError("the password is hunter2")

    publisher = Publisher(cluster.env, fails)
    assert await publisher.pass_once() == 1
    (message,) = await cluster.store.read(lambda tx: tx.outbox.pending(limit=9))
    assert (message.failure, message.attempts) == ("ConnectionError", 1)
    assert await publisher.pass_once() == 0, "it is put off"
    assert await cluster.run(run.id) == run
    assert await cluster.receipt(run.id) == receipt
    assert await cluster.service.result(run.id) == "done"
    assert attempts == [1]


@pytest.mark.req("NO-04")
async def test_two_publishers_tell_each_message_once_and_one_that_hangs_holds_up_no_other(cluster: Cluster) -> None:
    await cluster.start(ECHO)
    runs = [await cluster.submit(ECHO, str(n)) for n in range(BATCH + 8)]
    for run_id in runs:
        await cluster.receipt(run_id)
    gate, told = Gate(), []

    async def hangs(notice: Notice) -> None:
        told.append(notice.run_id)
        await gate.wait()

    async def tells(notice: Notice) -> None:
        told.append(notice.run_id)

    first = asyncio.create_task(Publisher(cluster.env, hangs).pass_once())
    await gate.arrival(BATCH)
    assert await Publisher(cluster.env, tells).pass_once() == 8
    gate.open()
    assert await within(first) == BATCH
    assert sorted(told) == sorted(runs)
    assert await cluster.store.read(lambda tx: tx.outbox.pending(limit=99)) == []


DYING = """
import asyncio, os, signal, sys
from quiesce import Quiesce, Run, Settings, agent

@agent
async def says(run: Run, text: str) -> str:
    return text

async def tell(notice):
    with open(sys.argv[2], "a") as log:
        log.write(notice.id + "\\n")
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    settings = Settings(poll_ms=20, sweep_ms=40, command_lease_ms=1000)
    async with Quiesce(sys.argv[1], settings=settings, agents=[says], subscriber=tell) as q:
        if sys.argv[3] == "dies":
            await q.start(says, "done")
        while sys.argv[3] == "dies" or await q.env.store.read(lambda tx: tx.outbox.pending(limit=9)):
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


@pytest.mark.req("NO-04", "NO-06")
def test_a_publisher_killed_between_telling_and_recording_is_followed_by_another_under_the_same_id(tmp_path: Path) -> None:
    program, log, store = tmp_path / "publish.py", tmp_path / "told", f"sqlite:///{tmp_path / 'store.db'}"
    program.write_text(DYING)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIESCE_")}

    def play(what: str) -> int:
        command = [sys.executable, str(program), store, str(log), what]
        return subprocess.run(command, env=environment, timeout=100, check=False, capture_output=True).returncode

    assert play("dies") == -signal.SIGKILL
    assert play("goes on") == 0
    first, *again = log.read_text().split()
    assert again == [first]
