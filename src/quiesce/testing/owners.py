"""The contract of an owner: what delivery relies on, as tests that any owner must pass.

Needs pytest and nothing else. Say how your owner is made and inherit the contract:

    import pytest
    from quiesce.testing.owners import OwnerContract, OwnerUnderTest

    class TestDoors(OwnerContract):
        @pytest.fixture
        def subject(self, tmp_path):
            with running_service(tmp_path) as service:
                yield OwnerUnderTest(
                    url=f"sqlite:///{tmp_path / 'store.db'}",
                    owner=DoorOwner(service.url),
                    request=lambda key: open_door("front", subject="ada", producer="test", producer_key=key),
                    effects=service.openings,
                    unreadable=service.stopped,
                )

`effects` counts what took effect, in the destination itself and not in what the owner says. `unreadable` is a context
manager in which the owner's receipts cannot be read; None if that cannot be brought about (a local owner's store, whose
contract the store's own suite proves).

What you learn: whether an effect happens once per command key; whether absence is ever claimed when it cannot be known;
whether a claim that is over can still act; and, by `absence_is_proven`, whether a lost answer may be asked again or stays
`unknown` until the receipt shows. None of these can be seen in a test that only delivers once.
"""
# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.domain.commands import IntentId
from quiesce.domain.deliveries import Absent, AdmissionReceipt, Command, Step
from quiesce.domain.errors import StaleClaim, required
from quiesce.domain.ids import WorkerId
from quiesce.runtime.commands import CommandRequest, stage_tx
from quiesce.runtime.deliveries import act_tx, answered_tx, claim_commands_tx, release_claims_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Delivery, Owner
from quiesce.runtime.relay import relay_tx

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUnderTest:
    """How to make the owner, a command that it accepts, and how to count what took effect."""

    url: str
    owner: Owner
    request: Callable[[str], CommandRequest]
    effects: Callable[[], int]
    unreadable: Callable[[], AbstractContextManager[object]] | None = None


class Bench:
    """A store with one claimed command of the owner, and the moves of the workers around it."""

    def __init__(self, env: Environment, subject: OwnerUnderTest) -> None:
        self.env = env
        self._subject = subject
        self._owner = subject.owner

    async def claimed(self, key: str = "contract-1") -> Command:
        """Stage, relay and claim a command."""
        env = self.env
        wanted, intent_id = self._subject.request(key), IntentId(env.new_id())
        await env.store.transact(lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=env.limits))
        await env.store.transact(lambda tx: relay_tx(tx, env, limit=10))
        return await self.claim()

    async def claim(self) -> Command:
        """Claim the command, as another worker."""
        env, worker_id = self.env, WorkerId(self.env.new_id())
        consumers = [(self._owner.name, kind.name, kind.version) for kind in self._owner.kinds]
        claimed = await env.store.transact(lambda tx: claim_commands_tx(tx, env, worker_id, consumers, limit=10, after=None))
        found = claimed.commands
        assert len(found) == 1, f"the owner {self._owner.name} does not declare the kind of its own command among its kinds"
        return found[0]

    async def taken_over(self, command: Command) -> Command:
        """Let the claim end and another worker claim the command: with a higher fence."""
        claims = {command.event_id: required(command.claim, "it is claimed")}
        await self.env.store.transact(lambda tx: release_claims_tx(tx, claims))
        return await self.claim()

    async def started(self, command: Command) -> Delivery:
        """Mark ahead that the admission begins."""
        env, reading = self.env, Absent(excludes_in_flight=True)
        step, marked = await env.store.transact(lambda tx: act_tx(tx, env, command, reading))
        assert step is Step.ADMIT
        return Delivery(command=marked, claim=required(marked.claim, "it is claimed"))

    async def settled(self, delivery: Delivery, receipt: AdmissionReceipt) -> None:
        """Settle the delivery, so that the next command of the target has its turn."""
        await self.env.store.transact(lambda tx: answered_tx(tx, delivery.command, receipt))

    async def read(self, command: Command) -> AdmissionReceipt | Absent:
        """Ask the owner for the receipt."""
        return await self._owner.read_receipt(self.env, command)

    async def admit(self, delivery: Delivery) -> AdmissionReceipt:
        """Ask the owner to admit."""
        return await self._owner.admit(self.env, delivery)


class OwnerContract:
    """Inherit it, and give a fixture `subject`."""

    def test_before_its_admission_a_command_has_no_receipt_and_no_effect(self, subject: OwnerUnderTest) -> None:
        """Absence is an answer of its own, not an error."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            assert isinstance(await bench.read(await bench.claimed()), Absent)
            assert subject.effects() == before

        _run(subject, check)

    def test_an_admission_has_one_effect_and_its_receipt_is_found_again(self, subject: OwnerUnderTest) -> None:
        """Effect and receipt belong together; the receipt names the command."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            command = await bench.claimed()
            receipt = await bench.admit(await bench.started(command))
            assert receipt.command_key == command.key
            assert await bench.read(command) == receipt
            assert subject.effects() == before + 1

        _run(subject, check)

    def test_the_same_command_again_gets_the_first_receipt_and_has_no_second_effect(self, subject: OwnerUnderTest) -> None:
        """Deduplication by the command key, by whichever worker and under whichever fence it comes."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            delivery = await bench.started(await bench.claimed())
            first = await bench.admit(delivery)
            assert await bench.admit(delivery) == first
            later = await bench.taken_over(delivery.command)
            assert await bench.admit(replace(delivery, command=later, claim=required(later.claim, "claimed"))) == first
            assert subject.effects() == before + 1

        _run(subject, check)

    def test_admissions_at_once_have_one_effect(self, subject: OwnerUnderTest) -> None:
        """Deduplication holds while the first one is under way, too."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            delivery = await bench.started(await bench.claimed())
            answers = await asyncio.gather(*(bench.admit(delivery) for _ in range(5)), return_exceptions=True)
            receipts = [answer for answer in answers if isinstance(answer, AdmissionReceipt)]
            assert receipts, answers
            assert all(receipt == receipts[0] for receipt in receipts)
            assert subject.effects() == before + 1

        _run(subject, check)

    def test_two_commands_have_two_effects(self, subject: OwnerUnderTest) -> None:
        """Deduplication is by the command key and not by what the command asks."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            for key in ("contract-1", "contract-2"):
                delivery = await bench.started(await bench.claimed(key))
                await bench.settled(delivery, await bench.admit(delivery))
            assert subject.effects() == before + 2

        _run(subject, check)

    def test_a_claim_that_was_seen_to_be_over_has_no_effect_any_more(self, subject: OwnerUnderTest) -> None:
        """Once a later claim has been seen, the request of an earlier one is refused, however late it arrives."""

        async def check(bench: Bench) -> None:
            before = subject.effects()
            old = await bench.started(await bench.claimed())
            new = await bench.taken_over(old.command)
            reading = await bench.read(new)
            assert isinstance(reading, Absent)
            if not reading.excludes_in_flight:
                return  # it does not claim to know: what is open stays unknown until a receipt shows
            try:
                await bench.admit(old)
            except StaleClaim:
                assert subject.effects() == before
                assert isinstance(await bench.read(new), Absent)
                return
            raise AssertionError("absence was called proven, and then an admission under an earlier fence took effect")

        _run(subject, check)

    def test_a_receipt_that_cannot_be_read_is_not_absent(self, subject: OwnerUnderTest) -> None:
        """A failed read raises."""
        unreadable = subject.unreadable
        if unreadable is None:
            return  # the store's own suite proves that it raises

        async def check(bench: Bench) -> None:
            command = await bench.claimed()
            with unreadable():
                try:
                    answer = await bench.read(command)
                except Exception:  # noqa: BLE001 - whichever error the owner's own line raises
                    return
            raise AssertionError(f"an unreadable receipt was answered with {answer!r}")

        _run(subject, check)


def absence_is_proven(subject: OwnerUnderTest) -> bool:
    """Tell whether the owner can say that an earlier request cannot land any more: then a lost answer is asked again."""
    found: list[bool] = []

    async def check(bench: Bench) -> None:
        reading = await bench.read(await bench.claimed("absence"))
        found.append(isinstance(reading, Absent) and reading.excludes_in_flight)

    _run(subject, check)
    return found[0]


def _run(subject: OwnerUnderTest, check: Callable[[Bench], Awaitable[T]]) -> T:
    async def work() -> T:
        async with _bench(subject) as bench:
            return await check(bench)

    return asyncio.run(work())


@asynccontextmanager
async def _bench(subject: OwnerUnderTest) -> AsyncIterator[Bench]:
    store = await asyncio.to_thread(open_store, subject.url)
    try:
        yield Bench(Environment(store=store, clock=SystemClock(), entropy=SystemEntropy()), subject)
    finally:
        await store.close()
