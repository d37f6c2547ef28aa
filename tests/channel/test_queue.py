"""What operators see and may do: delivery and effect apart, and no verb that ends uncertainty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import Intent
from quiesce.domain.deliveries import CommandStatus, Effect, HistoryEvent
from quiesce.domain.errors import InvalidInput, NotFound, Refused
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.runtime.queue import QueueService
from quiesce.runtime.service import Caller
from tests.channel.kit import LEASE_MS, Channel


@pytest.mark.req("CC-62", "CC-63", "CC-01", "CC-03")
async def test_delivery_and_effect_are_two_answers(channel: Channel) -> None:
    service = QueueService(channel.env)
    channel.ledger.refuses = lambda command: "" if command.target.id == "yes" else "not here"
    channel.post.cut_before = True
    staged = await channel.stage(channel.request("later"))
    assert (await service.show(staged.id)).to_json()["has_arrived"] is False
    yes = await channel.stage(channel.request("yes"))
    no = await channel.stage(channel.request("no"))
    lost = await channel.stage(channel.request("x", owner="post"))
    await channel.quiesce()
    told = [(e.delivery, e.effect) for e in [await service.show(i.id) for i in (yes, no, lost)]]
    assert told == [("settled", Effect.ACCEPTED), ("settled", Effect.REJECTED), ("unknown", Effect.UNKNOWN)]
    assert {e.intent.id for e in await service.entries()} == {staged.id, yes.id, no.id, lost.id}
    timers = [await channel.stage(channel.request("a", due_at=after_ms(channel.clock.now(), wait))) for wait in (9_000, 5_000)]
    listed = await service.entries(limit=2)
    assert [e.intent.id for e in listed[:2]] == [timers[1].id, timers[0].id], "newest first"
    assert all(e.command is not None for e in listed[2:]), "and so many commands behind them"
    assert [(e.delivery, e.effect) for e in listed[:2]] == [("staged", Effect.NOT_YET)] * 2
    assert [e.intent.id for e in await service.entries(statuses=["staged"], limit=1)] == [timers[1].id]
    behind = listed[-1].command
    assert behind is not None
    rest = await service.entries(before=behind.event_id)
    assert {e.intent.id for e in (*listed[2:], *rest)} == {staged.id, yes.id, no.id, lost.id}
    assert len(rest) == 2
    with pytest.raises(InvalidInput, match="status"):
        await service.entries(statuses=["lost"])
    assert [e.intent.id for e in await service.entries(statuses=["unknown"])] == [lost.id]
    shown = (await service.show(yes.id)).to_json()
    assert shown["receipt"] is not None
    assert "completed" not in shown


@pytest.mark.req("CC-24", "CC-58")
async def test_counts_tell_what_is_unfinished_and_since_when(channel: Channel) -> None:
    service = QueueService(channel.env)
    channel.post.cut_before = True
    await channel.stage(channel.request("x", owner="post"))
    await channel.quiesce()
    channel.clock.advance(5_000)
    await channel.stage()
    found = (await service.counts()).to_json()
    assert found["statuses"] == {
        "staged": {"count": 1, "oldest_age_ms": 0},
        "unknown": {"count": 1, "oldest_age_ms": 5_000},
    }
    assert found["scopes"] == [{"scope": "default", "used": 2, "bound": 10_000, "reserve": 100}]
    room = await service.set_capacity("default", bound=2, reserve=0)
    assert (room.used, room.bound) == (2, 2)
    with pytest.raises(InvalidInput, match="bound"):
        await service.set_capacity("default", bound=-1, reserve=0)


@pytest.mark.req("CC-08", "CC-04")
async def test_another_tenants_command_does_not_exist(channel: Channel) -> None:
    intent = await channel.stage()
    await channel.relay()
    stranger = QueueService(channel.env, Caller(tenant="somebody else"))
    event_id = (await channel.command(intent)).event_id
    for name in (intent.id, event_id):
        with pytest.raises(NotFound):
            await stranger.show(name)
    with pytest.raises(NotFound):
        await stranger.quarantine(event_id, why="mine now")
    with pytest.raises(NotFound):
        await stranger.withdraw(intent.id)
    assert await stranger.entries() == []
    assert (await stranger.counts()).to_json() == {"statuses": {}, "scopes": []}


@pytest.mark.req("CC-54", "CC-56", "CC-59", "C54")
async def test_what_nobody_delivers_is_taken_out_of_the_way_and_offered_again_when_somebody_can(channel: Channel) -> None:
    service = QueueService(channel.env)
    strange = replace(channel.request().kind, version=2)
    stuck = await channel.stage(channel.request("a", kind=strange))
    await channel.quiesce()
    held = await service.quarantine(stuck.id, why="nobody knows version 2")
    assert (held.status, held.reason) == (CommandStatus.QUARANTINED, "nobody knows version 2")
    with pytest.raises(Refused, match="only pending and unknown"):
        await service.quarantine(stuck.id, why="again")
    assert await channel.used() == 1
    again = await service.requeue(stuck.id, why="it does now")
    assert (again.status, again.attempts) == (CommandStatus.PENDING, 0)
    with pytest.raises(Refused, match="only quarantined"):
        await service.requeue(stuck.id, why="twice")
    assert [str(line.what) for line in await service.history(stuck.id)] == ["relayed", "quarantined", "requeued"]


async def held_in_uncertainty(channel: Channel) -> Intent:
    channel.post.cut_before = True
    intent = await channel.stage(channel.request("x", owner="post"))
    await channel.quiesce()
    await QueueService(channel.env).quarantine(intent.id, why="enough of it")
    channel.post.cut_before = False
    return intent


@pytest.mark.req("CC-53", "CC-54", "CC-59")
async def test_what_is_held_in_uncertainty_is_read_again_at_once_and_settled_by_its_owners_receipt(channel: Channel) -> None:
    intent = await held_in_uncertainty(channel)
    channel.post.land(channel.post.lands_later[0])
    reconciling = await QueueService(channel.env).reconcile(intent.id, why="the post is back")
    assert (reconciling.status, reconciling.is_uncertain) == (CommandStatus.UNKNOWN, True)
    assert (reconciling.attempts, reconciling.failures) == (0, 0)
    await channel.quiesce()
    assert (await QueueService(channel.env).show(intent.id)).effect is Effect.ACCEPTED
    assert len(channel.post.effects) == 1
    told = await channel.history(intent)
    assert [str(what) for what in told[-3:]] == ["reconciling", "claimed", "settled"]


@pytest.mark.req("CC-49", "CC-50", "CC-54")
async def test_what_is_read_again_is_not_admitted_again(channel: Channel) -> None:
    intent = await held_in_uncertainty(channel)
    asked = channel.post.calls.count(("admit", (await channel.command(intent)).event_id))
    await QueueService(channel.env).reconcile(intent.id, why="look again")
    await channel.quiesce()
    entry = await QueueService(channel.env).show(intent.id)
    assert (entry.delivery, entry.effect) == ("unknown", Effect.UNKNOWN)
    assert channel.post.calls.count(("admit", (await channel.command(intent)).event_id)) == asked == 1
    assert await channel.used() == 1


@pytest.mark.req("CC-54", "QA-10")
async def test_only_what_is_quarantined_and_uncertain_is_reconciled_by_hand(channel: Channel) -> None:
    service = QueueService(channel.env)
    intent = await channel.stage(channel.request("a", kind=replace(channel.request().kind, version=2)))
    await channel.quiesce()
    with pytest.raises(Refused, match="is pending; only quarantined"):
        await service.reconcile(intent.id, why="now")
    await service.quarantine(intent.id, why="nobody knows it")
    with pytest.raises(Refused, match="not uncertain: requeue it"):
        await service.reconcile(intent.id, why="now")
    assert await channel.history(intent) == [HistoryEvent.RELAYED, HistoryEvent.QUARANTINED]


@pytest.mark.req("CC-54", "CC-59")
async def test_no_verb_ends_uncertainty(channel: Channel) -> None:
    service = QueueService(channel.env)
    channel.post.cut_before = True
    intent = await channel.stage(channel.request("x", owner="post"))
    await channel.quiesce()
    await service.quarantine(intent.id, why="enough of it")
    with pytest.raises(Refused, match="owner's receipt alone"):
        await service.requeue(intent.id, why="I wish")
    entry = await service.show(intent.id)
    assert (entry.delivery, entry.effect) == ("quarantined", Effect.UNKNOWN)
    assert await channel.used() == 1


async def test_an_intent_that_was_not_relayed_can_only_be_withdrawn(channel: Channel) -> None:
    service = QueueService(channel.env)
    intent = await channel.stage()
    with pytest.raises(NotFound, match="has not become a command"):
        await service.quarantine(intent.id, why="now")
    assert (await service.withdraw(intent.id)).status == "withdrawn"
    entry = await service.show(intent.id)
    assert (entry.delivery, entry.effect) == ("withdrawn", Effect.NEVER)
    assert await service.history(intent.id) == []
    with pytest.raises(InvalidInput, match="why"):
        await service.requeue(intent.id, why="w" * (DEFAULT_LIMITS.text_chars_max + 1))
    channel.clock.advance(LEASE_MS)
