"""The trace says what was captured, what is missing and what is unknown, and nothing rests on it (NO-07)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from quiesce.domain.errors import NotFound
from quiesce.domain.ids import RunId
from quiesce.domain.streams import Visibility
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.trace import Capture
from tests.runtime.kit import Cluster, Gate

SOURCE = Path(__file__).resolve().parents[2] / "src" / "quiesce"


@pytest.mark.req("NO-07")
async def test_a_run_that_went_its_way_is_told_in_the_order_of_time_with_nothing_missing(cluster: Cluster) -> None:
    async def work(x: str) -> str:
        return "private"

    tool = declare_tool(work, effect="pure")

    async def worker(run: Run, text: str) -> str:
        await run.emit("private words")
        await run.checkpoint({"state": "private"})
        return str(await run.call(tool, text))

    agent = declare_agent(worker)
    await cluster.start(agent)
    run_id = await cluster.submit(agent, "private input")
    await cluster.receipt(run_id)
    before = await cluster.service.inspect(run_id)
    lines = await cluster.service.trace(run_id)
    assert {line.capture for line in lines} == {Capture.CAPTURED}
    times = [line.at for line in lines if line.at is not None]
    assert times == sorted(times)
    assert len(times) == len(lines)
    whats = [line.what for line in lines]
    assert (whats[0], whats[1]) == ("submitted", "claimed")
    assert {"checkpoint", "call sealed", "call committed: ok", "end accepted (C)", "receipt published (T)"} <= set(whats)
    assert "private" not in str([line.to_json() for line in lines])
    assert (await cluster.service.inspect(run_id)).to_json() == before.to_json()


@pytest.mark.req("NO-07")
async def test_what_a_dead_worker_leaves_is_missing_or_unknown_and_never_shown_as_complete(cluster: Cluster) -> None:
    gate = Gate()

    async def pay(x: str) -> str:
        await gate.wait()
        return "paid"

    tool = declare_tool(pay, effect="once")

    async def payer(run: Run, text: str) -> str:
        for _ in range(3):
            await run.emit("shown")
        return str(await run.call(tool, text))

    agent = declare_agent(payer)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent, "x", visibility=Visibility.SHOW_FIRST)
    await gate.arrival()
    await host.kill()
    doubtful = [line for line in await cluster.service.trace(run_id) if line.capture is not Capture.CAPTURED]
    assert {(line.capture, line.what) for line in doubtful} == {
        (Capture.MISSING, "no record of how it ended"),
        (Capture.UNKNOWN, "whether it took place"),
    }
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    lines = await cluster.service.trace(run_id)
    doubtful = [line for line in lines if line.capture is not Capture.CAPTURED]
    assert (Capture.UNKNOWN, "whether it took place") in {(line.capture, line.what) for line in doubtful}
    if not receipt.frontier.emitted_exact:
        assert "whether they were shown" in {line.what for line in doubtful}
    assert lines[-1].at is None, "what has no instant comes last"


@pytest.mark.req("NO-07")
async def test_another_tenants_run_has_no_trace(cluster: Cluster) -> None:
    with pytest.raises(NotFound):
        await cluster.service.trace(RunId("0193f2c4-7d10-7b02-8000-5a3c1e9f0d11"))

    async def echo(run: Run) -> None: ...

    agent = declare_agent(echo)
    run_id = await cluster.submit(agent)
    with pytest.raises(NotFound):
        await ControlService(cluster.env, Caller(tenant="other")).trace(run_id)


@pytest.mark.req("NO-07", "QA-10")
def test_nobody_who_decides_anything_reads_a_trace_and_it_is_stored_nowhere() -> None:
    readers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "quiesce.runtime.trace":
                readers.add(str(path.relative_to(SOURCE)))
    assert readers == {"runtime/service.py", "cli/reading.py"}
    tables = "".join(path.read_text() for path in (SOURCE / "stores").rglob("migrations/*.sql"))
    assert "trace" not in tables
