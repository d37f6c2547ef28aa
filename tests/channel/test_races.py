"""Two at once, whoever is first. On PostgreSQL both transactions have begun before either may write; elsewhere they queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

from quiesce.domain.commands import IntentId, Target
from quiesce.domain.deliveries import Absent, AdmissionReceipt, Claim, Command, CommandStatus, HistoryEvent, Step
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, Refused, StaleClaim
from quiesce.domain.ids import WorkerId
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest, Staged, stage_tx, supersede_tx
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.deliveries import (
    act_tx,
    answered_tx,
    claim_commands_tx,
    push_receipt_tx,
    quarantine_tx,
    renew_claims_tx,
)
from quiesce.runtime.owners import Delivery
from tests.channel.kit import LEASE_MS, Channel, a_receipt, gathered

T = TypeVar("T")
ROUNDS: Final = 8
FENCED_OUT: Final = Absent(excludes_in_flight=True)


class Start:
    """Lets two transactions begin together, where a store can run two at once."""

    def __init__(self, channel: Channel) -> None:
        is_parallel = channel.store.capabilities.name == "postgres"
        self._barrier = threading.Barrier(2, timeout=20) if is_parallel else None

    def __call__(self, fn: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
        waits = [True]

        def begun(tx: Transaction) -> T:
            if self._barrier is not None and waits:
                waits.clear()  # a transaction that is run again does not wait again
                self._barrier.wait()
            return fn(tx)

        return begun


async def both(channel: Channel, one: Callable[[Transaction], object], other: Callable[[Transaction], object]) -> list[object]:
    """Run two decisions at once, and return both values; exceptions are values."""
    start = Start(channel)
    return await gathered(channel.store.transact(start(one)), channel.store.transact(start(other)))


async def claimed(channel: Channel, target: str = "t", owner: str = "ledger") -> Command:
    await channel.stage(channel.request(target, owner=owner))
    await channel.relay()
    (command,) = await channel.claim()
    return command


async def started(channel: Channel, target: str = "t", owner: str = "ledger") -> Command:
    command = await claimed(channel, target, owner)
    step, marked = await channel.store.transact(lambda tx: act_tx(tx, channel.env, command, FENCED_OUT))
    assert step is Step.ADMIT
    return marked


def claim_of(command: Command) -> Claim:
    assert command.claim is not None
    return command.claim


def claims(channel: Channel) -> Callable[[Transaction], list[Command]]:
    worker_id = WorkerId(channel.env.new_id())
    consumers = [(o.name, k.name, k.version) for o in (channel.ledger, channel.post) for k in o.kinds]
    return lambda tx: claim_commands_tx(tx, channel.env, worker_id, consumers, limit=64, after=None).commands


@pytest.mark.req("CC-29", "CC-38")
async def test_a_beat_and_a_takeover(channel: Channel) -> None:
    async def once(n: int) -> None:
        command = await claimed(channel, f"t{n}")
        mine = {command.event_id: claim_of(command)}
        channel.clock.advance(LEASE_MS - 1)
        channel.clock.advance(n % 2)  # the last moment of the lease, and the first one behind it
        lost, taken = await both(channel, lambda tx: renew_claims_tx(tx, mine, lease_ms=LEASE_MS), claims(channel))
        assert isinstance(taken, list)
        assert bool(lost) == bool(n % 2), "the beat holds until the lease has ended, and never behind it"
        assert not taken or lost, "one of them holds it, not both"
        channel.clock.advance(10 * LEASE_MS)
        await channel.quiesce()

    for n in range(ROUNDS):
        await once(n)


@pytest.mark.req("CC-40", "CC-41", "CC-60")
async def test_a_settlement_and_a_takeover(channel: Channel) -> None:
    async def once(n: int) -> None:
        command = await started(channel, f"t{n}")
        receipt = await channel.ledger.admit(channel.env, Delivery(command=command, claim=claim_of(command)))
        channel.clock.advance(LEASE_MS)
        settled, taken = await both(channel, lambda tx: answered_tx(tx, command, receipt), claims(channel))
        assert isinstance(taken, list)
        assert (settled is None) == bool(taken)
        channel.clock.advance(LEASE_MS)
        await channel.quiesce()
        stored = await channel.store.read(lambda tx: tx.commands.settlement(command.event_id))
        assert stored is not None
        assert stored.receipt == receipt

    for n in range(ROUNDS):
        await once(n)
    assert len(await channel.effects()) == ROUNDS


@pytest.mark.req("CC-12", "CC-13")
async def test_a_replay_and_another_request_under_one_key(channel: Channel) -> None:
    async def once(n: int) -> None:
        wanted = [channel.request(f"{side}", key=f"key of round {n}", payload={"side": side}) for side in ("a", "b")]

        def stage(each: int) -> Callable[[Transaction], Staged]:
            intent_id = IntentId(channel.env.new_id())
            return lambda tx: stage_tx(tx, wanted[each], intent_id=intent_id, limits=channel.env.limits)

        answers = await both(channel, stage(0), stage(1))
        assert {type(answer) for answer in answers} == {Staged, IdempotencyConflict}, answers
        winner = next(answer for answer in answers if isinstance(answer, Staged))
        stored = await channel.store.read(lambda tx: tx.intents.get(winner.intent.id))
        assert stored == winner.intent
        assert await channel.used() == n + 1

    for n in range(ROUNDS):
        await once(n)


@pytest.mark.req("CC-31", "CC-33")
@pytest.mark.parametrize("moment", ["claim", "start"])
async def test_a_next_incarnation_and_the_channels_own_steps(channel: Channel, moment: str) -> None:
    async def once(n: int) -> None:
        target = Target(owner="ledger", id=f"t{n}")
        if moment == "claim":
            await channel.stage(channel.request(f"t{n}"))
            await channel.relay()
            await both(channel, lambda tx: supersede_tx(tx, target, 1), claims(channel))
        else:
            command = await claimed(channel, f"t{n}")
            await both(
                channel,
                lambda tx: supersede_tx(tx, target, 1),
                lambda tx: act_tx(tx, channel.env, command, FENCED_OUT),
            )
        channel.clock.advance(LEASE_MS)
        await channel.quiesce()

    for n in range(ROUNDS):
        await once(n)
    assert await channel.effects() == [], "whoever was first: nothing of the old incarnation took effect"
    assert await channel.used() == 0


@pytest.mark.req("CC-33", "CC-34", "CC-35")
async def test_a_next_incarnation_and_an_admission_have_one_order(channel: Channel) -> None:
    async def once(n: int) -> None:
        command = await started(channel, f"t{n}")
        delivery = Delivery(command=command, claim=claim_of(command))
        before = len(await channel.effects())
        admitted, _ = await both(
            channel,
            lambda tx: channel.ledger.admit_tx(tx, channel.env, delivery),
            lambda tx: supersede_tx(tx, command.target, 1),
        )
        assert isinstance(admitted, AdmissionReceipt | StaleClaim), admitted
        assert len(await channel.effects()) - before == isinstance(admitted, AdmissionReceipt)
        channel.clock.advance(LEASE_MS)
        await channel.quiesce()
        stored = await channel.store.read(lambda tx: tx.commands.get(command.event_id))
        assert stored is not None
        expected = CommandStatus.SETTLED if isinstance(admitted, AdmissionReceipt) else CommandStatus.DISCARDED
        assert stored.status is expected

    for n in range(ROUNDS):
        await once(n)


@pytest.mark.req("CC-54", "CC-64")
async def test_a_receipt_that_its_owner_brings_and_the_workers_own_settlement(channel: Channel) -> None:
    async def once(n: int) -> None:
        command = await started(channel, f"t{n}", "post")
        receipt = channel.post.land(Delivery(command=command, claim=claim_of(command)))
        await both(
            channel,
            lambda tx: push_receipt_tx(tx, command.event_id, receipt, by="post"),
            lambda tx: answered_tx(tx, command, receipt),
        )
        lines = await channel.store.read(lambda tx: tx.commands.history(command.event_id, limit=100))
        assert [line.what for line in lines].count(HistoryEvent.SETTLED) == 1
        assert await channel.used() == 0

    for n in range(ROUNDS):
        await once(n)


@pytest.mark.req("CC-59", "CC-54")
async def test_a_quarantine_and_a_late_receipt(channel: Channel) -> None:
    channel.post.cut_before = True

    async def once(n: int) -> None:
        intent = await channel.stage(channel.request(f"t{n}", owner="post"))
        await channel.quiesce()
        command = await channel.command(intent)
        receipt = a_receipt(command)
        quarantined, settled = await both(
            channel,
            lambda tx: quarantine_tx(tx, command.event_id, why="enough", by="ada"),
            lambda tx: push_receipt_tx(tx, command.event_id, receipt, by="post"),
        )
        assert isinstance(quarantined, Command | Refused)
        assert isinstance(settled, Command)
        assert (await channel.command(intent)).status is CommandStatus.SETTLED
        assert await channel.used() == 0

    for n in range(ROUNDS):
        await once(n)


@pytest.mark.req("CC-66")
async def test_admissions_that_stage_into_each_others_scopes_do_not_wait_for_each_other_for_ever(channel: Channel) -> None:
    def follows(command: Command) -> tuple[CommandRequest, ...]:
        scopes = ("one", "two") if command.target.id.startswith("a") else ("two", "one")
        if command.target.id.startswith("follow"):
            return ()
        return tuple(channel.request(f"follow {scope} {command.event_id}", scope=scope) for scope in scopes)

    channel.ledger.follows = follows

    async def once(n: int) -> None:
        one, other = await started(channel, f"a{n}"), await started(channel, f"b{n}")
        answers = await both(
            channel,
            lambda tx: channel.ledger.admit_tx(tx, channel.env, Delivery(command=one, claim=claim_of(one))),
            lambda tx: channel.ledger.admit_tx(tx, channel.env, Delivery(command=other, claim=claim_of(other))),
        )
        assert all(isinstance(answer, AdmissionReceipt) for answer in answers), answers
        channel.clock.advance(LEASE_MS)
        await channel.quiesce()

    for n in range(ROUNDS):
        await once(n)
    assert await channel.used() + await channel.used("one") + await channel.used("two") == 0


@pytest.mark.req("CC-35", "CC-34")
async def test_a_takeover_passes_over_a_command_whose_owner_is_committing(channel: Channel) -> None:
    """The admission holds the command's lock: its claim ends meanwhile, and yet nobody takes the command from under it."""
    if channel.store.capabilities.name != "postgres":
        await _the_writer_is_one(channel)
        return
    inside, go_on = threading.Event(), threading.Event()

    def waits(_: str) -> None:
        inside.set()
        assert go_on.wait(20)

    command = await started(channel)
    env = channel.environment(crash=CrashPoints("admission.inside", 1, waits))
    admission = asyncio.create_task(channel.ledger.admit(env, Delivery(command=command, claim=claim_of(command))))
    await asyncio.to_thread(inside.wait, 20)
    channel.clock.advance(LEASE_MS)
    assert await channel.claim() == []
    go_on.set()
    receipt = await admission
    (taken,) = await channel.claim()
    assert await channel.ledger.read_receipt(channel.env, taken) == receipt
    assert len(await channel.effects()) == 1


async def _the_writer_is_one(channel: Channel) -> None:
    """Where transactions queue, a claim is before the admission or behind it: there is no between."""
    command = await started(channel)
    channel.clock.advance(LEASE_MS)
    admitted, taken = await gathered(
        channel.ledger.admit(channel.env, Delivery(command=command, claim=claim_of(command))), channel.claim()
    )
    assert isinstance(admitted, StaleClaim)
    assert isinstance(taken, list)
    assert len(taken) == 1


@pytest.mark.req("CC-35", "CC-37")
async def test_time_spent_waiting_for_a_lock_counts_against_the_lease(channel: Channel) -> None:
    """The owner waits for a row of its own; its lease ends; the row comes free: it admits nothing (K14)."""
    command = await started(channel)
    waits: list[int] = []

    def blocks(tx: Transaction, _: Command) -> None:
        waits.append(tx.now)
        channel.clock.advance(LEASE_MS)  # as long as the lock was held by somebody else

    channel.ledger.inside = blocks
    with pytest.raises(StaleClaim):
        await channel.ledger.admit(channel.env, Delivery(command=command, claim=claim_of(command)))
    assert len(waits) == 1
    assert await channel.effects() == []


@pytest.mark.req("CC-24", "CC-26")
async def test_the_last_place_and_two_producers_that_began_together(channel: Channel) -> None:
    async def once(n: int) -> None:
        scope = f"scope {n}"
        await channel.store.transact(lambda tx: tx.intents.set_capacity("local", scope, bound=1, reserve=0))

        def stage(key: str) -> Callable[[Transaction], Staged]:
            wanted, intent_id = channel.request(key=key, scope=scope), IntentId(channel.env.new_id())
            return lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=channel.env.limits)

        answers = await both(channel, stage(f"one {n}"), stage(f"other {n}"))
        assert {type(answer) for answer in answers} == {Staged, CapacityExhausted}
        assert await channel.used(scope) == 1

    for n in range(ROUNDS):
        await once(n)
