"""Deliveries of commands: rows, targets, settlements, histories and what listings say of them."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from quiesce.domain.commands import IntentId, Target
from quiesce.domain.deliveries import (
    Admission,
    Command,
    CommandStatus,
    EventId,
    HistoryEvent,
    HistoryLine,
    Settlement,
    TargetState,
)
from quiesce.domain.errors import InvariantBroken
from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.store import Transaction
from quiesce.testing.channel_samples import CANCEL, NOTE, ChannelSamples, relayed
from quiesce.testing.conformance.intents import ChannelContract
from quiesce.testing.conformance.subject import StoreUnderTest, proves
from quiesce.testing.samples import TENANT

WORKER = WorkerId("worker 1")
Step = Callable[[Command, Instant], Command]


def _claimed(command: Command, now: Instant) -> Command:
    return command.taken(WORKER, after_ms(now, 1000))


LIVES: dict[str, tuple[Step, ...]] = {
    "pending": (),
    "claimed": (_claimed,),
    "started": (_claimed, lambda c, _: c.started()),
    "deferred": (_claimed, lambda c, now: c.deferred(after_ms(now, 5), "locked\0 🔒")),
    "unknown": (_claimed, lambda c, _: c.started(), lambda c, now: c.unknown(after_ms(now, 5), "answer lost")),
    "quarantined": (lambda c, _: c.quarantined("nobody knows it"),),
    "settled": (_claimed, lambda c, now: c.closed(CommandStatus.SETTLED, now)),
    "discarded": (lambda c, now: c.closed(CommandStatus.DISCARDED, now, "superseded"),),
    "expired": (lambda c, now: c.closed(CommandStatus.EXPIRED, now, "too late"),),
}
"""What may become of a pending command, step by step."""
ENDS = ("settled", "discarded", "expired")


class TargetsContract(ChannelContract):
    """Targets of `Commands`."""

    def test_a_target_that_nobody_knows_begins_at_revision_0(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        target = make.target()
        assert store.read(lambda tx: tx.commands.target(target)) is None
        assert store.transact(lambda tx: tx.commands.lock_targets([target])) == {target: TargetState(target=target)}
        assert store.read(lambda tx: tx.commands.target(target)) == TargetState(target=target)

    @proves("CC-16", "CC-31")
    def test_revision_and_number_are_kept_per_target(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        targets = [make.target(), make.target("other owner"), make.target(), make.target()]
        states = [TargetState(target=t, revision=n, last_number=10 * n) for n, t in enumerate(targets[:3])]

        def fn(tx: Transaction) -> None:
            tx.commands.lock_targets([state.target for state in reversed(states)])
            tx.commands.save_targets(states)

        store.transact(fn)
        assert store.read(lambda tx: tx.commands.targets(targets)) == {state.target: state for state in states}
        assert store.transact(lambda tx: tx.commands.lock_targets(targets[1:3])) == {s.target: s for s in states[1:]}
        assert store.read(lambda tx: tx.commands.target(Target(owner="nobody", id=targets[0].id))) is None
        assert store.read(lambda tx: tx.commands.targets([])) == {}

    def test_a_target_is_locked_before_it_is_saved(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        state = TargetState(target=make.target(), revision=1)
        store.transact(lambda tx: tx.commands.lock_targets([state.target]))
        with pytest.raises(InvariantBroken, match="locked"):
            store.transact(lambda tx: tx.commands.save_targets([state]))


class CommandsContract(ChannelContract):
    """`Commands`, but for claims and order."""

    @proves("CC-11", "CC-15")
    @pytest.mark.parametrize("life", LIVES)
    def test_a_command_is_read_back_in_every_state(self, store: StoreUnderTest, make: ChannelSamples, life: str) -> None:
        pending = make.command(payload={"text": "a\0b"}, revision=2, not_after=after_ms(make.now, 9000))
        store.relay(pending)
        command = lived(store, pending, life, make.now)
        expected = relayed(command)
        assert store.command(command.event_id) == expected
        assert store.read(lambda tx: tx.commands.of_intent(command.intent.id)) == expected
        assert store.transact(lambda tx: tx.commands.lock(command.event_id)) == expected

    def test_an_unknown_command_is_none(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        unknown = EventId(make.id())
        assert store.read(lambda tx: tx.commands.get(unknown)) is None
        assert store.transact(lambda tx: tx.commands.lock(unknown)) is None
        assert store.read(lambda tx: tx.commands.of_intent(IntentId(unknown))) is None
        assert store.transact(lambda tx: tx.commands.lock_many([unknown])) == {}

    def test_several_are_locked_and_saved_at_once(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command() for _ in range(4)]
        store.relay(*commands)
        ids = [command.event_id for command in reversed(commands)]
        found = store.transact(lambda tx: tx.commands.lock_many(ids[1:]))
        assert found == {command.event_id: relayed(command) for command in commands[:3]}
        claimed = [command.taken(WORKER, make.now) for command in commands]
        store.deliver(*claimed)
        assert [store.command(command.event_id) for command in commands] == [relayed(command) for command in claimed]

    def test_a_command_is_locked_before_it_is_saved(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command = make.command()
        store.relay(command)
        with pytest.raises(InvariantBroken, match="locked"):
            store.transact(lambda tx: tx.commands.save_many([command]))

    @proves("CC-11", "CC-16")
    def test_what_was_sealed_is_not_written_again(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command = make.command()
        store.relay(command)
        other = replace(command.intent, payload=b'"other"', revision=9, scope="other")
        store.deliver(replace(command, intent=other, number=99, accepted_at=Instant(1), attempts=1))
        assert store.command(command.event_id) == replace(relayed(command), attempts=1)

    @proves("CC-22")
    def test_an_intent_becomes_one_command(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command = make.command()
        store.relay(command)
        again = replace(make.command(command.intent), number=2)
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.commands.insert_many([again]))
        assert store.read(lambda tx: tx.commands.get(again.event_id)) is None

    @proves("CC-16")
    def test_a_number_of_a_target_is_given_once(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command, of_another = make.command(), make.command()
        store.relay(command, of_another)
        same = make.command(target=command.target)
        store.stage(same.intent)
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.commands.insert_many([same]))
        store.relay(replace(same, number=2))

    def test_a_command_comes_of_a_stored_intent(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.commands.insert_many([make.command()]))

    @proves("CC-41", "CC-48")
    @pytest.mark.parametrize("verdict", list(Admission))
    def test_a_settlement_keeps_the_receipt_that_it_came_from(
        self, store: StoreUnderTest, make: ChannelSamples, verdict: Admission
    ) -> None:
        command = make.command()
        store.relay(command)
        claimed = command.taken(WORKER, make.now)
        receipt = make.admission(command, verdict=verdict, reason="because\0 ☃")
        settlement = make.settlement(claimed, receipt)
        assert store.read(lambda tx: tx.commands.settlement(command.event_id)) is None
        store.transact(lambda tx: tx.commands.add_settlements([settlement]))
        assert store.read(lambda tx: tx.commands.settlement(command.event_id)) == settlement

    @proves("CC-41")
    def test_a_command_is_settled_once(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command, other = make.command(), make.command()
        store.relay(command, other)
        first: Settlement = make.settlement(command)
        store.transact(lambda tx: tx.commands.add_settlements([first, make.settlement(other)]))
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.commands.add_settlements([make.settlement(command)]))
        assert store.read(lambda tx: tx.commands.settlement(command.event_id)) == first

    @proves("CC-70")
    def test_a_history_is_read_in_the_order_of_writing_and_from_its_newest_end(
        self, store: StoreUnderTest, make: ChannelSamples
    ) -> None:
        command, other = make.command(), make.command()
        store.relay(command, other)
        lines = [make.line(command, what, reason=f"{what}\0") for what in HistoryEvent]
        half = len(lines) // 2
        store.transact(lambda tx: tx.commands.add_history([*lines[:half], make.line(other)]))
        store.transact(lambda tx: tx.commands.add_history(lines[half:]))
        assert _history(store, command) == lines
        assert _history(store, command, limit=3) == lines[-3:]
        assert _history(store, command, limit=0) == []
        assert len(_history(store, other)) == 1
        assert _history(store, make.command()) == []

    @pytest.mark.parametrize("status", list(CommandStatus))
    def test_a_page_holds_commands_of_its_statuses_newest_first(
        self, store: StoreUnderTest, make: ChannelSamples, status: CommandStatus
    ) -> None:
        commands = _one_of_each(store, make) + _one_of_each(store, make)
        _one_of_each(store, make, tenant="other")
        newest_first = sorted(commands, key=lambda command: command.event_id, reverse=True)
        assert _page(store) == newest_first
        assert _page(store, status) == [command for command in newest_first if command.status is status]
        both = (status, CommandStatus.PENDING)
        assert _page(store, *both) == [command for command in newest_first if command.status in both]

    def test_a_page_continues_before_an_id_within_its_limit(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        newest_first = sorted(_one_of_each(store, make), key=lambda command: command.event_id, reverse=True)
        before = newest_first[1].event_id
        pages = store.read(
            lambda tx: [tx.commands.page(tenant=TENANT, statuses=[], before=before, limit=limit) for limit in (1, 2, 4)]
        )
        assert pages == [newest_first[2:3], newest_first[2:4], newest_first[2:6]]

    @proves("CC-24", "CC-58")
    def test_counts_are_of_what_is_unfinished_and_say_since_when(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        staged = [make.intent() for _ in range(3)]
        store.stage(*staged, make.intent(tenant="other"))
        commands = _one_of_each(store, make) + _one_of_each(store, make)
        _one_of_each(store, make, tenant="other")
        expected: dict[str, tuple[int, Instant | None]] = {"staged": (3, staged[0].staged_at)}
        for status in CommandStatus:
            of_it = [command.accepted_at for command in commands if command.status is status]
            if status not in ENDS:
                expected[status.value] = (len(of_it), min(of_it))
        assert store.read(lambda tx: tx.commands.counts(TENANT)) == expected
        assert store.read(lambda tx: tx.commands.counts("nobody")) == {}

    def test_the_next_due_instant_is_of_an_intent_or_of_a_command(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        now = make.now
        at = [after_ms(now, ms) for ms in (1000, 2000, 3000, 4000)]
        assert _next_due(store, now) is None
        waiting, blocked = make.command(), make.command(is_blocked=True)
        store.stage(make.intent(due_at=at[0]), make.intent(due_at=at[2]))
        store.relay(replace(waiting, claimable_at=at[1]), blocked)
        assert [_next_due(store, Instant(after - 1)) for after in at] == [at[0], at[1], at[2], None]
        assert _next_due(store, at[0]) == at[1]

    def test_kinds_are_kept_with_what_they_may(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command(kind=kind) for kind in (CANCEL, NOTE)]
        store.relay(*commands)
        assert [store.command(command.event_id).intent.kind for command in commands] == [CANCEL, NOTE]


def lived(store: StoreUnderTest, command: Command, life: str, now: Instant) -> Command:
    """Lead a stored command through a life, and return what became of it."""
    for step in LIVES[life]:
        command = step(command, now)
        store.deliver(command)
    return command


def _one_of_each(store: StoreUnderTest, make: ChannelSamples, tenant: str = TENANT) -> list[Command]:
    """Store one command of each life and return them as they are read."""
    pending = {life: make.command(tenant=tenant) for life in LIVES}
    store.relay(*pending.values())
    return [relayed(lived(store, command, life, make.now)) for life, command in pending.items()]


def _history(store: StoreUnderTest, command: Command, *, limit: int = 100) -> list[HistoryLine]:
    return store.read(lambda tx: tx.commands.history(command.event_id, limit=limit))


def _page(store: StoreUnderTest, *statuses: str) -> list[Command]:
    return store.read(lambda tx: tx.commands.page(tenant=TENANT, statuses=statuses, before=None, limit=100))


def _next_due(store: StoreUnderTest, now: Instant) -> Instant | None:
    return store.read(lambda tx: tx.commands.next_due(now=now))
