"""`run.ask`: a question has one identity and one end, costs no process, and each branch is given its own answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.errors import AlreadyAnswered, InvalidInput, NotFound, QuestionExpired, QuestionRevoked, QuiesceError
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.interactions import CLOCK, Interaction, InteractionId, InteractionStatus
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.ports.store import Store
from quiesce.runtime.context import Run
from quiesce.runtime.interactions import Answer, answer_tx, expire_tx
from quiesce.runtime.isolated import Call
from quiesce.runtime.registry import declare_agent, declare_tool
from quiesce.runtime.service import Caller, ControlService
from quiesce.testing.clock import ManualClock
from quiesce.testing.conformance import StoreUnderTest
from quiesce.testing.samples import TENANT, USER, Samples
from tests.runtime.kit import FAST, Cluster, eventually, within

AT_ONCE = replace(FAST, linger_ms=0)
NEVER_SWEEPS = replace(FAST, sweep_ms=600_000)


@dataclass
class Choice:
    color: Literal["red", "blue"]
    count: int = 1


async def one(run: Run) -> bool:
    return await run.ask("May I?", about={"tool": "order", "what": "tea"})


async def three(run: Run) -> list[str]:
    return list(await asyncio.gather(*(run.ask(f"word {n}?", answer=str) for n in range(3))))


async def chooses(run: Run) -> list[object]:
    choice = await run.ask("Which?", answer=Choice)
    return [type(choice).__name__, choice.color, choice.count]


ONE, THREE, CHOOSES = (declare_agent(fn) for fn in (one, three, chooses))


async def asked(cluster: Cluster, run_id: RunId, count: int = 1) -> list[Interaction]:
    """Wait until a run has so many open questions, and return them by position."""

    async def has_them() -> bool:
        return len(await found()) >= count

    async def found() -> list[Interaction]:
        return [q for q in await cluster.service.questions() if q.run_id == run_id]

    await eventually(has_them)
    return sorted(await found(), key=lambda q: q.position)


async def stored(cluster: Cluster, question: Interaction) -> Interaction:
    row = await cluster.store.read(lambda tx: tx.interactions.get(question.id))
    assert row is not None
    return row


@pytest.fixture
async def elsewhere(cluster: Cluster, url: str) -> AsyncIterator[ControlService]:
    """The control service of another process over the same store; one in memory has no other processes."""
    if url.startswith("memory"):
        yield ControlService(replace(cluster.env))
        return
    store = await asyncio.to_thread(open_store, url)
    yield ControlService(replace(cluster.env, store=store))
    await store.close()


# -- asking and waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-10", "NO-11", "NO-12", "C80")
async def test_a_run_that_asks_holds_no_process_and_another_worker_goes_on_with_the_answer(cluster: Cluster) -> None:
    first = await cluster.start(ONE, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(ONE)
    await first.death()
    parked = await cluster.run(run_id)
    (question,) = await asked(cluster, run_id)
    assert (parked.status, parked.worker_id) == (RunStatus.WAITING, None)
    assert [(w.kind, w.subject) for w in parked.waits] == [(WaitKind.ANSWER, question.id)]
    assert f"quiesce answer {question.id}" in (await cluster.service.inspect(run_id)).explain()
    answered = await cluster.service.answer(question.id, True, actor="ada")
    assert (await cluster.run(run_id)).status is RunStatus.PENDING, "its owner has woken it in the same transaction"
    assert answered.ended_by == Actor(kind=ActorKind.USER, name="ada")
    await cluster.start(ONE)
    assert await cluster.result(run_id) is True
    assert await cluster.store.read(lambda tx: tx.interactions.of_run(run_id)) == [answered]


@pytest.mark.req("C80", "C83")
@pytest.mark.parametrize("point", ["ask.before", "ask.after", "park.before", "park.after"])
async def test_a_question_is_asked_once_wherever_its_holder_dies(cluster: Cluster, point: str) -> None:
    effects: list[str] = []

    async def order(what: str, *, call: Call) -> str:
        effects.append(what)
        return "ordered"

    tool = declare_tool(order)

    async def gated(run: Run) -> str:
        return str(await run.call(tool, "tea")) if await run.ask("Order tea?") else "refused"

    agent = declare_agent(gated)
    first = await cluster.start(agent, crash_at=point, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    await first.death()
    await cluster.start(agent)
    (question,) = await asked(cluster, run_id)
    assert effects == []
    await cluster.service.answer(question.id, True)
    assert await cluster.result(run_id) == "ordered"
    assert effects == ["tea"]
    assert len(await cluster.store.read(lambda tx: tx.interactions.of_run(run_id))) == 1


@pytest.mark.req("C13", "C80")
async def test_an_answer_between_the_last_look_and_the_parking_is_not_lost(cluster: Cluster) -> None:
    first = await cluster.start(ONE, crash_at="ask.after")
    run_id = await cluster.submit(ONE)
    await first.death()
    (question,) = await asked(cluster, run_id)
    await cluster.service.answer(question.id, False)
    await cluster.start(ONE, settings=AT_ONCE)
    assert await cluster.result(run_id) is False


@pytest.mark.req("C77", "C82")
async def test_parallel_questions_have_ids_of_their_own_and_each_branch_gets_its_own_answer(cluster: Cluster) -> None:
    host = await cluster.start(THREE, settings=AT_ONCE)
    run_id = await cluster.submit(THREE)
    questions = await asked(cluster, run_id, 3)
    assert len({q.id for q in questions}) == 3
    assert [q.position for q in questions] == ["1", "2", "3"]
    await cluster.reaches(run_id, RunStatus.WAITING)
    await host.kill()
    await cluster.start(THREE, settings=AT_ONCE)
    assert await asked(cluster, run_id, 3) == questions, "the same over a restart"
    for number in (2, 0, 1):
        await cluster.service.answer(questions[number].id, f"answer {number}")
    assert await cluster.result(run_id) == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.req("C78")
async def test_one_answer_repeats_no_effect_of_another_branch_and_leaves_its_question_open(cluster: Cluster) -> None:
    effects: list[str] = []

    async def act(what: str, *, call: Call) -> None:
        effects.append(what)

    tool = declare_tool(act)

    async def both(run: Run) -> list[str]:
        await run.call(tool, "left")
        await run.call(tool, "right")
        return list(await asyncio.gather(run.ask("left?", answer=str), run.ask("right?", answer=str)))

    agent = declare_agent(both)
    await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    left, right = await asked(cluster, run_id, 2)
    await cluster.reaches(run_id, RunStatus.WAITING)
    await cluster.service.answer(left.id, "L")

    async def waits_again() -> bool:
        run = await cluster.run(run_id)
        return run.status is RunStatus.WAITING and [w.subject for w in run.waits] == [right.id]

    await eventually(waits_again)
    assert await asked(cluster, run_id) == [right]
    await cluster.service.answer(right.id, "R")
    assert await cluster.result(run_id) == ["L", "R"]
    assert effects == ["left", "right"]


@pytest.mark.req("C79")
async def test_questions_one_after_the_other_in_a_child_are_each_answered_after_a_change_of_worker(cluster: Cluster) -> None:
    async def child(run: Run) -> list[str]:
        return [await run.ask(f"question {n}?", answer=str) for n in range(3)]

    child_agent = declare_agent(child)

    async def parent(run: Run) -> object:
        return (await (await run.spawn(child_agent)).outcome()).result

    agent = declare_agent(parent)
    run_id = await cluster.submit(agent)
    seen: set[str] = set()
    for number in range(3):
        host = await cluster.start(agent, child_agent, settings=AT_ONCE)

        async def is_asked() -> bool:
            return any(q.id not in seen for q in await cluster.service.questions())

        await eventually(is_asked)
        (question,) = await cluster.service.questions()
        seen.add(question.id)
        await host.kill()
        await cluster.service.answer(question.id, f"answer {number}")
    await cluster.start(agent, child_agent)
    assert await cluster.result(run_id) == ["answer 0", "answer 1", "answer 2"]


# -- answers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-10")
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(cluster: Cluster) -> None:
    await cluster.start(CHOOSES)
    run_id = await cluster.submit(CHOOSES)
    (question,) = await asked(cluster, run_id)
    for wrong in (True, {"color": "green"}, {"count": 2}, {"color": "red", "count": "2"}):
        with pytest.raises(InvalidInput):
            await cluster.service.answer(question.id, wrong)
    assert await asked(cluster, run_id) == [question]
    await cluster.service.answer(question.id, Choice("blue", 2))
    assert await cluster.result(run_id) == ["Choice", "blue", 2]


@pytest.mark.req("NO-10")
async def test_an_answer_to_another_digest_is_refused_and_the_digest_covers_what_it_is_about(cluster: Cluster) -> None:
    await cluster.start(ONE)
    (question,) = await asked(cluster, await cluster.submit(ONE))
    other = replace(question, about=b'{"tool":"order","what":"coffee"}')
    with pytest.raises(InvalidInput, match="digest"):
        await cluster.service.answer(question.id, True, digest=other.digest)
    assert (await cluster.service.answer(question.id, True, digest=question.digest)).answer == b"true"


@pytest.mark.req("C76", "NO-10")
async def test_of_two_answers_at_once_one_wins_and_the_other_is_told_by_whom_and_what(
    cluster: Cluster, elsewhere: ControlService
) -> None:
    """Two hundred times, from two processes: each has the store open for itself."""

    async def many(run: Run) -> list[str]:
        return list(await asyncio.gather(*(run.ask(n, answer=str) for n in range(200))))

    agent = declare_agent(many)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    questions = await asked(cluster, run_id, 200)
    await host.kill()
    told: dict[str, str] = {}
    said: Counter[str] = Counter()

    async def contend(question: Interaction) -> None:
        meeting = asyncio.Barrier(2)

        async def say(service: ControlService, word: str) -> Interaction | QuiesceError:
            await meeting.wait()
            try:
                return await service.answer(question.id, word, actor=f"who says {word}")
            except AlreadyAnswered as error:
                return error

        words = [(cluster.service, "approve"), (elsewhere, "deny")]
        both = await asyncio.gather(*(say(*one) for one in (words if len(told) % 2 else words[::-1])))
        (won,) = [b for b in both if isinstance(b, Interaction)]
        (lost,) = [b for b in both if isinstance(b, AlreadyAnswered)]
        word = str(won.to_json()["answer"])
        assert (lost.details["answer"], lost.details["by"]) == (word, f"who says {word}")
        assert lost.message == f'already answered by who says {word}: "{word}"'
        told[question.position] = word
        said[word] += 1

    for question in questions:
        await within(contend(question))
    await cluster.start(agent)
    assert await cluster.result(run_id) == [told[str(n + 1)] for n in range(200)]
    assert min(said["approve"], said["deny"]) > 0, "each of the two was first somewhere"


@pytest.mark.req("C76")
async def test_the_same_answer_under_the_same_key_gives_the_first_one_again(cluster: Cluster) -> None:
    await cluster.start(ONE)
    (question,) = await asked(cluster, await cluster.submit(ONE))
    first = await cluster.service.answer(question.id, True, key="k")
    assert await cluster.service.answer(question.id, True, key="k") == first
    for value, key in ((False, "k"), (True, "another")):
        with pytest.raises(AlreadyAnswered):
            await cluster.service.answer(question.id, value, key=key)


@pytest.mark.req("C01", "NO-10")
async def test_another_tenants_question_and_an_unknown_one_do_not_exist(cluster: Cluster) -> None:
    await cluster.start(ONE)
    (question,) = await asked(cluster, await cluster.submit(ONE))
    stranger = ControlService(cluster.env, Caller(tenant="stranger"))
    assert await stranger.questions() == []
    with pytest.raises(NotFound):
        await stranger.answer(question.id, True)
    with pytest.raises(NotFound):
        await cluster.service.answer("no such id", True)
    assert await stored(cluster, question) == question


# -- other ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("C81")
async def test_a_cancel_revokes_what_is_open_with_it_and_an_answer_is_told_so(cluster: Cluster) -> None:
    await cluster.start(THREE, settings=AT_ONCE)
    run_id = await cluster.submit(THREE)
    questions = await asked(cluster, run_id, 3)
    await cluster.service.answer(questions[0].id, "kept")
    await cluster.service.cancel(run_id)
    rows = [await stored(cluster, q) for q in questions]
    assert [row.status for row in rows] == ["answered", "revoked", "revoked"]
    assert rows[1].ended_by == Actor(kind=ActorKind.USER, name="local")
    with pytest.raises(QuestionRevoked, match="revoked"):
        await cluster.service.answer(questions[1].id, "late")
    assert (await cluster.receipt(run_id)).status is RunStatus.CANCELLED
    assert await cluster.service.questions() == []


@pytest.mark.req("C76", "C81")
async def test_of_an_answer_and_a_cancel_at_once_each_question_has_one_end_that_both_agree_on(cluster: Cluster) -> None:
    run_ids = [await cluster.submit(ONE) for _ in range(20)]
    await cluster.start(ONE)
    for run_id in run_ids:
        (question,) = await asked(cluster, run_id)
        results = await within(
            asyncio.gather(cluster.service.answer(question.id, True), cluster.service.cancel(run_id), return_exceptions=True)
        )
        row = await stored(cluster, question)
        if isinstance(results[0], QuestionRevoked):
            assert row.status is InteractionStatus.REVOKED
        else:
            assert row == results[0]
        assert not isinstance(results[1], BaseException)
        assert (await cluster.receipt(run_id)).status in (RunStatus.CANCELLED, RunStatus.COMPLETED)


@pytest.mark.req("C81")
async def test_nobody_answers_in_time_and_the_agent_is_told_so_by_the_clock(cluster: Cluster) -> None:
    async def patient(run: Run) -> str:
        try:
            return str(await run.ask("Now?", expires_in=0.05))
        except QuestionExpired as error:
            return str(error.details["by"])

    agent = declare_agent(patient)
    await cluster.start(agent, settings=AT_ONCE)
    run_id = await cluster.submit(agent)
    assert await cluster.result(run_id) == "clock"
    (question,) = await cluster.store.read(lambda tx: tx.interactions.of_run(run_id))
    assert (question.status, question.answer) == (InteractionStatus.EXPIRED, None)
    assert question.ended_by == Actor(kind=ActorKind.SERVICE, name="clock")
    with pytest.raises(QuestionExpired, match="expired at"):
        await cluster.service.answer(question.id, True)


@pytest.mark.req("C81", "C76")
async def test_of_an_answer_and_the_expiry_at_once_one_is_stored(cluster: Cluster) -> None:
    async def patient(run: Run) -> list[object]:
        asks = (run.ask(n, expires_in=600) for n in range(20))
        return list(await asyncio.gather(*asks))

    agent = declare_agent(patient)
    host = await cluster.start(agent, settings=NEVER_SWEEPS)
    run_id = await cluster.submit(agent)
    for question in await asked(cluster, run_id, 20):
        results = await within(
            asyncio.gather(
                cluster.service.answer(question.id, True),
                cluster.store.transact(lambda tx: expire_tx(tx, limit=DEFAULT_LIMITS.sweep_batch_max)),
                return_exceptions=True,
            )
        )
        assert (await stored(cluster, question)) == results[0]
        assert results[1] == []
    assert await cluster.result(run_id) == [True] * 20
    assert not host.died.is_set()


@pytest.mark.req("RR-09")
async def test_other_code_at_a_questions_place_is_a_mismatch_and_no_answer_is_taken_for_another(cluster: Cluster) -> None:
    first = await cluster.start(ONE, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(ONE)
    await first.death()

    async def one(run: Run) -> bool:  # the same agent, which now asks about something else
        return await run.ask("May I?", about={"tool": "order", "what": "coffee"})

    (question,) = await asked(cluster, run_id)
    await cluster.service.answer(question.id, True)
    await cluster.start(declare_agent(one))
    receipt = await cluster.receipt(run_id)
    assert (receipt.status, receipt.reason) == (RunStatus.FAILED, "replay_mismatch")


# -- the hour, by a clock that the test moves --------------------------------------------------------------------------------


@pytest.mark.req("C81")
def test_a_question_stays_open_for_ever_or_until_its_hour_and_then_no_answer_counts(url: str) -> None:
    make = Samples()

    async def opened(clock: ManualClock) -> Store:
        return await asyncio.to_thread(open_store, url, clock=clock)

    with StoreUnderTest(opened) as store:
        patient, hurried = _question(make, store, None), _question(make, store, 60_000)
        store.clock.advance(59_999)
        assert store.transact(lambda tx: expire_tx(tx, limit=10)) == []
        store.clock.advance(600_000)
        late = Answer(interaction_id=hurried.id, value=False, actor=USER, key="k", tenant=TENANT)
        with pytest.raises(QuestionExpired, match="expired at"):
            store.transact(lambda tx: answer_tx(tx, late, DEFAULT_LIMITS))
        assert store.transact(lambda tx: expire_tx(tx, limit=10)) == [hurried.id]
        row = store.read(lambda tx: tx.interactions.get(hurried.id))
        assert row is not None
        assert (row.status, row.answer, row.ended_by) == (InteractionStatus.EXPIRED, None, CLOCK)
        with pytest.raises(QuestionExpired, match="expired at"):
            store.transact(lambda tx: answer_tx(tx, late, DEFAULT_LIMITS))
        said = replace(late, interaction_id=patient.id)
        assert store.transact(lambda tx: answer_tx(tx, said, DEFAULT_LIMITS)).answer == b"false"


def _question(make: Samples, store: StoreUnderTest, open_ms: int | None) -> Interaction:
    run = make.running()
    store.add(run)
    question = Interaction(
        id=InteractionId(make.id()),
        run_id=run.id,
        position=Position("1"),
        thread_id=run.thread_id,
        tenant=TENANT,
        prompt=b'"?"',
        schema=b'{"type":"boolean"}',
        about=b"null",
        created_at=store.clock.now(),
        expires_at=None if open_ms is None else after_ms(store.clock.now(), open_ms),
    )
    store.transact(lambda tx: tx.interactions.add(question))
    return question
