"""Intents and the room of their scopes, and the receipts of local owners: identity, order of falling due, exact places."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.commands import Capacity, Intent, IntentId, IntentStatus, Kind
from quiesce.domain.deliveries import Admission, AdmissionReceipt, CommandKey
from quiesce.domain.errors import InvariantBroken
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.store import Transaction
from quiesce.testing.channel_samples import CANCEL, NOTE, ChannelSamples
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import TENANT

SCOPE = "line 1"


class ChannelContract(StoreContract):
    """Base of the contracts of the control channel."""

    @pytest.fixture
    def make(self) -> ChannelSamples:
        """Builders of records."""
        return ChannelSamples()


class IntentsContract(ChannelContract):
    """`Intents`, but for the room of scopes."""

    @proves("CC-10", "CC-11")
    def test_an_intent_is_read_back_as_it_was_sealed(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        kind = Kind(name="correct 🛠", version=3, is_barrier=False, overtakes=True)
        later = after_ms(make.now, 5000)
        full = make.intent(kind=kind, revision=7, payload={"amount": 3, "text": "a\0b 🏦"}, due_at=later, not_after=later)
        full = replace(full, not_after=Instant(later + 1), payload=canonical({"x": ["\0"]}), subject="ada ☃")
        for intent in (full, make.intent(), make.intent(kind=CANCEL), make.intent(kind=NOTE)):
            assert _insert(store, intent)
            assert _get(store, intent) == intent
            found = store.read(lambda tx, i=intent: tx.intents.by_key(i.tenant, i.producer, i.producer_key))  # type: ignore[misc]
            assert found == intent

    @proves("CC-12", "CC-13")
    def test_a_key_names_one_intent_and_the_first_stands(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        first, second = make.intent(key="order-7", payload="first"), make.intent(key="order-7", payload="second")
        assert _insert(store, first)
        assert not _insert(store, second)
        assert store.read(lambda tx: tx.intents.by_key(TENANT, first.producer, "order-7")) == first
        assert _get(store, second) is None

    @proves("CC-12")
    def test_within_one_transaction_too_a_key_is_taken_once(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        first, second = make.intent(key="k"), make.intent(key="k")
        assert store.transact(lambda tx: [tx.intents.insert(first), tx.intents.insert(second)]) == [True, False]

    @proves("CC-12")
    def test_the_same_key_of_another_producer_or_tenant_is_another_one(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        intents = [make.intent(key="k"), make.intent(key="k", producer="other"), make.intent(key="k", tenant="other")]
        assert [_insert(store, intent) for intent in intents] == [True, True, True]
        for intent in intents:
            found = store.read(lambda tx, i=intent: tx.intents.by_key(i.tenant, i.producer, "k"))  # type: ignore[misc]
            assert found == intent

    def test_an_unknown_key_or_id_has_no_intent(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        unknown = IntentId(make.id())
        assert store.read(lambda tx: tx.intents.by_key(TENANT, "nobody", "k")) is None
        assert store.read(lambda tx: tx.intents.get(unknown)) is None
        assert store.transact(lambda tx: tx.intents.lock(unknown)) is None

    @proves("CC-20")
    def test_an_intent_of_a_transaction_that_fails_was_never_there(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        intent = make.intent(key="k", scope=SCOPE)

        def fail(tx: Transaction) -> None:
            _place(tx)
            tx.intents.insert(intent)
            raise LookupError("the producer changed its mind")

        with pytest.raises(LookupError):
            store.transact(fail)
        assert _get(store, intent) is None
        assert store.read(lambda tx: tx.intents.capacity(TENANT, SCOPE)) is None
        assert _insert(store, make.intent(key="k"))

    @proves("CC-11")
    @pytest.mark.parametrize("status", [IntentStatus.RELAYED, IntentStatus.WITHDRAWN, IntentStatus.EXPIRED])
    def test_an_intent_ends_once_and_nothing_else_of_it_changes(
        self, store: StoreUnderTest, make: ChannelSamples, status: IntentStatus
    ) -> None:
        intent, other = make.intent(), make.intent()
        store.stage(intent, other)
        _end(store, intent, status, make.now)
        assert _get(store, intent) == replace(intent, status=status, ended_at=make.now)
        assert _get(store, other) == other
        with pytest.raises(InvariantBroken):
            _end(store, intent, IntentStatus.EXPIRED, make.now)
        assert _get(store, intent) == replace(intent, status=status, ended_at=make.now)

    def test_an_intent_is_locked_before_it_ends(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        intent = make.intent()
        store.stage(intent)
        with pytest.raises(InvariantBroken, match="locked"):
            store.transact(lambda tx: tx.intents.end([intent.id], IntentStatus.EXPIRED, make.now))

    @proves("CC-23")
    def test_an_intent_is_due_from_its_instant_on(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        due_at = after_ms(make.now, 1000)
        intent = make.intent(due_at=due_at)
        store.stage(intent)
        assert _due(store, Instant(due_at - 1)) == []
        assert _due(store, due_at) == [intent]
        assert _due(store, after_ms(due_at, 86_400_000)) == [intent]

    def test_intents_fall_due_in_the_order_of_their_instants_within_the_limit(
        self, store: StoreUnderTest, make: ChannelSamples
    ) -> None:
        at = [after_ms(make.now, ms) for ms in (3000, 1000, 2000, 1000)]
        intents = [make.intent(due_at=due_at) for due_at in at]
        store.stage(*reversed(intents))
        in_order = [intents[3], intents[1], intents[2], intents[0]]
        assert _due(store, after_ms(make.now, 9000)) == in_order
        assert _due(store, after_ms(make.now, 9000), limit=2) == in_order[:2]

    @proves("CC-22")
    def test_what_has_ended_is_not_due(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        intents = [make.intent() for _ in range(4)]
        store.stage(*intents)
        for intent, status in zip(intents, list(IntentStatus)[1:], strict=False):
            _end(store, intent, status, make.now)
        assert _due(store, make.now) == intents[3:]

    def test_what_is_found_due_is_locked(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        intents = [make.intent() for _ in range(3)]
        store.stage(*intents)

        def relay(tx: Transaction) -> None:
            due = tx.intents.due(now=make.now, limit=2)
            tx.intents.end([intent.id for intent in due], IntentStatus.RELAYED, make.now)

        store.transact(relay)
        assert _due(store, make.now) == intents[2:]


class ScopesContract(ChannelContract):
    """`Intents.take_place`, `give_back` and the capacity of scopes."""

    @proves("CC-24", "CC-26")
    def test_a_scope_takes_as_many_as_its_bound(self, store: StoreUnderTest) -> None:
        assert store.read(lambda tx: tx.intents.capacity(TENANT, SCOPE)) is None
        assert [store.transact(lambda tx: _place(tx, bound=2)) for _ in range(4)] == [True, True, False, False]
        assert _capacity(store) == Capacity(tenant=TENANT, scope=SCOPE, bound=2, reserve=1, used=2)

    @proves("CC-24")
    def test_the_reserve_is_for_those_that_overtake(self, store: StoreUnderTest) -> None:
        asked = [False, False, True, False, True]
        taken = [store.transact(lambda tx, o=overtakes: _place(tx, bound=1, overtakes=o)) for overtakes in asked]  # type: ignore[misc]
        assert taken == [True, False, True, False, False]
        assert _capacity(store).used == 2

    def test_a_scope_without_any_room_is_not_made(self, store: StoreUnderTest) -> None:
        assert not store.transact(lambda tx: _place(tx, bound=0))
        assert not store.transact(lambda tx: _place(tx, bound=0, reserve=0, overtakes=True))
        assert store.read(lambda tx: tx.intents.capacity(TENANT, SCOPE)) is None
        assert store.transact(lambda tx: _place(tx, bound=0, overtakes=True))

    def test_a_known_scope_keeps_its_own_bound(self, store: StoreUnderTest) -> None:
        store.transact(lambda tx: tx.intents.set_capacity(TENANT, SCOPE, bound=2, reserve=0))
        assert [store.transact(lambda tx: _place(tx, bound=0)) for _ in range(3)] == [True, True, False]
        assert not store.transact(lambda tx: _place(tx, bound=100, overtakes=True))

    def test_a_bound_set_below_what_is_held_takes_nothing_away(self, store: StoreUnderTest) -> None:
        for _ in range(3):
            store.transact(_place)
        store.transact(lambda tx: tx.intents.set_capacity(TENANT, SCOPE, bound=1, reserve=0))
        assert _capacity(store) == Capacity(tenant=TENANT, scope=SCOPE, bound=1, reserve=0, used=3)
        assert not store.transact(_place)
        store.transact(lambda tx: tx.intents.give_back({(TENANT, SCOPE): 3}))
        assert store.transact(_place)

    @proves("CC-24")
    def test_places_given_back_are_free_again(self, store: StoreUnderTest) -> None:
        for scope in ("b", "b", "a", "c"):
            store.transact(lambda tx, s=scope: tx.intents.take_place(TENANT, s, overtakes=False, bound=2, reserve=0))  # type: ignore[misc]
        store.transact(lambda tx: tx.intents.give_back({(TENANT, "b"): 2, (TENANT, "a"): 1}))
        found = store.read(lambda tx: tx.intents.capacities(TENANT))
        assert [(room.scope, room.used) for room in found] == [("a", 0), ("b", 0), ("c", 1)]

    def test_giving_back_nothing_changes_nothing(self, store: StoreUnderTest) -> None:
        store.transact(lambda tx: tx.intents.give_back({}))
        assert store.read(lambda tx: tx.intents.capacities(TENANT)) == []

    @pytest.mark.parametrize("scope", [SCOPE, "unheard of"])
    def test_no_more_is_given_back_than_was_taken(self, store: StoreUnderTest, scope: str) -> None:
        store.transact(_place)
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.intents.give_back({(TENANT, scope): 2}))
        assert _capacity(store).used == 1

    def test_the_scopes_of_another_tenant_are_others(self, store: StoreUnderTest) -> None:
        store.transact(lambda tx: tx.intents.take_place("other", SCOPE, overtakes=False, bound=1, reserve=0))
        store.transact(lambda tx: _place(tx, bound=1))
        assert [room.tenant for room in store.read(lambda tx: tx.intents.capacities(TENANT))] == [TENANT]
        assert [room.tenant for room in store.read(lambda tx: tx.intents.capacities("other"))] == ["other"]
        assert store.read(lambda tx: tx.intents.capacities("nobody")) == []


class AdmissionsContract(ChannelContract):
    """`Admissions`."""

    @proves("CC-47")
    def test_a_command_key_has_one_receipt_and_the_first_stands(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command = make.command()
        first = replace(make.admission(command, reason="took\0it 🛑"), effect_ref="order 🏷")
        second = make.admission(command, verdict=Admission.REJECTED)
        assert store.transact(lambda tx: tx.admissions.add(first))
        assert not store.transact(lambda tx: tx.admissions.add(second))
        assert store.read(lambda tx: tx.admissions.get(command.key)) == first

    @pytest.mark.parametrize("verdict", list(Admission))
    def test_a_receipt_is_read_back_as_it_was_stored(
        self, store: StoreUnderTest, make: ChannelSamples, verdict: Admission
    ) -> None:
        command = make.command()
        receipt: AdmissionReceipt = make.admission(command, verdict=verdict)
        store.transact(lambda tx: tx.admissions.add(receipt))
        assert store.read(lambda tx: tx.admissions.get(command.key)) == receipt

    @proves("CC-43")
    def test_a_key_without_a_receipt_has_none(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        store.transact(lambda tx: tx.admissions.add(make.admission(make.command())))
        assert store.read(lambda tx: tx.admissions.get(CommandKey("control:other"))) is None

    @proves("CC-20")
    def test_a_receipt_of_a_transaction_that_fails_was_never_there(self, store: StoreUnderTest, make: ChannelSamples) -> None:
        command = make.command()

        def fail(tx: Transaction) -> None:
            tx.admissions.add(make.admission(command))
            raise LookupError("the effect could not be stored")

        with pytest.raises(LookupError):
            store.transact(fail)
        assert store.read(lambda tx: tx.admissions.get(command.key)) is None


def _insert(store: StoreUnderTest, intent: Intent) -> bool:
    return store.transact(lambda tx: tx.intents.insert(intent))


def _get(store: StoreUnderTest, intent: Intent) -> Intent | None:
    return store.read(lambda tx: tx.intents.get(intent.id))


def _due(store: StoreUnderTest, now: Instant, *, limit: int = 100) -> list[Intent]:
    return store.transact(lambda tx: tx.intents.due(now=now, limit=limit))


def _end(store: StoreUnderTest, intent: Intent, status: IntentStatus, at: Instant) -> None:
    def fn(tx: Transaction) -> None:
        tx.intents.lock(intent.id)
        tx.intents.end([intent.id], status, at)

    store.transact(fn)


def _place(tx: Transaction, *, bound: int = 10, reserve: int = 1, overtakes: bool = False) -> bool:
    return tx.intents.take_place(TENANT, SCOPE, overtakes=overtakes, bound=bound, reserve=reserve)


def _capacity(store: StoreUnderTest) -> Capacity:
    found = store.read(lambda tx: tx.intents.capacity(TENANT, SCOPE))
    assert found is not None
    return found
