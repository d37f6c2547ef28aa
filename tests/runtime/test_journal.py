"""The journal over restarts: side by side, nested, retried, parked, and told from other code (C59...C62, C86)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from quiesce.domain.boundary import Reason
from quiesce.domain.errors import ReplayMismatch, StepFailed
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import OperationStatus, RetryPolicy
from quiesce.domain.runs import RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.kit import Cluster, Gate, eventually


@pytest.mark.req("C59", "RR-09", "ST-04")
async def test_of_three_calls_side_by_side_each_is_recovered_by_its_own_position(cluster: Cluster) -> None:
    calls: Counter[str] = Counter()
    gate = Gate()

    async def fetch(what: str) -> str:
        calls[f"fetch {what}"] += 1
        if what == "slow" and calls["fetch slow"] == 1:
            await gate.wait()
        return what.upper()

    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    fetching, paying = declare_tool(fetch, effect="idempotent"), declare_tool(pay)

    async def three(run: Run) -> list[object]:
        return list(await asyncio.gather(run.call(fetching, "quick"), run.call(fetching, "slow"), run.call(paying)))

    agent = declare_agent(three)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await eventually(lambda: _is_stored(cluster, run_id, "1", "3"))
    await first.kill()
    journal = await cluster.journal(run_id)
    assert journal["2"].status is OperationStatus.DISPATCHED
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["QUICK", "SLOW", "paid"]
    assert calls == {"fetch quick": 1, "fetch slow": 2, "pay": 1}


async def _is_stored(cluster: Cluster, run_id: str, *positions: str) -> bool:
    journal = await cluster.journal(RunId(run_id))
    return all(p in journal and journal[p].has_result for p in positions)


@pytest.mark.req("C60")
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_finished_effect_is_not_repeated_at_any_depth(cluster: Cluster, depth: int) -> None:
    effects = 0
    gate = Gate()

    async def act() -> int:
        nonlocal effects
        effects += 1
        return effects

    tool = declare_tool(act)

    async def nested(run: Run) -> object:
        async def inside(level: int) -> object:
            if level:
                return await run.step(inside, level - 1)
            done = await run.call(tool)
            await run.step(gate.wait)
            return done

        return await inside(depth)

    agent = declare_agent(nested)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await first.kill()
    gate.open()
    await cluster.start(agent)
    assert await cluster.result(run_id) == 1
    assert effects == 1
    assert ".".join(["1"] * (depth + 1)) in await cluster.journal(run_id)


@pytest.mark.req("C60", "C59")
async def test_tasks_that_the_agent_starts_itself_keep_their_places(cluster: Cluster) -> None:
    gate = Gate()
    ran: Counter[str] = Counter()

    async def note(name: str) -> str:
        ran[name] += 1
        return name

    async def branches(run: Run) -> list[str]:
        async def branch(name: str) -> str:
            await run.step(note, f"{name} first")
            return await run.step(note, f"{name} second")

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in ("a", "b")]
        await run.step(gate.wait)
        return [task.result() for task in tasks]

    agent = declare_agent(branches)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await first.kill()
    gate.open()
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["a second", "b second"]
    assert set(ran.values()) == {1}
    assert set(await cluster.journal(run_id)) == {"1.1", "1.2", "2.1", "2.2", "3"}


@pytest.mark.req("C86", "RR-20")
@pytest.mark.parametrize("change", ["name", "kind", "arguments"])
async def test_code_that_differs_from_the_journal_fails_the_run_and_names_both(cluster: Cluster, change: str) -> None:
    gate = Gate()
    effects = 0

    async def act(x: int) -> int:
        nonlocal effects
        effects += 1
        return x

    tool = declare_tool(act)
    renamed = declare_tool(act, name="act_v2")
    version = 1

    async def evolving(run: Run) -> str:
        if version == 1:
            await run.call(tool, 1)
        elif change == "name":
            await run.call(renamed, 1)
        elif change == "arguments":
            await run.call(tool, 2)
        else:
            await run.step(act, 1)
        await run.step(gate.wait)
        return "unreached"

    agent = declare_agent(evolving)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await first.kill()
    version = 2
    gate.open()
    await cluster.start(agent)
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, Reason.REPLAY_MISMATCH)
    assert "position 1" in receipt.reason_text
    assert "call 'act'" in receipt.reason_text
    assert {"name": "call 'act_v2'", "kind": "step 'act'", "arguments": "other arguments"}[change] in receipt.reason_text
    inspection = await cluster.service.inspect(run_id)
    assert [o.name for o in inspection.operations] == ["act"]
    assert effects == 1


@pytest.mark.req("C86")
async def test_an_agent_that_catches_a_mismatch_is_told_kind_name_and_digest_of_both(cluster: Cluster) -> None:
    gate = Gate()
    version = 1

    async def ones() -> int:
        return 1

    async def evolving(run: Run) -> object:
        if version == 1:
            await run.step(ones)
            await run.step(gate.wait)
        try:
            await run.step(ones, name="twos")
        except ReplayMismatch as error:
            return {key: error.details[key] for key in ("position", "differs", "journal", "code")}
        return None

    agent = declare_agent(evolving)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await first.kill()
    version = 2
    await cluster.start(agent)
    details = await cluster.result(run_id)
    assert isinstance(details, dict)
    assert (details["position"], details["differs"]) == ("1", "operation")
    journal, code = details["journal"], details["code"]
    assert isinstance(journal, dict)
    assert isinstance(code, dict)
    assert (journal["name"], code["name"]) == ("ones", "twos")
    assert journal["fingerprint"] != code["fingerprint"]


@pytest.mark.req("C86")
async def test_a_change_behind_the_stored_journal_resumes(cluster: Cluster) -> None:
    gate = Gate()
    version = 1

    async def one() -> int:
        return 1

    async def evolving(run: Run) -> str:
        await run.step(one)
        if version == 1:
            await run.step(gate.wait)
            return "old"
        await run.step(one, name="new step")
        return "new"

    agent = declare_agent(evolving)
    first = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await first.kill()
    version = 2
    await cluster.start(agent)
    assert await cluster.result(run_id) == "new"


@pytest.mark.req("C62", "RR-19")
async def test_a_restart_between_two_tries_goes_on_counting_and_keeps_the_due_time(cluster: Cluster) -> None:
    tries = 0

    async def fails_thrice() -> int:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise RuntimeError(f"try {tries}")
        return tries

    async def persists(run: Run) -> int:
        return await run.step(fails_thrice, retry=RetryPolicy(tries=4, first_delay_ms=30, factor=1))

    agent = declare_agent(persists)
    first = await cluster.start(agent, crash_at="retry.after", nth=2)
    run_id = await cluster.submit(agent)
    await first.death()
    stored = (await cluster.journal(run_id))["1"]
    assert (stored.status, len(stored.tries)) == (OperationStatus.SEALED, 2)
    assert stored.due_at is not None
    later = replace(stored, due_at=after_ms(stored.due_at, 150))
    await cluster.store.transact(lambda tx: tx.operations.put_many([later]))
    await cluster.start(agent)
    assert await cluster.result(run_id) == 4
    log = (await cluster.journal(run_id))["1"].tries
    assert [t.number for t in log] == [1, 2, 3, 4]
    assert [t.error for t in log] == ["RuntimeError: try 1", "RuntimeError: try 2", "RuntimeError: try 3", None]
    assert log[1].fence < log[2].fence
    assert later.due_at is not None
    assert log[2].started_at >= after_ms(later.due_at, -20)


@pytest.mark.req("C62")
async def test_tries_that_are_used_up_are_a_stored_result(cluster: Cluster) -> None:
    tries = 0

    async def fails() -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("no")

    async def gives_up(run: Run) -> str:
        try:
            await run.step(fails, retry=RetryPolicy(tries=2, first_delay_ms=1))
        except StepFailed as error:
            return str(error)
        return "unreached"

    agent = declare_agent(gives_up)
    host = await cluster.start(agent, crash_at="step.after")
    run_id = await cluster.submit(agent)
    await host.death()
    await cluster.start(agent)
    assert await cluster.result(run_id) == "fails: RuntimeError: no"
    assert tries == 2
