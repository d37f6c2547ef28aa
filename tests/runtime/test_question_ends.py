"""How a question ends, to the instant: by a clock that the test moves, and as the run goes on from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.boundary import Actor
from quiesce.domain.errors import AlreadyAnswered, InvalidInput, InvariantBroken, QuestionExpired, QuestionRevoked
from quiesce.domain.ids import Position
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.interactions import CLOCK, Interaction, InteractionId, InteractionStatus
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.runs import Run as RunRow
from quiesce.domain.runs import RunStatus, Wait, WaitKind
from quiesce.ports.store import Store
from quiesce.runtime.context import Run
from quiesce.runtime.interactions import Answer, answer_tx, expire_tx, revoke_tx, settled_tx
from quiesce.runtime.registry import declare_agent
from quiesce.testing.clock import ManualClock
from quiesce.testing.conformance import StoreUnderTest
from quiesce.testing.samples import TENANT, USER, Samples
from tests.runtime.kit import FAST, Cluster

AT_ONCE = replace(FAST, linger_ms=0, sweep_ms=600_000)
OPEN_MS = 60_000
INSTANT_MS = 0.001


async def patient(run: Run) -> str:
    try:
        return f"a person says {await run.ask('Now?', answer=str, expires_in=OPEN_MS / 1000)}"
    except QuestionExpired as error:
        return f"the {error.details['by']} ended it"


PATIENT = declare_agent(patient)


# -- a run and its question, at the very instant -----------------------------------------------------------------------------


@pytest.fixture
async def timed(url: str) -> AsyncIterator[tuple[Cluster, ManualClock]]:
    """Hosts over a store whose time the test moves."""
    clock = ManualClock()
    store: Store = await asyncio.to_thread(open_store, url, clock=clock)
    cluster = Cluster(store)
    yield cluster, clock
    await cluster.close()
    await store.close()


@pytest.mark.req("C76", "C81", "NO-10")
@pytest.mark.parametrize("first", ["answer", "clock"])
@pytest.mark.parametrize("is_in_time", [True, False])
async def test_of_an_answer_and_the_hour_one_word_counts_and_the_run_goes_on_from_it(
    timed: tuple[Cluster, ManualClock], first: str, *, is_in_time: bool
) -> None:
    """One microsecond before its hour an answer counts; in its hour none does, whether or not anybody has noted the hour."""
    cluster, clock = timed
    host = await cluster.start(PATIENT, crash_at="park.after", settings=AT_ONCE)
    run_id = await cluster.submit(PATIENT)
    await host.death()
    (question,) = await cluster.service.questions()
    assert question.expires_at == after_ms(clock.now(), OPEN_MS)
    clock.advance(OPEN_MS - INSTANT_MS if is_in_time else OPEN_MS)

    async def say() -> str:
        try:
            return str((await cluster.service.answer(question.id, "yes")).status)
        except (QuestionExpired, AlreadyAnswered) as error:
            return error.code

    async def strike() -> list[InteractionId]:
        return await cluster.store.transact(lambda tx: expire_tx(tx, limit=10))

    told = await say() if first == "answer" else ""
    ended = await strike()
    told = told or await say()
    assert told == ("answered" if is_in_time else "QUESTION_EXPIRED")
    assert ended == ([] if is_in_time else [question.id])
    assert (await cluster.run(run_id)).status is RunStatus.PENDING, "woken by the end itself, whichever it is"
    clock.advance(OPEN_MS)
    assert await strike() == []
    await cluster.start(PATIENT)
    assert await cluster.result(run_id) == ("a person says yes" if is_in_time else "the clock ended it")


# -- one decision after the other --------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A waiting run and its question, past the runtime."""

    store: StoreUnderTest
    run: RunRow
    question: Interaction

    def row(self) -> Interaction:
        found = self.store.read(lambda tx: tx.interactions.get(self.question.id))
        assert found is not None
        return found

    def status(self) -> RunStatus:
        found = self.store.read(lambda tx: tx.runs.get(self.run.id))
        assert found is not None
        return found.status

    def answer(self, **fields: object) -> Answer:
        said = Answer(interaction_id=self.question.id, value=True, actor=USER, key="k", tenant=TENANT)
        return replace(said, **fields)  # type: ignore[arg-type]


@pytest.fixture
def store(url: str) -> Iterator[StoreUnderTest]:
    async def opened(clock: ManualClock) -> Store:
        return await asyncio.to_thread(open_store, url, clock=clock)

    with StoreUnderTest(opened) as under_test:
        yield under_test


@pytest.fixture
def asked(store: StoreUnderTest) -> Asked:
    """A run that waits for the answer to its question."""
    make = Samples()
    held = make.running()
    question = question_of(make, held, store.clock.now(), "1")
    run = held.parked((Wait(kind=WaitKind.ANSWER, subject=question.id, position=Position("1"), due_at=question.expires_at),))
    store.add(run)
    store.transact(lambda tx: tx.interactions.add(question))
    return Asked(store, run, question)


def question_of(make: Samples, run: RunRow, now: Instant, position: str) -> Interaction:
    return Interaction(
        id=InteractionId(make.id()),
        run_id=run.id,
        position=Position(position),
        thread_id=run.thread_id,
        tenant=TENANT,
        prompt=b'"?"',
        schema=b'{"type":"boolean"}',
        about=b"null",
        created_at=now,
        expires_at=after_ms(now, OPEN_MS),
    )


@pytest.mark.req("NO-12", "C78")
def test_the_end_of_a_question_wakes_the_run_that_waits_for_it_and_not_one_that_waits_for_another(asked: Asked) -> None:
    store = asked.store
    other = replace(question_of(Samples(), asked.run, store.clock.now(), "2"), expires_at=None)
    store.transact(lambda tx: tx.interactions.add(other))
    store.transact(lambda tx: answer_tx(tx, asked.answer(interaction_id=other.id), DEFAULT_LIMITS))
    assert asked.status() is RunStatus.WAITING
    store.clock.advance(OPEN_MS)
    assert store.transact(lambda tx: expire_tx(tx, limit=10)) == [asked.question.id]
    assert asked.status() is RunStatus.PENDING


@pytest.mark.req("C81")
def test_what_was_due_when_its_run_was_ended_was_ended_by_the_clock(asked: Asked) -> None:
    """Whoever cancels says nothing of a question whose time had passed before."""
    store = asked.store
    second = replace(question_of(Samples(), asked.run, store.clock.now(), "2"), expires_at=None)
    store.transact(lambda tx: tx.interactions.add(second))
    store.clock.advance(OPEN_MS)
    store.transact(lambda tx: revoke_tx(tx, asked.run.id, USER))
    assert (asked.row().status, asked.row().ended_by) == (InteractionStatus.EXPIRED, CLOCK)
    revoked = store.read(lambda tx: tx.interactions.get(second.id))
    assert revoked is not None
    assert (revoked.status, revoked.ended_by) == (InteractionStatus.REVOKED, USER)
    with pytest.raises(QuestionRevoked):
        store.transact(lambda tx: answer_tx(tx, asked.answer(interaction_id=second.id), DEFAULT_LIMITS))


@pytest.mark.req("C81")
def test_who_looks_how_a_question_ended_ends_none_that_is_open_and_each_that_is_due(asked: Asked) -> None:
    store, question_id = asked.store, asked.question.id
    assert store.transact(lambda tx: settled_tx(tx, question_id)) == asked.question
    assert asked.row() == asked.question
    store.clock.advance(OPEN_MS)
    ended = store.transact(lambda tx: settled_tx(tx, question_id))
    assert ended == asked.row() == asked.question.expired(store.clock.now())
    store.clock.advance(1)
    assert store.transact(lambda tx: settled_tx(tx, question_id)) == ended


@pytest.mark.req("NO-10")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": "k" * (DEFAULT_LIMITS.key_chars_max + 1)}, "key"),
        ({"actor": replace(USER, name="")}, "actor"),
        ({"actor": replace(USER, name="a" * (DEFAULT_LIMITS.name_chars_max + 1))}, "actor"),
        ({"value": "yes"}, "value"),
        ({"value": "x" * (DEFAULT_LIMITS.payload_bytes_max + 1)}, "value"),
        ({"digest": "sha256:0"}, "digest"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused_by_name_and_stored_nowhere(
    asked: Asked, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked.store.transact(lambda tx: answer_tx(tx, asked.answer(**fields), DEFAULT_LIMITS))
    assert refused.value.details["field"] == field
    assert asked.row() == asked.question
    assert asked.status() is RunStatus.WAITING


# -- as a value ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-10", "C77")
@pytest.mark.parametrize("field", ["run_id", "position", "prompt", "schema", "about"])
def test_the_digest_covers_the_place_the_words_and_the_matter(field: str) -> None:
    make = Samples()
    question = question_of(make, make.running(), make.now, "1")
    other = replace(question, **{field: '"other"' if field in ("run_id", "position") else b'"other"'})  # type: ignore[arg-type]
    assert other.digest != question.digest
    assert replace(question, id=InteractionId(make.id()), created_at=make.now, expires_at=None).digest == question.digest


@pytest.mark.req("C81", "C82")
@pytest.mark.parametrize("end", ["answered", "expired", "revoked"])
def test_what_has_ended_does_not_end_again(end: str) -> None:
    make = Samples()
    question = question_of(make, make.running(), make.now, "1")

    def ended(of: Interaction, how: str, by: Actor = USER) -> Interaction:
        if how == "answered":
            return of.answered(b"true", by, "k", make.now)
        return of.expired(make.now) if how == "expired" else of.revoked(by, make.now)

    done = ended(question, end)
    assert str(done.status) == end
    for again in ("answered", "expired", "revoked"):
        with pytest.raises(InvariantBroken):
            ended(done, again)
