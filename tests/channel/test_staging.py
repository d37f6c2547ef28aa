"""Staging: one request, one intent, one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import Intent, IntentId, IntentStatus, Target
from quiesce.domain.deliveries import CommandStatus
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, InvalidInput, NotFound, Refused
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.publication import OutboxMessage
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import stage_tx, supersede_tx, withdraw_tx
from tests.channel.kit import STOP, Channel, gathered

SMALL = replace(DEFAULT_LIMITS, command_scope_bound=2, command_scope_reserve=1)


@pytest.mark.req("CC-12", "CC-15")
async def test_the_same_request_again_is_the_same_intent_also_once_it_is_done(channel: Channel) -> None:
    wanted = channel.request(key="order-7")
    first = await channel.staging(wanted)
    channel.clock.advance(5)
    second = await channel.staging(wanted)
    assert (first.is_new, second.is_new) == (True, False)
    assert second.intent == first.intent
    await channel.quiesce()
    third = await channel.staging(wanted)
    assert third.intent.id == first.intent.id
    assert third.intent.status is IntentStatus.RELAYED
    assert len(await channel.effects()) == 1
    assert (await channel.command(first.intent)).number == 1


@pytest.mark.req("CC-13", "G-38")
async def test_another_request_under_the_same_key_is_a_conflict_that_says_what_differs(channel: Channel) -> None:
    first = await channel.stage(channel.request("a", key="order-7"))
    with pytest.raises(IdempotencyConflict, match="target, payload") as caught:
        await channel.stage(channel.request("b", key="order-7", payload={"n": 2}))
    assert caught.value.details["intent_id"] == first.id
    assert caught.value.details["differs"] == ["target", "payload"]
    assert await channel.store.read(lambda tx: tx.intents.get(first.id)) == first
    assert await channel.used() == 1


@pytest.mark.req("CC-12", "CC-22")
async def test_two_producers_of_one_key_at_once_make_one_intent(channel: Channel) -> None:
    wanted = channel.request(key="order-7")
    answers = await gathered(*(channel.stage(wanted) for _ in range(12)))
    assert all(isinstance(answer, Intent) for answer in answers), answers
    assert len({answer.id for answer in answers if isinstance(answer, Intent)}) == 1
    assert await channel.used() == 1


@pytest.mark.req("CC-12", "CC-13")
async def test_a_key_belongs_to_its_producer_and_its_tenant(channel: Channel) -> None:
    for producer, tenant in (("test", "local"), ("other", "local"), ("test", "other")):
        assert (await channel.staging(channel.request(key="order-7", producer=producer, tenant=tenant))).is_new


@pytest.mark.req("CC-20", "CC-26")
async def test_a_rolled_back_transaction_leaves_neither_the_fact_nor_the_intent_nor_a_place(channel: Channel) -> None:
    wanted = channel.request()

    def fails(tx: Transaction) -> None:
        tx.outbox.append(OutboxMessage.new(id="fact", topic="fact", run_id=RunId(""), body=b"{}", created_at=tx.now))
        stage_tx(tx, wanted, intent_id=IntentId(channel.env.new_id()), limits=DEFAULT_LIMITS)
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="mind"):
        await channel.store.transact(fails)
    assert await channel.store.read(lambda tx: tx.outbox.pending(limit=10)) == []
    assert await channel.store.read(lambda tx: tx.intents.by_key("local", "test", wanted.producer_key)) is None
    assert await channel.used() == 0
    assert await channel.relay() == 0


@pytest.mark.req("CC-24", "CC-26", "CC-27", "G-31")
async def test_a_full_scope_refuses_in_the_producers_transaction_and_keeps_a_reserve_for_cancels(channel: Channel) -> None:
    env = channel.environment(limits=SMALL)
    for _ in range(2):
        await channel.stage(env=env)

    def both(tx: Transaction) -> None:
        tx.outbox.append(OutboxMessage.new(id="fact", topic="fact", run_id=RunId(""), body=b"{}", created_at=tx.now))
        stage_tx(tx, channel.request(), intent_id=IntentId(env.new_id()), limits=SMALL)

    with pytest.raises(CapacityExhausted, match="holds 2 unfinished commands; its bound is 2, and 1 more") as caught:
        await channel.store.transact(both)
    assert caught.value.retryable
    assert await channel.store.read(lambda tx: tx.outbox.pending(limit=10)) == [], "the fact was rolled back with it"
    await channel.stage(channel.request(kind=STOP), env=env)
    with pytest.raises(CapacityExhausted):
        await channel.stage(channel.request(kind=STOP), env=env)
    assert await channel.used() == 3
    await channel.quiesce(channel.worker(env=env))
    assert await channel.used() == 0
    assert len(await channel.effects()) == 3, "what was staged could be relayed although the scope was full"


@pytest.mark.req("CC-24")
async def test_the_last_place_goes_to_one_of_two_producers(channel: Channel) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_scope_bound=3, command_scope_reserve=0))
    answers = await gathered(*(channel.stage(env=env) for _ in range(10)))
    assert sum(isinstance(answer, Intent) for answer in answers) == 3
    assert sum(isinstance(answer, CapacityExhausted) for answer in answers) == 7
    assert await channel.used() == 3


@pytest.mark.req("CC-24", "CC-26")
async def test_a_scope_that_may_hold_nothing_refuses_the_first_command(channel: Channel) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_scope_bound=0, command_scope_reserve=0))
    with pytest.raises(CapacityExhausted, match="holds 0 unfinished commands; its bound is 0"):
        await channel.stage(env=env)


@pytest.mark.req("CC-24")
async def test_scopes_do_not_share_their_room(channel: Channel) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_scope_bound=1, command_scope_reserve=0))
    await channel.stage(channel.request(scope="a"), env=env)
    await channel.stage(channel.request(scope="b"), env=env)
    with pytest.raises(CapacityExhausted):
        await channel.stage(channel.request(scope="a"), env=env)
    await channel.store.transact(lambda tx: tx.intents.set_capacity("local", "a", bound=2, reserve=0))
    await channel.stage(channel.request(scope="a"), env=env)


@pytest.mark.req("CC-24")
async def test_a_withdrawn_intent_is_never_relayed_and_gives_its_place_back_once(channel: Channel) -> None:
    intent = await channel.stage()
    for _ in range(2):
        withdrawn = await channel.store.transact(lambda tx: withdraw_tx(tx, intent.id, tenant="local"))
        assert withdrawn.status is IntentStatus.WITHDRAWN
        assert await channel.used() == 0
    assert await channel.relay() == 0
    assert await channel.effects() == []


@pytest.mark.req("CC-11")
async def test_what_was_relayed_cannot_be_withdrawn_any_more(channel: Channel) -> None:
    intent = await channel.stage()
    await channel.relay()
    with pytest.raises(Refused, match="is relayed"):
        await channel.store.transact(lambda tx: withdraw_tx(tx, intent.id, tenant="local"))
    with pytest.raises(NotFound):
        await channel.store.transact(lambda tx: withdraw_tx(tx, intent.id, tenant="somebody else"))
    await channel.quiesce()
    assert len(await channel.effects()) == 1


@pytest.mark.req("CC-10", "G-10")
async def test_a_command_for_an_incarnation_that_is_not_reached_is_refused(channel: Channel) -> None:
    with pytest.raises(InvalidInput, match="stands at revision 0"):
        await channel.stage(channel.request("a", revision=1))
    assert await channel.used() == 0
    target = Target(owner="ledger", id="a")
    await channel.store.transact(lambda tx: supersede_tx(tx, target, 1))
    await channel.stage(channel.request("a", revision=1))
    with pytest.raises(InvalidInput, match="lies before revision 1"):
        await channel.store.transact(lambda tx: supersede_tx(tx, target, 0))


@pytest.mark.req("CC-23", "CC-19", "CC-16")
async def test_a_timer_has_no_number_and_holds_nobody_up_before_it_is_due(channel: Channel) -> None:
    due_at = after_ms(channel.clock.now(), 3_600_000)
    timer = await channel.stage(channel.request("a", key="timer", due_at=due_at))
    correction = await channel.stage(channel.request("a", key="correction"))
    await channel.quiesce()
    assert await channel.keys_done() == ["correction"]
    assert (await channel.command(correction)).number == 1
    assert await channel.store.read(lambda tx: tx.commands.of_intent(timer.id)) is None
    assert await channel.used() == 1, "a timer that waits keeps its place"
    channel.clock.advance(5_000_000)
    await channel.quiesce()
    assert await channel.keys_done() == ["correction", "timer"]
    assert (await channel.command(timer)).number == 2


@pytest.mark.req("CC-22", "CC-16")
async def test_relays_at_once_make_one_command_of_each_intent_and_no_number_twice(channel: Channel) -> None:
    intents = [await channel.stage(channel.request(f"t{n % 3}")) for n in range(12)]
    await gathered(*(channel.relay() for _ in range(4)))
    await channel.relay()
    commands = [await channel.command(intent) for intent in intents]
    for target in range(3):
        numbers = sorted(c.number for c in commands if c.target.id == f"t{target}")
        assert numbers == [1, 2, 3, 4]


@pytest.mark.req("CC-07", "CC-21")
async def test_relaying_asks_no_owner(channel: Channel) -> None:
    intent = await channel.stage(channel.request(owner="post"))
    await channel.stage()
    assert await channel.relay() == 2
    assert channel.ledger.asked == []
    assert channel.post.calls == []
    assert (await channel.command(intent)).status is CommandStatus.PENDING


@pytest.mark.req("CC-23")
async def test_what_comes_too_late_expires_and_is_nobodys_refusal(channel: Channel) -> None:
    not_after = after_ms(channel.clock.now(), 1_000)
    relayed = await channel.stage(channel.request(not_after=not_after))
    await channel.relay()
    waiting = await channel.stage(channel.request("b", not_after=not_after))
    channel.clock.advance(2_000)
    await channel.quiesce()
    expired = await channel.command(relayed)
    assert (expired.status, expired.fence) == (CommandStatus.EXPIRED, 0), "nobody claims what is too late"
    assert await channel.settlement(relayed) is None
    ended = await channel.store.read(lambda tx: tx.intents.get(waiting.id))
    assert ended is not None
    assert ended.status is IntentStatus.EXPIRED
    assert channel.ledger.asked == []
    assert await channel.used() == 0
