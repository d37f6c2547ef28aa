"""The control channel in any order: worlds drawn from seeds, and bugs planted into it, each of which they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from quiesce.domain.deliveries import Absent, Claim, Command, CommandStatus, Reading, Step, Unreadable, next_step
from quiesce.domain.errors import InvariantBroken, Refused
from quiesce.domain.ids import Fence
from quiesce.domain.instant import Instant
from quiesce.ports.store import Transaction
from quiesce.runtime import commands, deliverer, deliveries, owners
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.owners import Owner
from quiesce.stores.memory.commands import MemoryCommands
from quiesce.stores.memory.intents import MemoryIntents
from quiesce.stores.memory.store import MemoryStore, MemoryTransaction
from quiesce.testing.clock import ManualClock
from tests.channel.gates import TROUBLES, WELL
from tests.channel.kit import Channel
from tests.channel.machine import World
from tests.channel.truth import Broken

LENGTH: Final = 120
SEEDS: Final = 120
Plant = Callable[[pytest.MonkeyPatch], None]


async def explored(seeds: range, *, length: int = LENGTH) -> Counter[str]:
    """Play these worlds in memory; return what was seen in them."""
    marks: Counter[str] = Counter()
    for seed in seeds:
        clock = ManualClock()
        world = World(seed, MemoryStore(clock), clock)
        try:
            await world.play(length)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            await world.end()
        marks += world.marks
    return marks


def opened(channel: Channel, seed: int) -> World:
    """A world over the store of a channel."""
    return World(seed, channel.store, channel.clock)


REACHED: Final = {
    *(str(status) for status in CommandStatus),
    *(f"{what} {how}" for what, troubles in TROUBLES.items() for how in (WELL, *troubles)),
    "a conflict",
    "reconciled",
    "a full scope",
    "withdrawn",
    "requeued",
    "renewed",
    "lost",
    "landed late",
    "refused by its fence",
    "pushed",
    "pushed to the wrong one",
    "held up for a person",
    "uncertain to the end",
}
"""What the worlds must have seen between them; an explorer that is blind to one of these proves less than it says."""


@pytest.mark.req("CC-01", "CC-02", "CC-17", "CC-24", "CC-25", "CC-46", "CC-50", "CC-63", "CC-67", "CC-70")
async def test_in_any_order_an_effect_takes_place_once_and_what_is_said_of_it_is_true() -> None:
    marks = await explored(range(SEEDS))
    assert {str(mark) for mark in marks} >= REACHED


@pytest.mark.req("CC-01", "CC-02", "CC-46", "CC-63")
@pytest.mark.parametrize("seed", range(2))
async def test_the_same_worlds_hold_over_every_store(channel: Channel, seed: int) -> None:
    world = opened(channel, seed)
    try:
        await world.play(60)
    finally:
        await world.end()


@pytest.mark.req("CC-67")
async def test_a_seed_is_one_world() -> None:
    assert await explored(range(2)) == await explored(range(2))


PLANTS: Final[dict[str, tuple[Plant, int]]] = {}


def planted(*, found_within: int) -> Callable[[Plant], Plant]:
    """Declare a planted bug, and within how many seeds it must be found."""

    def declare(plant: Plant) -> Plant:
        PLANTS[plant.__name__] = (plant, found_within)
        return plant

    return declare


def _judge(patch: pytest.MonkeyPatch, judge: Callable[[Command, int, Instant, Reading | None], Step]) -> None:
    def judged(command: Command, *, revision: int, now: Instant, reading: Reading | None) -> Step:
        return judge(command, revision, now, reading)

    patch.setattr(deliveries, "next_step", judged)


@planted(found_within=60)
def what_cannot_be_read_counts_as_absent(patch: pytest.MonkeyPatch) -> None:
    def judge(command: Command, revision: int, now: Instant, reading: Reading | None) -> Step:
        absent = Absent(excludes_in_flight=True) if isinstance(reading, Unreadable) else reading
        return next_step(command, revision=revision, now=now, reading=absent)

    _judge(patch, judge)


@planted(found_within=60)
def absent_now_counts_as_absent_for_ever(patch: pytest.MonkeyPatch) -> None:
    def judge(command: Command, revision: int, now: Instant, reading: Reading | None) -> Step:
        absent = Absent(excludes_in_flight=True) if isinstance(reading, Absent) else reading
        return next_step(command, revision=revision, now=now, reading=absent)

    _judge(patch, judge)


@planted(found_within=60)
def the_receipt_is_not_read_before_an_admission(patch: pytest.MonkeyPatch) -> None:
    async def absent(self: Deliverer, owner: Owner, command: Command) -> Reading:
        return Absent(excludes_in_flight=True)

    patch.setattr(Deliverer, "_read", absent)


@planted(found_within=60)
def a_lost_answer_counts_as_rolled_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deliverer, "unanswered_tx", deliveries.undone_tx)


@planted(found_within=60)
def the_mark_is_not_written_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Command, "started", lambda self: self)


@planted(found_within=60)
def a_claim_keeps_the_fence(patch: pytest.MonkeyPatch) -> None:
    taken = Command.taken
    patch.setattr(Command, "taken", lambda self, worker_id, at: replace(taken(self, worker_id, at), fence=Fence(1)))


@planted(found_within=60)
def any_claim_of_a_command_is_the_live_one(patch: pytest.MonkeyPatch) -> None:
    def holds(self: Command, claim: Claim, now: Instant) -> bool:
        return self.claim is not None and now < self.claim.expires_at

    patch.setattr(Command, "holds", holds)


@planted(found_within=60)
def a_claim_that_has_ended_still_holds(patch: pytest.MonkeyPatch) -> None:
    def holds(self: Command, claim: Claim, now: Instant) -> bool:
        return self.claim is not None and (self.fence, self.worker_id) == (claim.fence, claim.worker_id)

    patch.setattr(Command, "holds", holds)


@planted(found_within=60)
def the_end_of_a_claim_is_judged_by_when_the_transaction_began(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransaction, "read_clock", lambda self: self.now)


@planted(found_within=60)
def what_is_told_under_an_older_claim_is_believed(patch: pytest.MonkeyPatch) -> None:
    def whosoever(tx: Transaction, claimed: Command) -> Command | None:
        command = tx.commands.lock(claimed.event_id)
        return command if command is not None and command.status is CommandStatus.CLAIMED else None

    patch.setattr(deliveries, "_still_ours", whosoever)


@planted(found_within=60)
def a_superseded_target_is_still_admitted_to(patch: pytest.MonkeyPatch) -> None:
    def judge(command: Command, revision: int, now: Instant, reading: Reading | None) -> Step:
        return next_step(command, revision=command.intent.revision, now=now, reading=reading)

    _judge(patch, judge)


@planted(found_within=60)
def a_local_owner_does_not_check_the_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners, "_check_claim", lambda tx, delivery: None)


@planted(found_within=60)
def a_quarantine_forgets_that_it_is_uncertain(patch: pytest.MonkeyPatch) -> None:
    quarantined = Command.quarantined
    patch.setattr(Command, "quarantined", lambda self, why: replace(quarantined(self, why), is_uncertain=False))


@planted(found_within=60)
def a_place_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryIntents, "give_back", lambda self, places: None)


@planted(found_within=60)
def a_place_is_given_back_when_a_command_becomes_unknown(patch: pytest.MonkeyPatch) -> None:
    unknown = deliveries._unknown

    def freely(*arguments: object) -> deliveries.Change:
        change = unknown(*arguments)  # type: ignore[arg-type]
        return replace(change, command=replace(change.command, status=CommandStatus.DISCARDED))

    patch.setattr(deliveries, "_unknown", freely)


@planted(found_within=60)
def an_unknown_command_is_in_nobodys_way(patch: pytest.MonkeyPatch) -> None:
    def lightly(self: Command, revision: int) -> bool:
        return self.is_open and self.status not in (CommandStatus.UNKNOWN, CommandStatus.QUARANTINED)

    patch.setattr(Command, "is_in_the_way", lightly)


@planted(found_within=200)
def what_is_stuck_holds_up_the_next_incarnation(patch: pytest.MonkeyPatch) -> None:
    in_the_way = Command.is_in_the_way
    patch.setattr(Command, "is_in_the_way", lambda self, revision: in_the_way(self, 0))


@planted(found_within=200)
def a_next_incarnation_lets_nobody_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commands, "let_through_tx", lambda tx, targets: None)


@planted(found_within=60)
def nobody_waits_for_earlier_commands(patch: pytest.MonkeyPatch) -> None:
    blocks = MemoryCommands.blocked_targets
    patch.setattr(MemoryCommands, "blocked_targets", lambda self, targets: blocks(self, targets) - set(targets))


@planted(found_within=60)
def who_waited_is_not_let_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryCommands, "unblocked", lambda self, targets: [])


@planted(found_within=60)
def a_claim_is_handed_back_to_nobody(patch: pytest.MonkeyPatch) -> None:
    taken = Command.taken
    patch.setattr(Command, "taken", lambda self, worker_id, at: replace(taken(self, worker_id, at), claimable_at=None))


async def first_found(seeds: int) -> int | None:
    """Return the first seed in whose world something does not hold."""
    for seed in range(seeds):
        try:
            await explored(range(seed, seed + 1))
        except (Broken, InvariantBroken, Refused):
            return seed
    return None


@pytest.mark.req("CC-67")
@pytest.mark.parametrize("name", PLANTS)
async def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, found_within = PLANTS[name]
    plant(monkeypatch)
    assert await first_found(found_within) is not None
