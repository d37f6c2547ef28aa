"""What is stuck in an incarnation that is over holds up nobody of the next one, and stays what it is: unknown, and readable."""

from __future__ import annotations

import pytest

from quiesce.domain.commands import Intent, Target
from quiesce.domain.deliveries import CommandStatus, Step
from quiesce.domain.instant import after_ms
from quiesce.runtime.commands import supersede_tx
from quiesce.runtime.deliveries import quarantine_tx
from tests.channel.kit import LEASE_MS, Channel

A = Target(owner="post", id="a")


async def superseded(channel: Channel, revision: int = 1, target: Target = A) -> None:
    await channel.store.transact(lambda tx: supersede_tx(tx, target, revision))


async def stuck(channel: Channel, how: str) -> Intent:
    """Stage a barrier whose answer is lost; then somebody may hold it, or be about to read it again."""
    channel.post.cut_before = True
    intent = await channel.stage(channel.request("a", owner="post"))
    await channel.quiesce()
    channel.post.cut_before = False
    command = await channel.command(intent)
    if how == "quarantined":
        await channel.store.transact(lambda tx: quarantine_tx(tx, command.event_id, why="held", by="ada"))
    if how == "claimed":
        channel.clock.advance(LEASE_MS)
        assert len(await channel.claim()) == 1
    return intent


@pytest.mark.req("G-09", "G-10", "G-11", "CC-17", "CC-33")
@pytest.mark.parametrize("how", ["unknown", "quarantined", "claimed"])
async def test_what_is_stuck_in_an_incarnation_that_is_over_holds_up_nobody(channel: Channel, how: str) -> None:
    old = await stuck(channel, how)
    behind = await channel.stage(channel.request("a", owner="post"))
    await channel.relay()
    assert (await channel.command(behind)).claimable_at is None, "within its incarnation it is a barrier"
    await superseded(channel)
    new = await channel.stage(channel.request("a", owner="post", revision=1))
    await channel.quiesce()
    assert (await channel.command(behind)).status is CommandStatus.DISCARDED
    assert (await channel.command(new)).status is CommandStatus.SETTLED
    assert channel.post.effects == [(await channel.command(new)).key]
    assert (await channel.command(old)).status is CommandStatus(how)
    assert await channel.used() == 1, "what is not known keeps its place"


@pytest.mark.req("G-09", "G-11", "CC-17")
async def test_a_command_relayed_behind_what_is_stuck_in_an_earlier_incarnation_is_claimable_at_once(channel: Channel) -> None:
    await stuck(channel, "unknown")
    await superseded(channel)
    new = await channel.stage(channel.request("a", owner="post", revision=1))
    await channel.relay()
    assert (await channel.command(new)).claimable_at == channel.clock.now()


@pytest.mark.req("G-11", "CC-40", "CC-54")
async def test_its_receipt_settles_it_for_the_old_incarnation_and_decides_nothing_for_the_new_one(channel: Channel) -> None:
    old = await stuck(channel, "unknown")
    await superseded(channel)
    new = await channel.stage(channel.request("a", owner="post", revision=1))
    await channel.quiesce()
    channel.post.land(channel.post.lands_later[0])
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(old)).status is CommandStatus.SETTLED
    assert channel.post.effects == [(await channel.command(new)).key, (await channel.command(old)).key]
    assert await channel.used() == 0


@pytest.mark.req("G-09", "CC-17")
async def test_a_barrier_of_the_present_incarnation_still_holds_up_what_comes_behind_it(channel: Channel) -> None:
    await stuck(channel, "unknown")
    await superseded(channel)
    channel.post.cut_before = True
    lost = await channel.stage(channel.request("a", owner="post", revision=1))
    await channel.quiesce()
    channel.post.cut_before = False
    behind = await channel.stage(channel.request("a", owner="post", revision=1))
    await channel.quiesce()
    assert (await channel.command(lost)).status is CommandStatus.UNKNOWN
    assert (await channel.command(behind)).claimable_at is None
    await superseded(channel, 2)
    assert (await channel.command(behind)).claimable_at is not None, "it is let through, to be discarded"


@pytest.mark.req("CC-33", "CC-31")
async def test_a_pass_that_only_closes_commands_says_that_it_has_dealt_with_something(channel: Channel) -> None:
    await channel.stage(channel.request("b", not_after=after_ms(channel.clock.now(), 500)))
    for number in range(2):
        await channel.stage(channel.request("a", key=f"{number}"))
    await channel.relay()
    await superseded(channel, target=Target(owner="ledger", id="a"))
    channel.clock.advance(500)
    new = await channel.stage(channel.request("a", revision=1))
    await channel.relay()
    worker = channel.worker()
    assert await worker.pass_once() == 2, "one is too late, one superseded; behind that one others wait"
    assert worker.state.claimed == 0
    await channel.quiesce(worker)
    assert (await channel.command(new)).status is CommandStatus.SETTLED
    assert worker.state.steps == {Step.ADMIT: 1}
