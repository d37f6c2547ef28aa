"""Staging on every kind of connection: the fact and the command that announces it, both or neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import IntentStatus, Target
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, InvalidInput, Refused
from quiesce.domain.limits import DEFAULT_LIMITS
from tests.staging.kit import STOP, Producer, World, producing, request

SMALL = replace(DEFAULT_LIMITS, command_scope_bound=2, command_scope_reserve=1)


@pytest.mark.req("CC-20", "CC-10")
async def test_a_commit_stores_the_fact_and_the_command_and_it_is_delivered(producer: Producer, world: World) -> None:
    await producer.order()
    (staged,) = await producer.stage(request(payload={"number": 1}))
    assert staged.is_new
    assert await world.intent() is None, "nobody sees it before the commit"
    await producer.commit()
    assert await world.intent() == staged.intent
    assert await producer.numbers() == [1]
    assert await world.delivered() == ["order 1"]
    assert await world.used() == 0


@pytest.mark.req("CC-20", "CC-26")
async def test_a_rollback_leaves_neither_the_fact_nor_the_command_nor_a_place(producer: Producer, world: World) -> None:
    await producer.order()
    await producer.stage(request())
    await producer.rollback()
    assert await producer.numbers() == []
    assert await world.intent() is None
    assert await world.used() == 0
    assert await world.delivered() == []


@pytest.mark.req("CC-20")
async def test_staging_first_begins_the_transaction_as_a_statement_of_the_producer_would(
    producer: Producer, world: World
) -> None:
    await producer.stage(request())
    await producer.order()
    await producer.rollback()
    assert await producer.numbers() == []
    assert await world.intent() is None
    await producer.rollback()
    await producer.stage(request())
    await producer.order()
    await producer.commit()
    assert await producer.numbers() == [1]
    assert await world.intent() is not None


@pytest.mark.req("CC-12", "CC-22")
async def test_the_same_key_again_is_the_same_intent(producer: Producer, world: World) -> None:
    (first,) = await producer.stage(request())
    (again,) = await producer.stage(request())
    await producer.commit()
    assert await world.delivered() == ["order 1"]
    (later,) = await producer.stage(request())
    await producer.commit()
    assert [staged.is_new for staged in (first, again, later)] == [True, False, False]
    assert {staged.intent.id for staged in (first, again, later)} == {first.intent.id}
    assert later.intent.status is IntentStatus.RELAYED
    assert await world.delivered() == []


@pytest.mark.req("CC-13", "G-38")
async def test_a_conflict_says_what_differs_and_the_producer_goes_on(producer: Producer, world: World) -> None:
    (first,) = await producer.stage(request())
    await producer.order(1)
    with pytest.raises(IdempotencyConflict, match="target, payload") as caught:
        await producer.stage(request(target="2", payload=[2]))
    assert caught.value.details["differs"] == ["target", "payload"]
    assert caught.value.details["intent_id"] == first.intent.id
    await producer.order(2)
    await producer.stage(request("order 2"))
    await producer.commit()
    assert await producer.numbers() == [1, 2]
    assert sorted(await world.delivered()) == ["order 1", "order 2"]


@pytest.mark.req("CC-24", "CC-26", "G-31")
async def test_a_full_scope_refuses_and_the_producer_decides_what_becomes_of_its_fact(producer: Producer, world: World) -> None:
    await producer.stage(request("order 1"), request("order 2"), limits=SMALL)
    await producer.order(2)
    await producer.commit()
    await producer.order(3)
    with pytest.raises(CapacityExhausted, match="holds 2 unfinished commands; its bound is 2, and 1 more"):
        await producer.stage(request("order 3"), limits=SMALL)
    await producer.stage(request("no more", kind=STOP), limits=SMALL)
    await producer.commit()
    assert await producer.numbers() == [2, 3], "it went on with its transaction"
    assert await world.intent("order 3") is None
    assert await world.used() == 3


@pytest.mark.req("CC-20", "CC-26")
async def test_of_several_requests_in_one_call_all_are_staged_or_none(producer: Producer, world: World) -> None:
    wanted = [request(f"order {n}", scope=scope) for n, scope in enumerate(("c", "a", "b"), start=1)]
    await producer.order()
    with pytest.raises(InvalidInput, match="revision"):
        await producer.stage(*wanted, request("order 4", revision=7))
    await producer.commit()
    assert await producer.numbers() == [1]
    assert [await world.used(scope) for scope in ("a", "b", "c")] == [0, 0, 0]
    staged = await producer.stage(*wanted)
    await producer.commit()
    assert [each.intent.producer_key for each in staged] == ["order 1", "order 2", "order 3"], "in the order of the requests"
    assert [await world.used(scope) for scope in ("a", "b", "c")] == [1, 1, 1]
    assert len(await world.delivered()) == 3


@pytest.mark.req("CC-20")
async def test_a_connection_that_commits_each_statement_by_itself_is_refused(kind: str, url: str, world: World) -> None:
    async with producing(kind, url, autocommit=True) as producer:
        with pytest.raises(Refused, match="Begin a transaction first"):
            await producer.stage(request())
        await producer.order()
    assert await world.intent() is None


@pytest.mark.req("CC-20")
@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite", "psycopg", "psycopg async"], indirect=True)
async def test_a_transaction_that_the_producer_begins_by_hand_is_as_good(kind: str, url: str, world: World) -> None:
    async with producing(kind, url, autocommit=True) as producer:
        for end, number in (("ROLLBACK", 1), ("COMMIT", 2)):
            await producer.run("BEGIN")
            await producer.order(number)
            await producer.stage(request(f"order {number}"))
            await producer.run(end)
        assert await producer.numbers() == [2]
        with pytest.raises(Refused):
            await producer.stage(request())
    assert await world.delivered() == ["order 2"]


@pytest.mark.req("CC-20")
async def test_what_was_staged_behind_a_savepoint_goes_back_with_it(producer: Producer, world: World) -> None:
    await producer.order()
    await producer.run("SAVEPOINT part")
    await producer.order(2)
    await producer.stage(request("order 2"))
    await producer.run("ROLLBACK TO SAVEPOINT part")
    await producer.stage(request("order 1"))
    await producer.run("RELEASE SAVEPOINT part")
    await producer.commit()
    assert await world.intent("order 2") is None
    assert await producer.numbers() == [1]
    assert await world.delivered() == ["order 1"]


@pytest.mark.req("CC-24", "CC-20")
async def test_an_intent_is_taken_back_with_the_producers_commit_or_not_at_all(producer: Producer, world: World) -> None:
    (staged,) = await producer.stage(request())
    await producer.commit()
    await producer.withdraw(staged.intent.id)
    await producer.rollback()
    assert await world.used() == 1
    assert (await producer.withdraw(staged.intent.id)).status is IntentStatus.WITHDRAWN
    await producer.commit()
    assert await world.used() == 0
    assert await world.delivered() == []


@pytest.mark.req("CC-33", "G-10")
async def test_the_next_incarnation_of_a_target_is_declared_with_the_producers_commit(producer: Producer, world: World) -> None:
    target = Target(owner="desk", id="1")
    await producer.stage(request())
    await producer.supersede(target, 1)
    await producer.rollback()
    await producer.stage(request())
    await producer.commit()
    assert await world.delivered() == ["order 1"], "the declaration went back with its transaction"
    assert (await producer.supersede(target, 1)).revision == 1
    await producer.stage(request("of the first incarnation"), request("of the second", revision=1))
    await producer.commit()
    assert await world.delivered() == ["of the second"]
