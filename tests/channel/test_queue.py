"""What operators see and may do: delivery and effect apart, and no verb that ends uncertainty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.deliveries import CommandStatus, Effect
from quiesce.domain.errors import InvalidInput, NotFound, Refused
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
