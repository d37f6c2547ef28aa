"""Decisions about one question, mailbox or schedule that overlap: the second waits, and decides from what it then finds.

On PostgreSQL, over two connections: one transaction has decided and stands still before its commit, the other is seen to wait.
What it had read before it waited counts for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pytest

from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.domain.errors import AlreadyAnswered, CapacityExhausted, NotFound, QuestionExpired, Refused
from quiesce.domain.ids import Position
from quiesce.domain.instant import after_ms
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.mailbox import EntryKind, EntryStatus
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.schedules import Definition, Schedule, ScheduleStatus, Timing
from quiesce.domain.threads import Thread
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.interactions import Answer, answer_tx, expire_tx, settled_tx
from quiesce.runtime.mailbox import Arrival, arrive_tx, withdraw_entry_tx
from quiesce.runtime.schedules import create_tx, delete_tx, pause_tx
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import TENANT, USER, Samples
from tests.stores.meeting import Holding, until_somebody_waits

T = TypeVar("T")
OPEN_MS: Final = 60_000
TIMING: Final = Timing(cron="*/10 * * * *")


@dataclass
class Two:
    """Two processes over one store, with one clock that the test moves."""

    stores: tuple[Store, Store]
    clock: ManualClock
    server: str
    make: Samples

    def env(self, **limits: Any) -> Environment:
        return Environment(
            store=self.stores[0], clock=self.clock, entropy=SystemEntropy(), limits=replace(DEFAULT_LIMITS, **limits)
        )

    async def behind(
        self, first: Callable[[Transaction], object], second: Callable[[Transaction], T], *, late_ms: float = 0
    ) -> T | Exception:
        """Decide `second`, begun before `first` has committed, and `late_ms` pass while it waits; return what it says."""

        def begun(tx: Transaction) -> T:
            assert tx.now
            return second(tx)

        async with Holding(self.stores[0], first):
            waiting = asyncio.ensure_future(self.stores[1].transact(begun))
            await until_somebody_waits(self.server)
            self.clock.advance(late_ms)
        try:
            return await waiting
        except Exception as error:  # noqa: BLE001 - what it says is what the test looks at
            return error


@pytest.fixture
async def two(postgres_url: str, postgres_server: str) -> AsyncIterator[Two]:
    clock = ManualClock()
    opened = [await asyncio.to_thread(open_store, postgres_url, clock=clock) for _ in range(2)]
    yield Two((opened[0], opened[1]), clock, postgres_server, Samples())
    for store in opened:
        await store.close()


async def stored_run(two: Two, *waits: Wait) -> Run:
    """A run that is held, or waits for this."""
    run = two.make.running()
    if waits:
        run = run.parked(waits)

    def add(tx: Transaction) -> None:
        tx.threads.insert(Thread(id=run.thread_id, tenant=run.tenant, created_at=run.created_at))
        tx.runs.insert(run)
        tx.streams.open(run.id)

    await two.stores[0].transact(add)
    return run


# -- questions -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def question(two: Two) -> Interaction:
    """A question that a parked run waits for."""
    question_id = InteractionId(two.make.id())
    due = after_ms(two.clock.now(), OPEN_MS)
    run = await stored_run(two, Wait(kind=WaitKind.ANSWER, subject=question_id, position=Position("1"), due_at=due))
    question = Interaction(
        id=question_id,
        run_id=run.id,
        position=Position("1"),
        thread_id=run.thread_id,
        tenant=TENANT,
        prompt=b'"?"',
        schema=b'{"type":"boolean"}',
        about=b"null",
        created_at=two.clock.now(),
        expires_at=due,
    )
    await two.stores[0].transact(lambda tx: tx.interactions.add(question))
    return question


def says(question: Interaction, value: bool, key: str) -> Callable[[Transaction], Interaction]:
    answer = Answer(interaction_id=question.id, value=value, actor=USER, key=key, tenant=TENANT)
    return lambda tx: answer_tx(tx, answer, DEFAULT_LIMITS)


def strikes(tx: Transaction) -> list[InteractionId]:
    return expire_tx(tx, limit=10)


async def ended(two: Two, question: Interaction) -> Interaction:
    """How the question ended; and its run was woken by that."""
    found = await two.stores[0].read(lambda tx: (tx.interactions.get(question.id), tx.runs.get(question.run_id)))
    row, run = found
    assert row is not None
    assert run is not None
    assert run.status is RunStatus.PENDING
    return row


@pytest.mark.req("C76", "NO-10")
async def test_an_answer_that_waited_for_another_is_told_of_it(two: Two, question: Interaction) -> None:
    told = await two.behind(says(question, value=True, key="a"), says(question, value=False, key="b"))
    assert isinstance(told, AlreadyAnswered)
    assert told.details["answer"] is True
    assert (await ended(two, question)).answer == b"true"


@pytest.mark.req("C76")
async def test_the_same_answer_that_waited_for_itself_is_the_same(two: Two, question: Interaction) -> None:
    told = await two.behind(says(question, value=True, key="a"), says(question, value=True, key="a"))
    assert told == await ended(two, question)


@pytest.mark.req("C76", "C81")
async def test_the_hour_that_waited_for_an_answer_ends_nothing(two: Two, question: Interaction) -> None:
    """The answer came in its last microsecond; the sweep had found the question open and due."""
    two.clock.advance(OPEN_MS - 0.001)
    answer = says(question, value=True, key="a")

    def in_time(tx: Transaction) -> None:
        answer(tx)
        two.clock.advance(0.001)  # before its commit the hour strikes

    assert await two.behind(in_time, strikes) == []
    assert (await ended(two, question)).status is InteractionStatus.ANSWERED


@pytest.mark.req("C76", "C81")
async def test_a_run_that_looks_at_its_question_in_its_hour_waits_for_the_answer_that_came_before(
    two: Two, question: Interaction
) -> None:
    two.clock.advance(OPEN_MS - 0.001)
    answer = says(question, value=True, key="a")

    def in_time(tx: Transaction) -> None:
        answer(tx)
        two.clock.advance(0.001)

    told = await two.behind(in_time, lambda tx: settled_tx(tx, question.id))
    assert told == await ended(two, question)
    assert isinstance(told, Interaction)
    assert told.status is InteractionStatus.ANSWERED


@pytest.mark.req("C76", "C81")
async def test_an_answer_that_waited_for_the_hour_is_told_of_it(two: Two, question: Interaction) -> None:
    two.clock.advance(OPEN_MS)
    told = await two.behind(strikes, says(question, value=True, key="a"))
    assert isinstance(told, QuestionExpired)
    assert (await ended(two, question)).status is InteractionStatus.EXPIRED


@pytest.mark.req("C81")
async def test_an_answer_that_waited_for_the_run_past_the_hour_does_not_count(two: Two, question: Interaction) -> None:
    two.clock.advance(OPEN_MS - 1)
    told = await two.behind(lambda tx: tx.runs.lock(question.run_id), says(question, value=True, key="a"), late_ms=1)
    assert isinstance(told, QuestionExpired)
    assert await two.stores[0].read(lambda tx: tx.interactions.get(question.id)) == question


# -- mailboxes ---------------------------------------------------------------------------------------------------------------


def arrives(two: Two, run: Run, key: str, **limits: int) -> Callable[[Transaction], object]:
    wanted = Arrival(run_id=run.id, kind=EntryKind.WAKE, name="w", value=key, key=key, subject="ada", tenant=TENANT)
    return lambda tx: arrive_tx(tx, two.env(**limits), wanted)


@pytest.mark.req("CC-12", "C06")
async def test_of_two_arrivals_under_one_key_the_second_is_the_first(two: Two) -> None:
    run = await stored_run(two)
    told = await two.behind(arrives(two, run, "k"), arrives(two, run, "k"))
    assert [told] == await two.stores[0].read(lambda tx: tx.mailbox.of_run(run.id))


@pytest.mark.req("CC-24")
async def test_the_last_place_of_a_mailbox_goes_to_one(two: Two) -> None:
    run = await stored_run(two)
    told = await two.behind(arrives(two, run, "a", mailbox_queued_max=1), arrives(two, run, "b", mailbox_queued_max=1))
    assert isinstance(told, CapacityExhausted)
    assert await two.stores[0].read(lambda tx: tx.mailbox.count_queued(run.id)) == 1


@pytest.mark.req("C06", "C07")
async def test_a_withdrawal_that_waited_for_the_taking_is_told_where_it_was_applied(two: Two) -> None:
    run = await stored_run(two)
    await two.stores[0].transact(arrives(two, run, "k"))
    (entry,) = await two.stores[0].read(lambda tx: tx.mailbox.of_run(run.id))

    def takes(tx: Transaction) -> None:
        tx.runs.lock(run.id)
        tx.mailbox.save_many([entry.applied(Position("7"), None, tx.now)])

    told = await two.behind(takes, lambda tx: withdraw_entry_tx(tx, entry.id, tenant=TENANT))
    assert isinstance(told, Refused)
    assert (told.details["status"], told.details["position"]) == ("applied", "7")
    (after,) = await two.stores[0].read(lambda tx: tx.mailbox.of_run(run.id))
    assert after.status is EntryStatus.APPLIED


# -- schedules ---------------------------------------------------------------------------------------------------------------


def defines(two: Two, name: str = "s", agent: str = "a", **limits: int) -> Callable[[Transaction], tuple[Schedule, bool]]:
    definition = Definition(agent=agent, input=b'{"args":[],"kwargs":{}}', timing=TIMING)
    env = two.env(**limits)
    return lambda tx: create_tx(tx, env, tenant=TENANT, subject="ada", name=name, definition=definition)


def deletes(two: Two) -> Callable[[Transaction], Schedule]:
    return lambda tx: delete_tx(tx, two.env(), tenant=TENANT, name="s")


@pytest.mark.req("NO-13")
async def test_a_definition_that_waited_for_a_deletion_revives_nothing_and_says_so(two: Two) -> None:
    old, _ = await two.stores[0].transact(defines(two))
    told = await two.behind(deletes(two), defines(two, agent="b"))
    assert isinstance(told, Refused)
    assert told.details["schedule_id"] == old.id
    new, is_new = await two.stores[0].transact(defines(two, agent="b"))
    assert is_new
    assert new.id != old.id


@pytest.mark.req("NO-13")
@pytest.mark.parametrize("verb", [pause_tx, delete_tx])
async def test_a_verb_that_waited_for_a_deletion_finds_no_schedule(two: Two, verb: Callable[..., Schedule]) -> None:
    await two.stores[0].transact(defines(two))
    told = await two.behind(deletes(two), lambda tx: verb(tx, two.env(), tenant=TENANT, name="s"))
    assert isinstance(told, NotFound)


@pytest.mark.req("NO-13")
async def test_a_change_that_waited_for_a_pause_leaves_the_schedule_paused(two: Two) -> None:
    await two.stores[0].transact(defines(two))
    told = await two.behind(lambda tx: pause_tx(tx, two.env(), tenant=TENANT, name="s"), defines(two, agent="b"))
    assert isinstance(told, tuple)
    schedule, _ = told
    assert (schedule.status, schedule.revision, schedule.definition.agent) == (ScheduleStatus.PAUSED, 2, "b")


@pytest.mark.req("NO-13")
async def test_of_two_definitions_of_one_new_name_the_second_changes_the_first(two: Two) -> None:
    told = await two.behind(defines(two, agent="a"), defines(two, agent="b"))
    assert isinstance(told, tuple)
    schedule, is_changed = told
    assert (schedule.revision, schedule.definition.agent, is_changed) == (1, "b", True)
    assert await two.stores[0].read(lambda tx: tx.schedules.count(TENANT)) == 1
