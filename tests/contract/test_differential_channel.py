"""The control channel, on the other stores as on the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from quiesce.domain.commands import Intent, IntentStatus, Kind, Target
from quiesce.domain.deliveries import TERMINAL, TRANSITIONS, Admission, Command, CommandStatus, HistoryEvent
from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.ports.store import Transaction
from quiesce.testing.channel_samples import CANCEL, CORRECT, NOTE, OWNER, ChannelSamples
from quiesce.testing.samples import TENANT
from tests.contract.differential import SideBySide, Url, compare, postgres_url, sqlite_url

SCOPES = ("a", "b", "c")
TENANTS = (TENANT, "other")
BOUND = 4
numbers = st.integers(0, 30)
moments = st.integers(-1, 3).map(lambda n: 100 * n)
kinds = st.sampled_from([CORRECT, CORRECT, NOTE, CANCEL, Kind(name="correct", version=2)])
scopes = st.sampled_from(SCOPES)
tenants = st.sampled_from([*TENANTS, TENANT])
targets = st.integers(0, 3).map(lambda n: Target(owner=(OWNER, "vault")[n // 2], id=f"target {n % 2}"))
consumers = st.sets(
    st.tuples(st.sampled_from([OWNER, "vault"]), st.sampled_from(["correct", "note", "cancel"]), st.integers(1, 2)),
    min_size=1,
    max_size=6,
)
Move = Callable[[Command, Instant], Command]
MOVES: dict[CommandStatus, Move] = {
    CommandStatus.PENDING: lambda c, now: replace(c, is_uncertain=False).deferred(after_ms(now, 100), "unreadable"),
    CommandStatus.CLAIMED: lambda c, now: c.taken(WorkerId("w"), after_ms(now, 200)).started(),
    CommandStatus.UNKNOWN: lambda c, now: c.unknown(after_ms(now, 100), "answer lost"),
    CommandStatus.QUARANTINED: lambda c, _: c.quarantined("attempts used up"),
    CommandStatus.SETTLED: lambda c, now: c.closed(CommandStatus.SETTLED, now),
    CommandStatus.DISCARDED: lambda c, now: c.closed(CommandStatus.DISCARDED, now, "superseded"),
    CommandStatus.EXPIRED: lambda c, now: c.closed(CommandStatus.EXPIRED, now, "too late"),
}


class Channel(SideBySide):
    """Intents, commands, targets, scopes and receipts."""

    def __init__(self, url: Url) -> None:
        super().__init__(url)
        self.make = ChannelSamples()
        self.intents: list[Intent] = []
        self.commands: list[Command] = []
        self.now = self.make.now

    @initialize()
    def open(self) -> None:
        self.open_stores()
        for scope in SCOPES:
            self.stage(TENANT, scope, CORRECT, Target(owner=OWNER, id=f"of {scope}"), due_ms=0, key=None)
        self.relay(limit=9)

    @rule(
        tenant=tenants,
        scope=scopes,
        kind=kinds,
        on=targets,
        due_ms=moments,
        key=st.none() | st.integers(0, 3).map(str),
    )
    def stage(self, tenant: str, scope: str, kind: Kind, on: Target, due_ms: int, key: str | None) -> None:
        intent = self.make.intent(tenant=tenant, scope=scope, kind=kind, target=on, due_at=after_ms(self.now, due_ms))
        if key is not None:
            intent = replace(intent, producer_key=key)

        def fn(tx: Transaction) -> tuple[bool, bool]:
            if not tx.intents.take_place(tenant, scope, overtakes=kind.overtakes, bound=BOUND, reserve=1):
                return False, False
            is_new = tx.intents.insert(intent)
            if not is_new:
                tx.intents.give_back({(tenant, scope): 1})
            return True, is_new

        if all(self.both(fn)):
            self.intents.append(intent)

    @rule(number=numbers, status=st.sampled_from(list(IntentStatus)[1:]))
    def end(self, number: int, status: IntentStatus) -> None:
        """End an intent, also one that has ended already: that is refused."""
        intent = self.intents[number % len(self.intents)]

        def fn(tx: Transaction) -> bool:
            tx.intents.lock(intent.id)
            tx.intents.end([intent.id], status, self.now)
            tx.intents.give_back({(intent.tenant, intent.scope): 1})
            return True

        if status is not IntentStatus.RELAYED:
            self.both_may_refuse(fn)

    @rule(limit=st.integers(1, 9))
    def relay(self, limit: int) -> None:
        ids = [self.make.command() for _ in range(limit)]

        def fn(tx: Transaction) -> list[Command]:
            due = tx.intents.due(now=self.now, limit=limit)
            states = tx.commands.lock_targets({intent.target for intent in due})
            blocked = tx.commands.blocked_targets(states)
            commands = []
            for intent, sample in zip(due, ids, strict=False):
                state = states[intent.target]
                states[intent.target] = state = replace(state, last_number=state.last_number + 1)
                waits = intent.target in blocked and not intent.kind.overtakes
                command = replace(sample, intent=intent, number=state.last_number, claimable_at=None if waits else self.now)
                blocked.add(intent.target)
                commands.append(command)
            tx.commands.insert_many(commands)
            tx.intents.end([intent.id for intent in due], IntentStatus.RELAYED, self.now)
            tx.commands.save_targets(list(states.values()))
            return commands

        self.commands += self.both(fn)

    @rule(number=numbers, again=numbers)
    def accept_twice(self, number: int, again: int) -> None:
        """Make a second command of an intent, or under a number that is taken: refused."""
        known, other = self.commands[number % len(self.commands)], self.commands[again % len(self.commands)]
        second = replace(self.make.command(known.intent), number=other.number)

        def fn(tx: Transaction) -> bool:
            tx.commands.insert_many([second])
            return True

        assert self.both_may_refuse(fn) is None

    @rule(
        wanted=consumers,
        limit=st.integers(1, 6),
        after=st.none() | st.tuples(tenants, scopes),
        scopes_max=st.sampled_from([1, 2, 64]),
        takes=st.booleans(),
    )
    def claim(self, wanted: set[Consumer], limit: int, after: ScopeKey | None, scopes_max: int, takes: bool) -> None:
        def fn(tx: Transaction) -> list[Command]:
            found = tx.commands.claimable(wanted, now=self.now, limit=limit, after=after, scopes_max=scopes_max)
            if takes:
                tx.commands.save_many([command.taken(WorkerId("w"), after_ms(self.now, 100)) for command in found])
            return found

        self.both(fn)

    @precondition(lambda self: self.commands)
    @rule(number=numbers, status=st.sampled_from(CommandStatus), verdict=st.sampled_from(Admission), lets=st.booleans())
    def move(self, number: int, status: CommandStatus, verdict: Admission, lets: bool) -> None:
        """Lead a command on as the domain allows; free its place, let through who waited, write its history."""
        event_id = self.commands[number % len(self.commands)].event_id
        command = self.stores[0].command(event_id)
        if status not in TRANSITIONS[command.status] or (status is CommandStatus.PENDING and command.is_uncertain):
            return
        moved = MOVES[status](command, self.now)
        settlement = self.make.settlement(moved, self.make.admission(command, verdict=verdict))
        line = self.make.line(moved, HistoryEvent.CLAIMED, reason=str(status))

        def fn(tx: Transaction) -> list[Command]:
            tx.commands.lock(event_id)
            tx.commands.save_many([moved])
            tx.commands.add_history([line])
            if status is CommandStatus.SETTLED:
                tx.commands.add_settlements([settlement])
            freed: list[Command] = []
            if lets:
                tx.commands.lock_targets([moved.target])
                freed = tx.commands.unblocked([moved.target])
                tx.commands.save_many([replace(command, claimable_at=self.now) for command in freed])
            if status in TERMINAL:
                tx.intents.give_back({(moved.intent.tenant, moved.intent.scope): 1})
            return freed

        self.both(fn)

    @rule(on=targets, revision=st.integers(0, 3))
    def supersede(self, on: Target, revision: int) -> None:
        def fn(tx: Transaction) -> list[Command]:
            state = tx.commands.lock_targets([on])[on]
            tx.commands.save_targets([replace(state, revision=max(state.revision, revision))])
            return tx.commands.unblocked([on])

        self.both(fn)

    @rule(number=numbers, verdict=st.sampled_from(Admission))
    def admit(self, number: int, verdict: Admission) -> None:
        command = self.commands[number % len(self.commands)]
        receipt = self.make.admission(command, verdict=verdict)
        self.both(lambda tx: (tx.admissions.add(receipt), tx.admissions.get(command.key)))

    @rule(tenant=tenants, scope=scopes, bound=st.integers(0, 6), reserve=st.integers(0, 2))
    def resize(self, tenant: str, scope: str, bound: int, reserve: int) -> None:
        self.both(lambda tx: tx.intents.set_capacity(tenant, scope, bound=bound, reserve=reserve))

    @rule(tenant=tenants, scope=scopes, count=st.integers(1, 3))
    def give_back_too_much(self, tenant: str, scope: str, count: int) -> None:
        def fn(tx: Transaction) -> bool:
            room = tx.intents.capacity(tenant, scope)
            tx.intents.give_back({(tenant, scope): count + (room.used if room else 0)})
            return True

        assert self.both_may_refuse(fn) is None

    @rule(duration_ms=st.sampled_from([100, 200]))
    def wait(self, duration_ms: int) -> None:
        self.now = after_ms(self.now, duration_ms)

    @rule(number=numbers, statuses=st.sets(st.sampled_from(CommandStatus)), limit=st.integers(1, 5), tenant=tenants)
    def look(self, number: int, statuses: set[CommandStatus], limit: int, tenant: str) -> None:
        before = self.commands[number % len(self.commands)].event_id
        self.both_read(lambda tx: tx.commands.page(tenant=tenant, statuses=statuses, before=before, limit=limit))
        self.both_read(lambda tx: tx.commands.page(tenant=tenant, statuses=statuses, before=None, limit=limit))
        self.both_read(lambda tx: tx.commands.history(before, limit=limit))
        self.both_read(lambda tx: tx.commands.next_due(now=self.now))

    @invariant()
    def both_hold_the_same(self) -> None:
        def everything(tx: Transaction) -> list[object]:
            known = {intent.target for intent in self.intents}
            return [
                [tx.intents.get(intent.id) for intent in self.intents],
                [tx.intents.by_key(intent.tenant, intent.producer, intent.producer_key) for intent in self.intents],
                [tx.commands.get(command.event_id) for command in self.commands],
                [tx.commands.settlement(command.event_id) for command in self.commands],
                [tx.commands.history(command.event_id, limit=100) for command in self.commands],
                [(tx.intents.capacities(tenant), tx.commands.counts(tenant)) for tenant in TENANTS],
                (tx.commands.targets(known), tx.commands.blocked_targets(known)),
            ]

        self.both_read(everything)


def test_sqlite_does_what_the_oracle_does() -> None:
    compare(Channel, sqlite_url, examples=30)


def test_postgres_does_what_the_oracle_does(postgres_server: str) -> None:
    compare(Channel, postgres_url(postgres_server), examples=12)
