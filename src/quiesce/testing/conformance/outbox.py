"""The outbox: messages stored with their facts, pending until their delivery is recorded."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.canonical import canonical
from quiesce.domain.evidence import OutboxMessage
from quiesce.domain.instant import after_ms
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest
from quiesce.testing.samples import Samples


class OutboxContract(StoreContract):
    """`Outbox`."""

    def test_undelivered_messages_come_oldest_first_within_the_limit(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        messages = [make.message(run, body={"n": n}) for n in range(4)]
        _append(store, *messages)
        assert store.read(lambda tx: tx.outbox.pending(limit=3)) == messages[:3]
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == messages

    def test_a_message_stored_already_is_passed_over(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        message = make.message(run, body="as it was")
        _append(store, message)
        _append(store, replace(message, body=canonical("as somebody wants it")))
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == [message]

    def test_a_delivered_message_is_pending_no_more(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        first, second = make.message(run), make.message(run)
        _append(store, first, second)
        store.transact(lambda tx: tx.outbox.mark_delivered(first.id, make.now))
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == [second]

    def test_a_delivered_message_does_not_come_back(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        message = make.message(run)
        _append(store, message)
        store.transact(lambda tx: tx.outbox.mark_delivered(message.id, make.now))
        store.transact(lambda tx: tx.outbox.mark_delivered(message.id, after_ms(make.now, 9)))
        _append(store, message)
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == []

    def test_the_delivery_of_a_message_that_is_not_there_changes_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        message = make.message(run)
        _append(store, message)
        store.transact(lambda tx: tx.outbox.mark_delivered(make.id(), make.now))
        assert store.read(lambda tx: tx.outbox.pending(limit=10)) == [message]


def _append(store: StoreUnderTest, *messages: OutboxMessage) -> None:
    def fn(tx: Transaction) -> None:
        for message in messages:
            tx.outbox.append(message)

    store.transact(fn)
