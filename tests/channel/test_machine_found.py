"""What the worlds of `test_machine.py` have found in the channel, each as a test of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.deliveries import (
    Absent,
    AdmissionReceipt,
    Command,
    CommandKey,
    CommandStatus,
    Effect,
    HistoryEvent,
    Step,
    effect_of,
)
from quiesce.domain.errors import AdmissionRolledBack, InvariantBroken
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.ports.store import Transaction
from quiesce.runtime import deliverer
from quiesce.runtime.deliveries import act_tx, push_receipt_tx, quarantine_tx, requeue_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Delivery
from tests.channel.kit import LEASE_MS, STOP, Channel, Post, a_receipt


async def held(channel: Channel, command: Command) -> None:
    await channel.store.transact(lambda tx: quarantine_tx(tx, command.event_id, why="held", by="ada"))


async def offered_again(channel: Channel, command: Command) -> Command:
    return await channel.store.transact(lambda tx: requeue_tx(tx, command.event_id, why="mended", by="ada"))


async def numbers_asked(channel: Channel) -> list[int]:
    """The numbers of the commands about which the ledger was asked, in that order."""
    asked = list(channel.ledger.asked)
    commands = await channel.store.read(lambda tx: [tx.commands.get(event_id) for event_id in asked])
    return [command.number for command in commands if command is not None]


@pytest.mark.req("CC-17", "G-09")
async def test_a_command_that_is_offered_again_takes_its_place_behind_earlier_ones(channel: Channel) -> None:
    await channel.stage(channel.request("a", key="first"))
    second = await channel.stage(channel.request("a", key="second"))
    stop = await channel.stage(channel.request("a", key="stop", kind=STOP))
    await channel.relay()
    for intent in (second, stop):
        await held(channel, await channel.command(intent))
    assert (await offered_again(channel, await channel.command(second))).claimable_at is None
    assert (await offered_again(channel, await channel.command(stop))).claimable_at is not None, "a cancel waits for nobody"
    assert {command.number for command in await channel.claim()} == {1, 3}
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert [n for n in await numbers_asked(channel) if n != 3] == [1, 2]


@pytest.mark.req("CC-17", "G-09")
async def test_a_command_that_is_offered_again_with_nothing_ahead_of_it_is_claimable_at_once(channel: Channel) -> None:
    first = await channel.stage(channel.request("a", key="first"))
    await channel.stage(channel.request("a", key="second"))
    await channel.relay()
    await held(channel, await channel.command(first))
    assert (await offered_again(channel, await channel.command(first))).claimable_at == channel.clock.now()
    await channel.quiesce()
    assert await numbers_asked(channel) == [1, 2]


@pytest.mark.req("CC-12", "CC-14")
async def test_the_same_request_is_the_same_whenever_it_is_made_again(channel: Channel) -> None:
    due_at = after_ms(channel.clock.now(), 500)
    timer = channel.request(key="timer", due_at=due_at)
    brief = channel.request(key="brief", not_after=due_at)
    first = [await channel.stage(timer), await channel.stage(brief)]
    channel.clock.advance(500)  # now is the very instant at which the one is due and the other too late
    assert [await channel.stage(timer), await channel.stage(brief)] == first
    channel.clock.advance(500)
    assert [await channel.stage(timer), await channel.stage(brief)] == first


@pytest.mark.req("CC-52", "CC-46")
async def test_a_remote_admission_that_was_certainly_rolled_back_leaves_no_doubt(channel: Channel) -> None:
    class Torn(Post):
        async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
            if not self.calls_to_admit():
                self.calls.append(("admit", delivery.command.event_id))
                raise AdmissionRolledBack("could not decide")
            return await super().admit(env, delivery)

        def calls_to_admit(self) -> int:
            return sum(what == "admit" for what, _ in self.calls)

    channel.post = Torn()
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    command = await channel.command(intent)
    assert (command.status, command.started_fence) == (CommandStatus.PENDING, None)
    assert effect_of(command, None) is Effect.NOT_YET
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED
    assert HistoryEvent.UNKNOWN not in await channel.history(intent)
    assert len(channel.post.effects) == 1


@pytest.mark.req("CC-64", "CC-54")
@pytest.mark.parametrize("owner", ["ledger", "post"])
async def test_a_receipt_settles_also_what_is_offered_again_after_an_admission_had_begun(channel: Channel, owner: str) -> None:
    env = channel.environment(limits=replace(DEFAULT_LIMITS, command_attempts_max=1))
    intent = await channel.stage(channel.request(owner=owner))
    await channel.relay()
    (claimed,) = await channel.claim()
    side = channel.ledger if owner == "ledger" else channel.post
    reading = await side.read_receipt(channel.env, claimed)
    step, marked = await channel.store.transact(lambda tx: act_tx(tx, channel.env, claimed, reading))
    assert step is Step.ADMIT
    assert marked.claim is not None
    receipt = await side.admit(channel.env, Delivery(command=marked, claim=marked.claim))
    channel.clock.advance(LEASE_MS)  # the worker died; the next one finds the attempts used up
    await channel.quiesce(channel.worker(env=env))
    assert (await channel.command(intent)).status is CommandStatus.QUARANTINED
    again = await offered_again(channel, claimed)
    assert effect_of(again, None) is Effect.UNKNOWN
    await channel.store.transact(lambda tx: push_receipt_tx(tx, claimed.event_id, receipt, by=owner))
    settlement = await channel.settlement(intent)
    assert settlement is not None
    assert settlement.receipt == receipt
    assert await channel.used() == 0


@pytest.mark.req("CC-34", "CC-35")
async def test_a_local_owner_decides_nothing_once_it_is_too_late(channel: Channel) -> None:
    intent = await channel.stage(channel.request(not_after=after_ms(channel.clock.now(), 500)))

    def lasts(tx: Transaction, command: Command) -> None:
        channel.clock.advance(500)

    channel.ledger.inside = lasts
    await channel.quiesce()
    assert await channel.effects() == []
    assert len(channel.ledger.asked) == 1
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.EXPIRED
    assert await channel.used() == 0


@pytest.mark.req("CC-44", "CC-49", "CC-38")
@pytest.mark.parametrize("where", ["read", "admit"])
async def test_an_answer_about_another_command_tells_nothing_and_its_claim_is_given_up(channel: Channel, where: str) -> None:
    class Confused(Post):
        is_confused = True

        def _told(self, what: str, receipt: AdmissionReceipt) -> AdmissionReceipt:
            return replace(receipt, command_key=CommandKey("control:other")) if self.is_confused and what == where else receipt

        async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
            known = await super().read_receipt(env, command)
            return known if where == "admit" else self._told("read", a_receipt(command))

        async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
            return self._told("admit", await super().admit(env, delivery))

    channel.post = Confused()
    intent = await channel.stage(channel.request(owner="post"))
    await channel.quiesce()
    command = await channel.command(intent)
    assert command.status is (CommandStatus.PENDING if where == "read" else CommandStatus.UNKNOWN)
    assert len(channel.post.effects) == (where == "admit")
    channel.post.is_confused = False
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED


@pytest.mark.req("CC-38", "CC-55")
async def test_a_delivery_that_breaks_off_is_counted_and_left_to_whoever_comes_next(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*arguments: object) -> None:
        raise InvariantBroken("an error of the runtime itself")

    intent = await channel.stage()
    worker = channel.worker()
    with monkeypatch.context() as patch:
        patch.setattr(deliverer, "act_tx", breaks)
        await worker.pass_once()
    assert worker.state.broken == 1
    channel.clock.advance(LEASE_MS)
    await channel.quiesce()
    assert (await channel.command(intent)).status is CommandStatus.SETTLED
    assert len(await channel.effects()) == 1
