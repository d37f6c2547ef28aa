"""Delivery: the receipt is read first, the effect happens once, and what cannot be known stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import Target
from quiesce.domain.deliveries import Admission, CommandStatus, HistoryEvent, Step
from quiesce.domain.errors import InvalidInput, Refused
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.runtime.commands import supersede_tx
from quiesce.runtime.deliveries import act_tx, push_receipt_tx, requeue_tx
from quiesce.runtime.owners import Delivery
from tests.channel.kit import LEASE_MS, PASS, STOP, Channel, a_receipt


@pytest.mark.req("CC-01", "CC-39", "CC-48", "CC-65", "CC-70")
async def test_a_command_takes_effect_once_and_is_settled_from_its_owners_receipt(channel: Channel) -> None:
    intent = await channel.stage()
    await channel.quiesce()
    command = await channel.command(intent)
    settlement = await channel.settlement(intent)
    receipt = await channel.store.read(lambda tx: tx.admissions.get(command.key))
    assert len(await channel.effects()) == 1
    assert command.status is CommandStatus.SETTLED
    assert settlement is not None
    assert settlement.receipt == receipt
    assert settlement.fence == command.fence == 1
    assert await channel.history(intent) == [
        HistoryEvent.RELAYED,
        HistoryEvent.CLAIMED,
        HistoryEvent.STARTED,
        HistoryEvent.SETTLED,
    ]
    assert await channel.used() == 0


@pytest.mark.req("CC-03", "CC-36", "CC-42")
async def test_a_refused_command_is_settled_as_refused_and_not_offered_again(channel: Channel) -> None:
    channel.ledger.refuses = lambda command: "eve may not"
    intent = await channel.stage(channel.request(subject="eve"))
    await channel.quiesce()
    settlement = await channel.settlement(intent)
    assert settlement is not None
    assert (settlement.receipt.verdict, settlement.receipt.reason) == (Admission.REJECTED, "eve may not")
    assert await channel.effects() == []
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert len(channel.ledger.asked) == 1


@pytest.mark.req("CC-39", "CC-53")
async def test_the_receipt_is_read_before_every_admission(channel: Channel) -> None:
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    event_id = (await channel.command(intent)).event_id
    assert channel.post.calls == [("read", event_id), ("admit", event_id)]


@pytest.mark.req("CC-02", "CC-41", "CC-60", "C12")
@pytest.mark.parametrize("owner", ["ledger", "post"])
async def test_a_lost_acknowledgement_is_settled_from_the_receipt_and_the_effect_stays_one(channel: Channel, owner: str) -> None:
    intent = await channel.stage(channel.request(owner=owner))
    await channel.relay()
    (claimed,) = await channel.claim()
    reading = await (channel.ledger if owner == "ledger" else channel.post).read_receipt(channel.env, claimed)
    step, marked = await channel.store.transact(lambda tx: act_tx(tx, channel.env, claimed, reading))
    assert step is Step.ADMIT
    assert marked.claim is not None
    delivery = Delivery(command=marked, claim=marked.claim)
    admitted = await (channel.ledger if owner == "ledger" else channel.post).admit(channel.env, delivery)
    # The worker dies here: the owner has committed, the delivery has not.
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    settlement = await channel.settlement(intent)
    assert settlement is not None
    assert settlement.receipt == admitted
    assert settlement.fence == 2
    assert len(await channel.effects()) + len(channel.post.effects) == 1
    assert len(channel.ledger.asked) + sum(what == "admit" for what, _ in channel.post.calls) == 1
    assert (await channel.command(intent)).event_id == claimed.event_id


@pytest.mark.req("CC-44", "CC-45", "CC-52")
async def test_what_cannot_be_read_is_put_off_ever_longer_and_admits_nothing(channel: Channel) -> None:
    channel.post.is_unreadable = True
    intent = await channel.stage(channel.request(owner="post"))
    waits = []
    for _ in range(5):
        await channel.quiesce()
        command = await channel.command(intent)
        assert (command.status, command.is_uncertain) == (CommandStatus.PENDING, False)
        assert command.claimable_at is not None
        waits.append((command.claimable_at - channel.clock.now()) // 1000)
        channel.clock.advance(waits[-1])
    assert waits == [1_000, 2_000, 4_000, 8_000, 8_000]
    assert all(what == "read" for what, _ in channel.post.calls)
    channel.post.is_unreadable = False
    await channel.quiesce()
    assert channel.post.effects == [(await channel.command(intent)).key]


@pytest.mark.req("CC-49", "CC-50", "CC-51", "CC-54", "CC-24", "CC-25")
async def test_an_answer_that_was_lost_leaves_the_command_unknown_until_the_owners_receipt_shows(channel: Channel) -> None:
    channel.post.cut_before = True
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    for _ in range(3):
        command = await channel.command(intent)
        assert (command.status, command.is_uncertain) == (CommandStatus.UNKNOWN, True)
        assert await channel.used() == 1
        channel.clock.advance(10 * LEASE_MS)
        await channel.quiesce()
    assert channel.post.effects == [], "absent now is not proven absent: the request may still land"
    assert sum(what == "admit" for what, _ in channel.post.calls) == 1
    channel.post.land(channel.post.lands_later[0])
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    settlement = await channel.settlement(intent)
    assert settlement is not None
    assert settlement.receipt.verdict is Admission.ACCEPTED
    assert len(channel.post.effects) == 1
    assert await channel.used() == 0


@pytest.mark.req("CC-49", "CC-41")
async def test_an_answer_cut_on_its_way_back_is_found_by_the_next_reading(channel: Channel) -> None:
    channel.post.cut_behind = True
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.UNKNOWN
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED
    assert len(channel.post.effects) == 1


@pytest.mark.req("CC-46", "CC-50", "G-13")
async def test_a_remote_owner_that_proves_the_old_request_cannot_land_may_be_asked_again(channel: Channel) -> None:
    channel.post.cut_before = True
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    channel.post.cut_before = False
    channel.post.proves_absence = True
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED
    assert len(channel.post.effects) == 1


@pytest.mark.req("CC-46", "G-12")
async def test_a_remote_admission_that_began_is_not_repeated_by_the_next_worker(channel: Channel) -> None:
    intent = await channel.stage(channel.request(owner="post"))
    await channel.relay()
    (claimed,) = await channel.claim()
    reading = await channel.post.read_receipt(channel.env, claimed)
    await channel.store.transact(lambda tx: act_tx(tx, channel.env, claimed, reading))
    # The worker dies between the mark and the request, or behind it: nobody can tell.
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.UNKNOWN
    assert channel.post.effects == []


@pytest.mark.req("CC-46", "CC-47")
async def test_a_local_admission_that_began_and_left_no_receipt_is_made_again(channel: Channel) -> None:
    intent = await channel.stage()
    await channel.relay()
    (claimed,) = await channel.claim()
    reading = await channel.ledger.read_receipt(channel.env, claimed)
    step, marked = await channel.store.transact(lambda tx: act_tx(tx, channel.env, claimed, reading))
    assert step is Step.ADMIT
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED
    assert marked.claim is not None
    late = await channel.ledger.admit(channel.env, Delivery(command=marked, claim=marked.claim))
    settlement = await channel.settlement(intent)
    assert settlement is not None
    assert late == settlement.receipt, "the old worker, awake again, is told what was decided"
    assert len(await channel.effects()) == 1


@pytest.mark.req("CC-55", "CC-57", "CC-58", "CC-59", "CC-25")
async def test_used_up_attempts_quarantine_and_uncertainty_survives_it(channel: Channel) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_attempts_max=3))
    worker = channel.worker(env=env)
    channel.post.cut_before = True
    intent = await channel.stage(channel.request(owner="post"))
    for _ in range(6):
        await channel.quiesce(worker)
        channel.clock.advance(10 * LEASE_MS)
    command = await channel.command(intent)
    assert (command.status, command.is_uncertain, command.claimable_at) == (CommandStatus.QUARANTINED, True, None)
    assert "3 attempts are used up" in command.reason
    assert await channel.used() == 1
    assert await channel.settlement(intent) is None
    with pytest.raises(Refused, match="may have taken effect"):
        await channel.store.transact(lambda tx: requeue_tx(tx, command.event_id, why="please", by="ada"))
    pushed = a_receipt(command)
    settled = await channel.store.transact(lambda tx: push_receipt_tx(tx, command.event_id, pushed, by="post"))
    assert settled.status is CommandStatus.SETTLED
    assert await channel.used() == 0


@pytest.mark.req("CC-55", "CC-70")
async def test_an_owner_that_cannot_decide_is_asked_again_then_the_command_is_held_for_a_person(channel: Channel) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_attempts_max=2))
    worker = channel.worker(env=env)
    channel.ledger.breaks = lambda command: True
    intent = await channel.stage()
    for _ in range(4):
        await channel.quiesce(worker)
        channel.clock.advance(10 * LEASE_MS)
    command = await channel.command(intent)
    assert (command.status, command.is_uncertain) == (CommandStatus.QUARANTINED, False)
    assert "ValueError" in command.reason
    assert "torn" not in command.reason, "what an owner raises may hold secrets"
    assert await channel.effects() == [], "each time everything was rolled back"
    channel.ledger.breaks = lambda command: False
    await channel.store.transact(lambda tx: requeue_tx(tx, command.event_id, why="mended", by="ada"))
    await channel.quiesce(worker)
    assert len(await channel.effects()) == 1


@pytest.mark.req("CC-64", "CC-54")
async def test_a_receipt_that_its_owner_brings_settles_once_whoever_comes_first(channel: Channel) -> None:
    channel.post.cut_behind = True
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    command = await channel.command(intent)
    receipt = channel.post.receipts[command.key]
    for _ in range(2):
        await channel.store.transact(lambda tx: push_receipt_tx(tx, command.event_id, receipt, by="post"))
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert (await channel.history(intent)).count(HistoryEvent.SETTLED) == 1
    assert await channel.used() == 0
    other = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    event_id = (await channel.command(other)).event_id
    with pytest.raises(InvalidInput, match="is not the key"):
        await channel.store.transact(lambda tx: push_receipt_tx(tx, event_id, receipt, by="post"))


@pytest.mark.req("CC-58", "CC-02")
async def test_a_receipt_of_what_never_began_is_not_believed(channel: Channel) -> None:
    intent = await channel.stage(channel.request(owner="post"))
    await channel.relay()
    command = await channel.command(intent)
    with pytest.raises(Refused, match="no admission of it began"):
        await channel.store.transact(lambda tx: push_receipt_tx(tx, command.event_id, a_receipt(command), by="post"))


@pytest.mark.req("CC-31", "CC-33", "CC-40", "C02")
async def test_a_command_for_a_superseded_target_is_discarded_and_decides_nothing(channel: Channel) -> None:
    old = await channel.stage(channel.request("a", kind=STOP))
    await channel.relay()
    await channel.store.transact(lambda tx: supersede_tx(tx, Target(owner="ledger", id="a"), 1))
    new = await channel.stage(channel.request("a", revision=1))
    await channel.quiesce()
    assert (await channel.command(old)).status is CommandStatus.DISCARDED
    assert await channel.settlement(old) is None
    assert (await channel.command(new)).status is CommandStatus.SETTLED
    assert len(channel.ledger.asked) == 1
    assert await channel.used() == 0


@pytest.mark.req("CC-33", "CC-40", "G-11")
async def test_what_began_before_its_target_was_superseded_stays_unknown_and_may_still_be_read(channel: Channel) -> None:
    channel.post.cut_before = True
    intent = await channel.stage(channel.request("a", owner="post"))
    await channel.quiesce()
    await channel.store.transact(lambda tx: supersede_tx(tx, Target(owner="post", id="a"), 1))
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.UNKNOWN
    channel.post.land(channel.post.lands_later[0])
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    settlement = await channel.settlement(intent)
    assert settlement is not None, "settled for the old incarnation; nothing is decided for the new one"


@pytest.mark.req("CC-17", "CC-18", "G-09")
async def test_one_target_keeps_its_order_and_others_do_not_wait_for_it(channel: Channel) -> None:
    channel.post.is_unreadable = True
    first = await channel.stage(channel.request("a", owner="post", key="first"))
    second = await channel.stage(channel.request("a", owner="post", key="second"))
    other = await channel.stage(channel.request("b", owner="ledger", key="other"))
    await channel.quiesce()
    assert (await channel.command(other)).status is CommandStatus.SETTLED
    assert (await channel.command(second)).attempts == 0
    channel.post.is_unreadable = False
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert channel.post.effects == [(await channel.command(first)).key, (await channel.command(second)).key]


@pytest.mark.req("G-09", "CC-17")
async def test_an_unknown_command_holds_up_later_ones_but_no_cancel(channel: Channel) -> None:
    channel.post.cut_before = True
    await channel.stage(channel.request("a", owner="post"))
    await channel.quiesce()
    channel.post.cut_before = False
    later = await channel.stage(channel.request("a", owner="post"))
    stop = await channel.stage(channel.request("a", owner="post", kind=STOP))
    await channel.quiesce()
    assert (await channel.command(stop)).status is CommandStatus.SETTLED
    assert (await channel.command(later)).status is CommandStatus.PENDING
    channel.post.land(channel.post.lands_later[0])
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(later)).status is CommandStatus.SETTLED


@pytest.mark.req("G-09")
async def test_a_kind_that_is_no_barrier_holds_up_nobody_once_it_is_unknown(channel: Channel) -> None:
    channel.post.cut_before = True
    first = await channel.stage(channel.request("a", owner="post", kind=PASS))
    await channel.quiesce()
    channel.post.cut_before = False
    later = await channel.stage(channel.request("a", owner="post"))
    await channel.quiesce()
    assert (await channel.command(first)).status is CommandStatus.UNKNOWN
    assert (await channel.command(later)).status is CommandStatus.SETTLED


@pytest.mark.req("CC-32", "CC-56", "C54")
async def test_a_worker_is_not_handed_what_it_does_not_understand(channel: Channel) -> None:
    strange = replace(channel.request().kind, version=2)
    intent = await channel.stage(channel.request(kind=strange))
    unowned = await channel.stage(channel.request(owner="nobody"))
    await channel.quiesce()
    for each in (intent, unowned):
        command = await channel.command(each)
        assert (command.status, command.attempts) == (CommandStatus.PENDING, 0)
    assert await channel.used() == 2


@pytest.mark.req("CC-23", "CC-40")
async def test_a_claimed_command_that_comes_too_late_expires_instead_of_being_admitted(channel: Channel) -> None:
    channel.post.is_unreadable = True
    intent = await channel.stage(channel.request(owner="post", not_after=after_ms(channel.clock.now(), 500)))
    await channel.quiesce()
    channel.post.is_unreadable = False
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.EXPIRED
    assert channel.post.effects == []
    assert await channel.used() == 0


@pytest.mark.req("CC-66", "NO-15")
async def test_what_follows_from_a_command_is_staged_with_its_effect_or_not_at_all(channel: Channel) -> None:
    follow = channel.request("b", key="follow-up")
    channel.ledger.follows = lambda command: (follow,) if command.target.id == "a" else ()
    channel.ledger.breaks = lambda command: len(channel.ledger.asked) == 1
    await channel.stage(channel.request("a", key="first"))
    await channel.quiesce()
    assert await channel.used() == 1
    channel.clock.advance(10 * LEASE_MS)
    await channel.quiesce()
    assert await channel.keys_done() == ["first", "follow-up"]
    assert await channel.used() == 0
