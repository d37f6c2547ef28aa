"""Claims: a time-limited right to deliver, checked by whoever decides, in the transaction in which it decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from quiesce.domain.commands import Target
from quiesce.domain.deliveries import Absent, Command, CommandStatus, EventId, Step
from quiesce.domain.errors import StaleClaim
from quiesce.domain.ids import Fence, WorkerId
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import supersede_tx
from quiesce.runtime.deliveries import act_tx, answered_tx, release_claims_tx, renew_claims_tx, unanswered_tx
from quiesce.runtime.owners import Delivery
from tests.channel.kit import LEASE_MS, Channel, a_receipt, gathered


async def started(channel: Channel) -> Command:
    """A claimed command of the ledger, its admission marked ahead."""
    await channel.stage()
    await channel.relay()
    (claimed,) = await channel.claim()
    reading = Absent(excludes_in_flight=True)
    step, marked = await channel.store.transact(lambda tx: act_tx(tx, channel.env, claimed, reading))
    assert step is Step.ADMIT
    return marked


def delivery_of(command: Command) -> Delivery:
    assert command.claim is not None
    return Delivery(command=command, claim=command.claim)


@pytest.mark.req("CC-29", "CC-30")
async def test_workers_at_once_get_each_command_once_and_the_fence_grows(channel: Channel) -> None:
    for n in range(20):
        await channel.stage(channel.request(f"t{n}"))
    await channel.relay()
    claims = await asyncio.gather(*(channel.claim() for _ in range(4)))
    handed = Counter(command.event_id for claimed in claims for command in claimed)
    handed.update(command.event_id for command in await channel.claim())  # passed over while others looked at them
    assert set(handed.values()) == {1}
    assert len(handed) == 20
    channel.clock.advance(LEASE_MS)
    again = await channel.claim()
    assert {command.fence for command in again} == {Fence(2)}


@pytest.mark.req("CC-29", "CC-37", "CC-38")
async def test_a_live_claim_is_left_alone_and_an_ended_one_is_not_revived(channel: Channel) -> None:
    await channel.stage()
    await channel.relay()
    (claimed,) = await channel.claim()
    assert claimed.claim is not None
    channel.clock.advance(LEASE_MS - 1)
    assert await channel.claim() == []
    claims = {claimed.event_id: claimed.claim}
    assert await channel.store.transact(lambda tx: renew_claims_tx(tx, claims, lease_ms=LEASE_MS)) == set()
    channel.clock.advance(LEASE_MS - 1)
    assert await channel.claim() == [], "the beat has moved its end"
    channel.clock.advance(1)
    assert await channel.store.transact(lambda tx: renew_claims_tx(tx, claims, lease_ms=LEASE_MS)) == {claimed.event_id}
    (other,) = await channel.claim()
    assert other.fence == 2
    assert await channel.store.transact(lambda tx: renew_claims_tx(tx, claims, lease_ms=LEASE_MS)) == {claimed.event_id}


@pytest.mark.req("CC-34", "CC-35")
@pytest.mark.parametrize("changed", ["worker", "fence", "expiry", "target", "revision", "command"])
async def test_the_owner_admits_only_under_the_very_claim_that_is_live(channel: Channel, changed: str) -> None:
    marked = await started(channel)
    delivery = delivery_of(marked)
    match changed:
        case "worker":
            delivery = replace(delivery, claim=replace(delivery.claim, worker_id=WorkerId("somebody else")))
        case "fence":
            delivery = replace(delivery, claim=replace(delivery.claim, fence=Fence(delivery.claim.fence + 1)))
        case "expiry":
            channel.clock.advance(LEASE_MS)
        case "target":
            intent = replace(marked.intent, target=Target(owner="ledger", id="another"))
            delivery = replace(delivery, command=replace(marked, intent=intent))
        case "revision":
            await channel.store.transact(lambda tx: supersede_tx(tx, marked.target, 1))
        case _:
            delivery = replace(delivery, command=replace(marked, event_id=EventId(channel.env.new_id())))
    with pytest.raises(StaleClaim):
        await channel.ledger.admit(channel.env, delivery)
    assert await channel.effects() == []
    assert await channel.store.read(lambda tx: tx.admissions.get(marked.key)) is None


@pytest.mark.req("CC-35")
async def test_a_lease_that_ends_inside_the_admission_admits_nothing(channel: Channel) -> None:
    marked = await started(channel)

    def sleeps(tx: Transaction, command: Command) -> None:
        assert tx.now == channel.clock.now()
        channel.clock.advance(LEASE_MS)

    channel.ledger.inside = sleeps
    with pytest.raises(StaleClaim, match="is over"):
        await channel.ledger.admit(channel.env, delivery_of(marked))
    channel.ledger.inside = lambda tx, command: None
    assert await channel.effects() == []
    await channel.quiesce()
    assert len(await channel.effects()) == 1


@pytest.mark.req("CC-34", "CC-35", "CC-47")
async def test_an_admission_and_a_takeover_at_once_have_one_winner(channel: Channel) -> None:
    for _ in range(10):
        marked = await started(channel)
        before = len(await channel.effects())
        channel.clock.advance(LEASE_MS)
        results = await gathered(channel.ledger.admit(channel.env, delivery_of(marked)), channel.claim(channel.ledger))
        assert isinstance(results[0], StaleClaim), results
        assert len(await channel.effects()) == before
        channel.clock.advance(LEASE_MS)
        await channel.quiesce()
        assert len(await channel.effects()) == before + 1


@pytest.mark.req("CC-47")
async def test_two_admissions_of_one_command_give_one_effect_and_one_receipt(channel: Channel) -> None:
    marked = await started(channel)
    results = await gathered(*(channel.ledger.admit(channel.env, delivery_of(marked)) for _ in range(5)))
    assert len({str(result) for result in results}) == 1, results
    assert len(await channel.effects()) == 1
    asked = len(channel.ledger.asked)
    assert await channel.ledger.admit(channel.env, delivery_of(marked)) == results[0]
    assert len(channel.ledger.asked) == asked, "a command that was decided is not decided again"


@pytest.mark.req("CC-40", "CC-70")
async def test_whoever_lost_its_claim_settles_nothing(channel: Channel) -> None:
    marked = await started(channel)
    channel.clock.advance(LEASE_MS)
    (taken,) = await channel.claim()
    receipt = a_receipt(marked)
    reading = Absent(excludes_in_flight=True)
    assert await channel.store.transact(lambda tx: answered_tx(tx, marked, receipt)) is None
    assert await channel.store.transact(lambda tx: unanswered_tx(tx, channel.env, marked, "lost")) is None
    step, seen = await channel.store.transact(lambda tx: act_tx(tx, channel.env, marked, reading))
    assert step is None
    assert seen == taken
    assert await channel.store.read(lambda tx: tx.commands.get(marked.event_id)) == taken


@pytest.mark.req("CC-41", "CC-60")
async def test_a_worker_that_slept_behind_its_admission_still_settles_if_nobody_else_did(channel: Channel) -> None:
    marked = await started(channel)
    receipt = await channel.ledger.admit(channel.env, delivery_of(marked))
    channel.clock.advance(10 * LEASE_MS)
    settled = await channel.store.transact(lambda tx: answered_tx(tx, marked, receipt))
    assert settled is not None
    assert settled.status is CommandStatus.SETTLED


@pytest.mark.req("CC-29")
async def test_a_worker_that_stops_hands_its_claims_back_at_once(channel: Channel) -> None:
    await channel.stage()
    await channel.relay()
    (claimed,) = await channel.claim()
    assert claimed.claim is not None
    claims = {claimed.event_id: claimed.claim}
    await channel.store.transact(lambda tx: release_claims_tx(tx, claims))
    (other,) = await channel.claim()
    assert other.fence == 2


@pytest.mark.req("CC-28", "C104")
async def test_claims_are_fair_over_scopes(channel: Channel) -> None:
    for n in range(100):
        await channel.stage(channel.request(f"busy{n}", scope="busy"))
    for n in range(2):
        await channel.stage(channel.request(f"calm{n}", scope=f"calm{n}"))
    await channel.relay()
    claimed = await channel.claim()
    scopes = Counter(command.intent.scope for command in claimed)
    assert (scopes["calm0"], scopes["calm1"]) == (1, 1)
    assert {command.intent.scope for command in claimed[:3]} == {"busy", "calm0", "calm1"}


@pytest.mark.req("CC-28", "CC-05")
async def test_no_owner_is_asked_inside_a_transaction_of_the_channel(channel: Channel) -> None:
    """A remote owner that waits holds nothing up: claims and deliveries of others go on meanwhile."""
    waiting, released = asyncio.Event(), asyncio.Event()

    async def gate() -> None:
        waiting.set()
        await released.wait()

    channel.post.gate = gate
    await channel.stage(channel.request("a", owner="post"))
    slow = asyncio.create_task(channel.worker(channel.post).pass_once())
    await asyncio.wait_for(waiting.wait(), 20)
    await channel.stage(channel.request("b"))
    await channel.quiesce(channel.worker(channel.ledger))
    assert len(await channel.effects()) == 1
    released.set()
    await slow
    assert len(channel.post.effects) == 1


@pytest.mark.req("CC-38", "CC-28")
async def test_a_claim_is_extended_for_as_long_as_its_owner_takes(channel: Channel) -> None:
    waiting, released = asyncio.Event(), asyncio.Event()

    async def gate() -> None:
        waiting.set()
        await released.wait()

    channel.post.gate = gate
    intent = await channel.stage(channel.request(owner="post"))
    worker = channel.worker(channel.post)
    await worker.start()
    try:
        await asyncio.wait_for(waiting.wait(), 20)
        first = (await channel.command(intent)).expires_at
        assert first is not None
        for _ in range(5):
            await _until_true(lambda: channel.clock.sleepers == 1)  # the keeper waits for its next beat
            channel.clock.advance(LEASE_MS / 2)
            async with asyncio.timeout(20):
                while ((await channel.command(intent)).expires_at or 0) < channel.clock.now() + LEASE_MS * 900:
                    await asyncio.sleep(0.002)
        assert await channel.claim(channel.post) == []
        released.set()
        async with asyncio.timeout(20):
            while (await channel.command(intent)).status is not CommandStatus.SETTLED:
                await asyncio.sleep(0.002)
        assert (await channel.command(intent)).fence == 1
    finally:
        released.set()
        await worker.close()


async def _until_true(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.002)
