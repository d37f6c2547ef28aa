"""How a run comes to its question and away from it: once, in order, within bounds, and never behind a stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace

import pytest

from quiesce.domain.errors import FenceLost, InvalidInput, Stopped
from quiesce.domain.ids import RunId
from quiesce.domain.interactions import Interaction
from quiesce.domain.operations import OperationKind, OperationStatus
from quiesce.domain.runs import Durability, RunStatus
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.registry import declare_agent, declare_tool
from tests.runtime.cancel_kit import Pause, cancelled
from tests.runtime.kit import FAST, Cluster, Gate, eventually

AT_ONCE = replace(FAST, linger_ms=0)


async def questions(cluster: Cluster, run_id: RunId) -> list[Interaction]:
    """All questions of a run, by position."""
    found = await cluster.store.read(lambda tx: tx.interactions.of_run(run_id))
    return sorted(found, key=lambda question: question.position)


async def is_asked(cluster: Cluster, run_id: RunId, count: int = 1) -> list[Interaction]:
    """Wait until a run has asked so often, and return what it asked."""

    async def has_asked() -> bool:
        return len(await questions(cluster, run_id)) >= count

    await eventually(has_asked)
    return await questions(cluster, run_id)


async def one(run: Run) -> bool:
    return await run.ask("May I?", expires_in=3600)


ONE = declare_agent(one)


@pytest.mark.req("C78")
async def test_an_answer_to_one_branch_does_nothing_again_in_another_and_leaves_it_where_it_is(cluster: Cluster) -> None:
    """Each branch acts, steps, and asks; one is answered, by another process than it was asked in."""
    done: Counter[str] = Counter()

    async def act(what: str, *, call: Call) -> str:
        done[f"effect {what}"] += 1
        return what

    async def step(what: str) -> str:
        done[f"step {what}"] += 1
        return what

    tool = declare_tool(act)

    async def branch(run: Run, what: str) -> str:
        await run.call(tool, what)
        await run.step(step, what)
        answer = await run.ask(f"{what}?", answer=str)
        await run.call(tool, f"{what} afterwards")
        return answer

    async def both(run: Run) -> list[str]:
        return list(await asyncio.gather(branch(run, "left"), branch(run, "right")))

    agent = declare_agent(both)
    before = {f"{kind} {what}": 1 for kind in ("effect", "step") for what in ("left", "right")}
    first = await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    left, right = await is_asked(cluster, run_id, 2)
    await cluster.reaches(run_id, RunStatus.WAITING)
    await first.kill()
    assert done == before
    second = await cluster.start(agent, settings=AT_ONCE)
    await cluster.service.answer(left.id, "L")

    async def waits_for_the_other() -> bool:
        run = await cluster.run(run_id)
        return run.status is RunStatus.WAITING and [w.subject for w in run.waits] == [right.id]

    await eventually(waits_for_the_other)
    await second.kill()
    assert done == before | {"effect left afterwards": 1}
    assert [q.id for q in await cluster.service.questions()] == [right.id]
    await cluster.start(agent)
    await cluster.service.answer(right.id, "R")
    assert await cluster.result(run_id) == ["L", "R"]
    assert done == before | {"effect left afterwards": 1, "effect right afterwards": 1}


@pytest.mark.req("C77")
async def test_two_questions_one_after_the_other_in_each_of_three_branches_take_no_value_twice(cluster: Cluster) -> None:
    async def branch(run: Run, number: int) -> list[str]:
        return [await run.ask(f"{number}, {word}?", answer=str) for word in ("first", "second")]

    async def three(run: Run) -> list[list[str]]:
        return list(await asyncio.gather(*(branch(run, number) for number in range(3))))

    agent = declare_agent(three)
    run_id = await cluster.submit(agent)
    seen: set[str] = set()
    for word in ("first", "second"):
        host = await cluster.start(agent, settings=AT_ONCE)
        found = [q for q in await is_asked(cluster, run_id, 3 + len(seen)) if q.id not in seen]
        await host.kill()
        seen |= {q.id for q in found}
        for number in (2, 0, 1):
            await cluster.service.answer(found[number].id, f"{number} {word}")
    assert len(seen) == 6
    await cluster.start(agent)
    assert await cluster.result(run_id) == [[f"{number} first", f"{number} second"] for number in range(3)]


@pytest.mark.req("C82")
async def test_branches_that_are_answered_while_others_run_each_end_once_and_join_once(cluster: Cluster) -> None:
    """A asks at once, B behind a step, C behind two; each is answered as soon as it has asked."""
    ended: Counter[str] = Counter()

    async def pace() -> None:
        ended["step"] += 1

    async def end(what: str) -> str:
        ended[what] += 1
        return what

    async def branch(run: Run, what: str, steps: int) -> str:
        for _ in range(steps):
            await run.step(pace)
        word = await run.ask(what, answer=str)
        return await run.step(end, f"{what} {word}")

    async def joins(run: Run) -> str:
        found = await asyncio.gather(*(branch(run, what, number) for number, what in enumerate("ABC")))
        return await run.step(end, " ".join(found))

    agent = declare_agent(joins)
    await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    answered: set[str] = set()
    while len(answered) < 3:
        for question in await is_asked(cluster, run_id, len(answered) + 1):
            if question.id not in answered:
                await cluster.service.answer(question.id, "yes")
                answered.add(question.id)
    assert await cluster.result(run_id) == "A yes B yes C yes"
    assert ended == {"step": 3, "A yes": 1, "B yes": 1, "C yes": 1, "A yes B yes C yes": 1}


@pytest.mark.req("C80", "C83")
async def test_a_question_that_is_known_is_not_asked_again_and_its_place_is_used_up_when_it_is_answered(
    cluster: Cluster,
) -> None:
    first = await cluster.start(ONE, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(ONE)
    await first.death()
    (question,) = await questions(cluster, run_id)
    assert [w.due_at for w in (await cluster.run(run_id)).waits] == [question.expires_at], "it wakes by itself in its hour"
    second = await cluster.start(ONE, crash_at="ask.before")
    await cluster.service.answer(question.id, True)
    assert await cluster.result(run_id) is True
    assert not second.died.is_set()
    (operation,) = (await cluster.journal(run_id)).values()
    assert (operation.kind, operation.status) == (OperationKind.QUESTION, OperationStatus.CONSUMED)


@pytest.mark.req("RR-09", "RR-11")
async def test_what_a_question_rests_on_is_stored_before_it_is_asked(cluster: Cluster) -> None:
    ran: list[str] = []

    async def think() -> str:
        ran.append("think")
        return "tea"

    async def thinks_first(run: Run) -> bool:
        return await run.ask(await run.step(think))

    agent = declare_agent(thinks_first)
    first = await cluster.start(agent, crash_at="ask.before")
    run_id = await cluster.submit(agent, durability=Durability.EXIT)
    await first.death()
    assert (await cluster.journal(run_id))["1"].has_result
    await cluster.start(agent)
    (question,) = await is_asked(cluster, run_id)
    await cluster.service.answer(question.id, True)
    assert await cluster.result(run_id) is True
    assert ran == ["think"]


@pytest.mark.req("C86", "RR-09")
@pytest.mark.parametrize("change", ["prompt", "answer", "about", "expires_in"])
async def test_a_question_that_differs_in_anything_is_not_the_one_that_was_asked(cluster: Cluster, change: str) -> None:
    version = 1

    async def changes(run: Run) -> object:
        if version == 1:
            return await run.ask("a", about="b", expires_in=600)
        match change:
            case "prompt":
                return await run.ask("c", about="b", expires_in=600)
            case "answer":
                return await run.ask("a", answer=str, about="b", expires_in=600)
            case "about":
                return await run.ask("a", about="c", expires_in=600)
            case _:
                return await run.ask("a", about="b", expires_in=601)

    agent = declare_agent(changes)
    first = await cluster.start(agent, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    await first.death()
    version = 2
    (question,) = await questions(cluster, run_id)
    await cluster.service.answer(question.id, True)
    await cluster.start(agent)
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, "replay_mismatch")


@pytest.mark.parametrize("seconds", [0, -1, 400 * 86_400])
async def test_a_question_is_open_for_a_time_that_makes_sense(cluster: Cluster, seconds: float) -> None:
    async def wrong(run: Run) -> str:
        try:
            await run.ask("May I?", expires_in=seconds)
        except InvalidInput as error:
            return str(error.details["field"])
        return ""

    agent = declare_agent(wrong)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "expires_in"
    assert await questions(cluster, run_id) == []


# -- behind a stop ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("C09", "C81", "NO-10")
async def test_a_question_that_meets_the_cancel_on_its_way_is_never_stored(cluster: Cluster) -> None:
    host = await cluster.start(ONE, crash_at="ask.before")
    pause = Pause(host)
    run_id = await cluster.submit(ONE)
    await pause.arrival()
    await cluster.service.cancel(run_id)
    pause.resume()
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.cleanup_completed) == (RunStatus.CANCELLED, True)
    assert await questions(cluster, run_id) == []
    assert await cluster.journal(run_id) == {}


@pytest.mark.req("C09", "TR-10")
async def test_code_that_goes_on_behind_a_stop_is_told_so_before_it_asks_waits_or_listens(cluster: Cluster) -> None:
    gate = Gate()
    refused: list[type[BaseException]] = []

    async def works(run: Run) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await gate.wait()
        for act in (run.ask("late?"), run.wait_for("late"), run.corrections()):
            try:
                await act
            except (Stopped, FenceLost) as error:
                refused.append(type(error))

    agent = declare_agent(works)
    host = await cluster.start(agent, crash_at="ask.before")
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cancelled(cluster, run_id)
    assert refused == [Stopped] * 3
    assert not host.died.is_set(), "not even an attempt to ask"
    assert await cluster.journal(run_id) == {}
