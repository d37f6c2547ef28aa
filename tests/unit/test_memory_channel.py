"""The memory store refuses locks of the control channel out of their order, which would deadlock where transactions overlap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiesce.domain.errors import InvariantBroken
from quiesce.ports.store import Transaction
from quiesce.stores.memory import MemoryStore
from quiesce.testing.channel_samples import CORRECT, OWNER, ChannelSamples
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import TENANT

Do = Callable[[Transaction], object]
CONSUMERS = [(OWNER, CORRECT.name, CORRECT.version)]


class Line:
    """Two relayed commands, two staged intents, and what may be locked of them."""

    def __init__(self) -> None:
        self.make = ChannelSamples()
        self.store = MemoryStore(ManualClock(self.make.now))
        self.commands = [self.make.command() for _ in range(2)]
        self.staged = [self.make.intent() for _ in range(2)]
        self.targets = sorted(command.target for command in self.commands)
        self.store.transact_blocking(self._fill)

    def _fill(self, tx: Transaction) -> None:
        for intent in [*self.staged, *(command.intent for command in self.commands)]:
            tx.intents.insert(intent)
        tx.commands.insert_many(self.commands)
        tx.commands.lock_targets(self.targets)
        assert tx.intents.take_place(TENANT, "s", overtakes=False, bound=9, reserve=0)

    def intent(self, number: int) -> Do:
        return lambda tx: tx.intents.lock(self.staged[number].id)

    def command(self, number: int) -> Do:
        return lambda tx: tx.commands.lock(self.commands[number].event_id)

    def target(self, number: int) -> Do:
        return lambda tx: tx.commands.lock_targets([self.targets[number]])

    def scope(self, _: int = 0) -> Do:
        return lambda tx: tx.intents.give_back({(TENANT, "s"): 0})

    def due(self, _: int = 0) -> Do:
        return lambda tx: tx.intents.due(now=self.make.now, limit=9)

    def claimable(self, _: int = 0) -> Do:
        return lambda tx: tx.commands.claimable(CONSUMERS, now=self.make.now, limit=9, after=None)


@pytest.fixture
def line() -> Line:
    return Line()


def _all(*do: Do) -> Do:
    return lambda tx: [one(tx) for one in do]


def test_locks_in_their_order_are_taken(line: Line) -> None:
    steps = (line.intent(0), line.intent(1), line.command(0), line.command(1), line.target(0), line.target(1), line.scope())
    line.store.transact_blocking(_all(*steps))
    line.store.transact_blocking(_all(line.due(), line.intent(1), line.claimable(), line.command(0), line.target(0)))


@pytest.mark.parametrize("kind", ["intent", "command", "target"])
def test_rows_of_one_table_are_locked_by_ascending_key(line: Line, kind: str) -> None:
    of_kind: Callable[[int], Do] = getattr(line, kind)
    with pytest.raises(InvariantBroken, match="ascending"):
        line.store.transact_blocking(_all(of_kind(1), of_kind(0)))
    line.store.transact_blocking(_all(of_kind(0), of_kind(1), of_kind(0)))


@pytest.mark.parametrize(
    ("later", "earlier"),
    [("command", "intent"), ("target", "command"), ("target", "intent"), ("scope", "intent"), ("scope", "target")],
)
def test_tables_are_locked_in_one_order(line: Line, later: str, earlier: str) -> None:
    with pytest.raises(InvariantBroken, match="in this order"):
        line.store.transact_blocking(_all(getattr(line, later)(0), getattr(line, earlier)(0)))


def test_what_is_found_unlocked_is_held_and_counts_for_the_order(line: Line) -> None:
    with pytest.raises(InvariantBroken, match="in this order"):
        line.store.transact_blocking(_all(line.claimable(), line.intent(0)))
    with pytest.raises(InvariantBroken, match="in this order"):
        line.store.transact_blocking(_all(line.command(0), line.intent(0)))


def test_a_command_that_its_target_lets_through_is_held_behind_it(line: Line) -> None:
    waiting = line.make.command(target=line.targets[0], number=2, is_blocked=True)

    def fn(tx: Transaction) -> None:
        tx.intents.insert(waiting.intent)
        tx.commands.insert_many([waiting])

    line.store.transact_blocking(fn)
    first = next(command for command in line.commands if command.target == line.targets[0])

    def let_through(tx: Transaction) -> None:
        tx.commands.lock(first.event_id)
        tx.commands.save_many([first.quarantined("nobody knows it")])
        tx.commands.lock_targets([line.targets[0]])
        tx.commands.save_many(tx.commands.unblocked([line.targets[0]]))

    line.store.transact_blocking(let_through)
