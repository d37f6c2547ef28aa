"""What counts as evidence: nothing needs a network, and reading proves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from quiesce import Quiesce, Run, agent

_OFFLINE = """
import asyncio, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo") and not isinstance(arguments[-1], (str, bytes)):
        raise SystemExit("a network connection was asked for: " + repr(arguments))

sys.addaudithook(refuse)
from quiesce.cli.main import main
sys.argv = ["quiesce", "start", "--session", sys.argv[1], "--case", "durable-report"]
main()
"""


@agent
async def talks(run: Run) -> str:
    for word in ("one", "two", "three"):
        await run.emit(word)
    return "said"


@pytest.mark.req("QA-02", "RR-42", "RR-43")
def test_a_run_of_a_built_in_case_asks_for_no_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE, str(tmp_path / "session")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "session" / "session.sqlite").is_file()
    assert list((tmp_path / "session" / "artifacts").glob("*/report.md"))


@pytest.mark.req("ST-11", "NO-05")
async def test_that_frames_were_sent_is_written_nowhere_and_changes_nothing(tmp_path: Path) -> None:
    async with Quiesce(f"sqlite:///{tmp_path / 'store.db'}", agents=[talks]) as q:
        handle = await q.start(talks)
        receipt = await handle.receipt()
    async with Quiesce(f"sqlite:///{tmp_path / 'store.db'}", worker=False) as reading:
        before = reading.env.store.counters.commits
        again = await reading.handle(handle.id)
        frames = [frame async for frame in again.stream()]
        assert len(frames) == 5, "where it stands, three events, the end"
        assert reading.env.store.counters.commits == before
        assert await again.receipt() == receipt
