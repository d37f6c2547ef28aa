"""A process dies around a question, by SIGKILL: it is asked once, answered once, and nothing before it is done again."""

from __future__ import annotations

import asyncio

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.interactions import Interaction
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.ports.store import Transaction
from quiesce.runtime.crashpoints import POINTS
from tests.crash.world import SIGKILLED, World, check_always, check_progress

START = [{"agent": "asking", "key": "one", "args": []}]


def open_questions(world: World) -> list[Interaction]:
    """What the store holds as asked and not answered."""

    def read(tx: Transaction) -> list[Interaction]:
        return tx.interactions.open("local", after=None, limit=100)

    async def work() -> list[Interaction]:
        store = await asyncio.to_thread(open_store, world.url)
        try:
            return await store.read(read)
        finally:
            await store.close()

    return asyncio.run(work())


def ends_well(world: World) -> None:
    """Another process goes on, a person answers, and the run ends with each effect once."""
    world.recover(start=START)
    (question,) = open_questions(world)
    parked = world.facts()
    (run,) = parked.of("asking")
    assert [(wait.kind, wait.subject) for wait in run.run.waits] == [(WaitKind.ANSWER, question.id)]
    assert [line["tool"] for line in parked.effects] == ["order"], "the effect before the question, once"
    assert world.process("answer", question=question.id, value=True).wait() == 0, world.logs()
    world.recover()
    after = world.facts()
    check_always(after)
    check_progress(parked, after)
    (run,) = after.of("asking")
    assert run.run.status is RunStatus.COMPLETED, after.about
    assert len(after.effects) == 2
    assert open_questions(world) == []


@pytest.mark.req("C80", "C83", "NO-10", "RR-11")
@pytest.mark.parametrize("point", ["ask.before", "ask.after", "park.before", "park.after"])
def test_a_death_around_the_question_leaves_one_question(world: World, point: str) -> None:
    assert world.work(crash_at=point, start=START) == SIGKILLED, world.logs()
    assert len(open_questions(world)) == int(point != "ask.before")
    ends_well(world)


@pytest.mark.req("C76", "C80", "NO-11")
def test_a_death_behind_the_answer_keeps_it(world: World) -> None:
    world.recover(start=START)
    (question,) = open_questions(world)
    assert world.process("answer", question=question.id, value=True, crash_at="answer.after").wait() == SIGKILLED
    assert open_questions(world) == []
    again = world.process("answer", question=question.id, value=False)
    assert again.wait() == 0, world.logs()
    assert world.lines("refused.jsonl")[-1]["code"] == "ALREADY_ANSWERED", "the first answer counts, whoever heard of it"
    world.recover()
    facts = world.facts()
    (run,) = facts.of("asking")
    assert run.run.status is RunStatus.COMPLETED
    assert len(facts.effects) == 2


def test_each_point_of_a_question_kills_somebody_here() -> None:
    assert {point for point in POINTS if point.startswith(("ask.", "answer."))} == {"ask.before", "ask.after", "answer.after"}
