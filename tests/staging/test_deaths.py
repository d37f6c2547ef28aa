"""Real processes that are killed: before the producer's commit nothing has happened, behind it everything has (K0-K2)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.staging.kit import World, producing, request

ROOT = Path(__file__).resolve().parents[2]


def die(kind: str, url: str, key: str, where: str) -> None:
    """Let a producer die there."""
    command = [sys.executable, "-m", "tests.staging.dying", kind, url, key, where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.req("CC-20", "CC-12", "CC-27")
async def test_a_producer_that_is_killed_leaves_both_or_neither(kind: str, url: str, world: World) -> None:
    die(kind, url, "order 1", "staged")
    async with producing(kind, url) as producer:
        assert await producer.numbers() == []
    assert await world.intent() is None
    assert await world.delivered() == []
    die(kind, url, "order 1", "committed")
    async with producing(kind, url) as producer:
        assert await producer.numbers() == [1]
        await producer.rollback()
        intent = await world.intent()
        assert await world.used() == 1
        assert await world.delivered() == ["order 1"]
        (again,) = await producer.stage(request("order 1"))
        await producer.commit()
    assert intent is not None
    assert again.intent.id == intent.id, "who repeats it gets the first one back"
