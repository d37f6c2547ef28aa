"""What a worker finds to deliver: claimable commands, fair over their scopes, and the order of a target's commands."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import IntentStatus, Kind, Target
from quiesce.domain.deliveries import Command, CommandStatus
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.ports.store import Transaction
from quiesce.testing.channel_samples import CANCEL, CORRECT, NOTE, OWNER, ChannelSamples, relayed
from quiesce.testing.conformance.commands import ENDS, LIVES, WORKER, lived
from quiesce.testing.conformance.intents import ChannelContract
from quiesce.testing.conformance.subject import StoreUnderTest, proves
from quiesce.testing.samples import TENANT

CORRECTS: Consumer = (OWNER, CORRECT.name, CORRECT.version)
CANCELS: Consumer = (OWNER, CANCEL.name, CANCEL.version)


class DeliveriesContract(ChannelContract):
    """`Commands.claimable`."""

    @proves("CC-28")
    def test_commands_are_claimable_from_their_instant_on_oldest_first(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command() for _ in range(4)]
        store.relay(*reversed(commands))
        assert _claimable(store, Instant((commands[0].claimable_at or 0) - 1)) == []
        assert _claimable(store, commands[1].claimable_at) == commands[:2]
        assert _claimable(store, make.now) == commands
        assert _claimable(store, make.now, limit=3) == commands[:3]

    def test_of_two_that_are_due_at_once_the_lower_id_is_first(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        first, second = make.command(), make.command()
        at_once = replace(first, claimable_at=second.claimable_at)
        store.relay(second, at_once)
        assert _claimable(store, make.now) == [at_once, second]

    @proves("CC-32")
    def test_only_what_the_worker_understands_is_claimable(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        correct, newer = make.command(), make.command(kind=Kind(name=CORRECT.name, version=2))
        cancel = make.command(kind=CANCEL)
        elsewhere = make.command(target=make.target("other owner"))
        store.relay(correct, newer, cancel, elsewhere)
        assert _claimable(store, make.now) == [correct]
        assert _claimable(store, make.now, CORRECTS, CANCELS) == [correct, cancel]
        assert _claimable(store, make.now, (OWNER, CORRECT.name, 2), CORRECTS) == [correct, newer]
        assert _claimable(store, make.now, ("other owner", CORRECT.name, 1)) == [elsewhere]
        assert store.transact(lambda tx: tx.commands.claimable([], now=make.now, limit=9, after=None)) == []

    @proves("CC-29", "CC-30")
    @pytest.mark.parametrize("life", LIVES)
    def test_a_command_is_claimable_from_the_instant_that_its_state_names(
        self, store: StoreUnderTest, make: ChannelSamples, life: str
    ) -> None:
        pending = make.command()
        store.relay(pending)
        command = lived(store, pending, life, make.now)
        if life in (*ENDS, "quarantined"):
            assert _claimable(store, after_ms(make.now, 86_400_000)) == []
            return
        assert command.claimable_at is not None
        assert _claimable(store, Instant(command.claimable_at - 1)) == []
        assert _claimable(store, command.claimable_at) == [command]

    @proves("CC-19")
    def test_an_intent_or_a_command_held_up_is_not_claimable(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        store.stage(make.intent())
        store.relay(make.command(is_blocked=True))
        assert _claimable(store, after_ms(make.now, 86_400_000)) == []

    @proves("CC-29")
    def test_what_was_claimed_is_locked_and_gone_for_the_next(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command() for _ in range(3)]
        store.relay(*commands)
        until = after_ms(make.now, 1000)

        def claim(tx: Transaction) -> list[Command]:
            found = tx.commands.claimable([CORRECTS], now=make.now, limit=2, after=None)
            taken = [command.taken(WORKER, until) for command in found]
            tx.commands.save_many(taken)
            return taken

        first = store.transact(claim)
        assert [command.event_id for command in first] == [command.event_id for command in commands[:2]]
        assert _claimable(store, make.now) == commands[2:]
        assert _claimable(store, until, limit=9) == [commands[2], *[_plain(command) for command in first]]

    @proves("CC-18")
    def test_each_scope_gives_its_first_before_any_gives_its_second(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        deep = [make.command(scope="a") for _ in range(5)]
        shallow = [make.command(scope="b") for _ in range(2)]
        single = [make.command(scope="c")]
        store.relay(*deep, *shallow, *single)
        in_order = [deep[0], shallow[0], single[0], deep[1], shallow[1], deep[2], deep[3], deep[4]]
        for limit in range(1, 9):
            assert _claimable(store, make.now, limit=limit) == in_order[:limit]

    def test_a_claim_begins_behind_the_scope_it_is_given_and_goes_round(
        self, store: StoreUnderTest, make: ChannelSamples
    ) -> None:
        commands = {
            (tenant, scope): make.command(tenant=tenant, scope=scope) for tenant in ("a", "b") for scope in ("x", "y", "z")
        }
        store.relay(*commands.values())
        ring: list[ScopeKey] = sorted(commands)
        for turn, after in enumerate(ring, start=1):
            expected = [commands[scope] for scope in ring[turn:] + ring[:turn]]
            assert _claimable(store, make.now, after=after) == expected
            assert _claimable(store, make.now, after=after, limit=2) == expected[:2]
        assert _claimable(store, make.now, after=("a", "xx"), limit=1) == [commands["a", "y"]]
        assert _claimable(store, make.now, after=("zz", "zz")) == [commands[scope] for scope in ring]

    def test_scopes_beyond_the_bound_wait_for_the_next_turn(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command(scope=f"scope {n}") for n in range(7)]
        store.relay(*commands)
        seen: list[Command] = []
        after: ScopeKey | None = None
        for _ in range(3):
            found = _claimable(store, make.now, after=after, scopes_max=3)
            assert len(found) == 3
            seen += found
            after = (TENANT, found[-1].intent.scope)
        assert seen == commands + commands[:2]

    def test_a_scope_with_nothing_due_takes_no_place_among_the_scopes(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        busy = [make.command(scope=f"scope {n}").taken(WORKER, after_ms(make.now, 9000)) for n in range(5)]
        due = make.command(scope="scope 9")
        store.relay(*busy, due)
        assert _claimable(store, make.now, scopes_max=1) == [due]
        assert _claimable(store, make.now, scopes_max=1, after=(TENANT, "scope 9")) == [due]

    def test_kinds_of_one_scope_share_its_turn(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        kinds = [CANCEL, CORRECT, CORRECT, CANCEL, CORRECT]
        mixed = [make.command(scope="a", kind=kind) for kind in kinds]
        other = make.command(scope="b")
        store.relay(*mixed, other)
        expected = [mixed[0], other, *mixed[1:]]
        for limit in range(1, 7):
            assert _claimable(store, make.now, CORRECTS, CANCELS, limit=limit) == expected[:limit]

    def test_many_scopes_are_served_in_turn_to_the_last_command(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        commands = [make.command(scope=f"scope {n % 5}", kind=(CANCEL, CORRECT)[n % 2]) for n in range(40)]
        store.relay(*commands)
        served: list[Command] = []
        after: ScopeKey | None = None
        while found := _claim_and_end(store, make.now, after):
            served += found
            after = (TENANT, found[-1].intent.scope)
        assert sorted(command.event_id for command in served) == [command.event_id for command in commands]
        for scope in {command.intent.scope for command in commands}:
            of_it = [command.event_id for command in served if command.intent.scope == scope]
            assert of_it == sorted(of_it)


class OrderContract(ChannelContract):
    """`Commands.blocked_targets` and `unblocked`: the order of a target's commands (G-09)."""

    @proves("CC-17")
    @pytest.mark.parametrize("life", LIVES)
    @pytest.mark.parametrize("kind", [CORRECT, NOTE, CANCEL], ids=lambda kind: kind.name)
    def test_a_later_command_waits_as_the_domain_says(
        self, store: StoreUnderTest, make: ChannelSamples, life: str, kind: Kind
    ) -> None:
        target = make.target()
        first = make.command(target=target, kind=kind)
        second = make.command(target=target, number=2, is_blocked=True)
        store.relay(first, second)
        first = lived(store, first, life, make.now)
        waits = first.blocks(second, revision=0)
        assert _unblocked(store, target) == ([] if waits else [second])
        store.deliver(second.closed(CommandStatus.DISCARDED, make.now))
        assert _blocked(store, target) == ({target} if waits else set())

    @proves("CC-17")
    def test_an_uncertain_command_that_is_read_again_still_counts_as_stuck(
        self, store: StoreUnderTest, make: ChannelSamples
    ) -> None:
        target = make.target()
        first = make.command(target=target, kind=NOTE)
        second = make.command(target=target, number=2, is_blocked=True)
        store.relay(first, second)
        stuck = lived(store, first, "unknown", make.now)
        store.deliver(stuck.taken(WORKER, after_ms(make.now, 1000)))
        assert _unblocked(store, target) == [second]

    @proves("CC-17", "CC-18")
    def test_one_command_of_each_target_is_let_through(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        one, other, free = (make.target() for _ in range(3))
        waiting = [make.command(target=target, number=number, is_blocked=True) for number in (2, 3) for target in (other, one)]
        front = make.command(target=one)
        store.relay(front, *waiting, make.command(target=free))
        assert _unblocked(store, one, other, free) == [waiting[0]]
        store.deliver(front.closed(CommandStatus.EXPIRED, make.now))
        assert _unblocked(store, one, other, free) == waiting[:2]
        assert _unblocked(store, free) == []
        assert store.transact(lambda tx: tx.commands.unblocked([])) == []

    @proves("CC-17")
    def test_one_let_through_holds_up_the_next(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        target = make.target()
        waiting = [make.command(target=target, number=number, is_blocked=True) for number in (1, 2, 3)]
        store.relay(*waiting)

        def let_through(tx: Transaction) -> None:
            tx.commands.lock_targets([target])
            tx.commands.save_many([replace(c, claimable_at=make.now) for c in tx.commands.unblocked([target])])

        store.transact(let_through)
        store.transact(let_through)
        assert [store.command(command.event_id).claimable_at for command in waiting] == [make.now, None, None]

    @proves("CC-17")
    def test_a_later_command_does_not_hold_up_an_earlier_one(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        target = make.target()
        first = make.command(target=target, is_blocked=True)
        overtaking = make.command(target=target, number=2, kind=CANCEL)
        store.relay(first, overtaking)
        assert _unblocked(store, target) == [first]
        assert _blocked(store, target) == {target}

    @proves("CC-18")
    def test_targets_of_the_same_id_are_told_apart_by_their_owner(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        mine = make.target()
        theirs = Target(owner="other owner", id=mine.id)
        store.relay(make.command(target=mine))
        assert _blocked(store, mine, theirs) == {mine}
        assert _blocked(store) == set()


def _claimable(
    store: StoreUnderTest,
    now: Instant | None,
    *consumers: Consumer,
    limit: int = 100,
    after: ScopeKey | None = None,
    scopes_max: int = 64,
) -> list[Command]:
    """Return what is claimable, as it was made: what its relay changed of the intent is undone."""
    assert now is not None
    found = store.transact(
        lambda tx: tx.commands.claimable(consumers or [CORRECTS], now=now, limit=limit, after=after, scopes_max=scopes_max)
    )
    return [_plain(command) for command in found]


def _claim_and_end(store: StoreUnderTest, now: Instant, after: ScopeKey | None) -> list[Command]:
    def claim(tx: Transaction) -> list[Command]:
        found = tx.commands.claimable([CORRECTS, CANCELS], now=now, limit=7, after=after)
        tx.commands.save_many([command.closed(CommandStatus.DISCARDED, now) for command in found])
        return found

    return store.transact(claim)


def _unblocked(store: StoreUnderTest, *targets: Target) -> list[Command]:
    def find(tx: Transaction) -> list[Command]:
        tx.commands.lock_targets(targets)
        return tx.commands.unblocked(targets)

    return [_plain(command) for command in store.transact(find)]


def _blocked(store: StoreUnderTest, *targets: Target) -> set[Target]:
    return store.read(lambda tx: tx.commands.blocked_targets(targets))


def _plain(command: Command) -> Command:
    """Return the command as it was made, and check that it was read as one that was relayed."""
    made = replace(command, intent=replace(command.intent, status=IntentStatus.STAGED, ended_at=None))
    assert command == relayed(made)
    return made
