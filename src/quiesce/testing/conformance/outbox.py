"""The outbox: messages stored with their facts, pending until their delivery is recorded."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.canonical import canonical
from quiesce.domain.instant import after_ms
from quiesce.domain.publication import OutboxMessage
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
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

    @proves("NO-04")
    def test_what_is_claimed_is_taken_for_one_attempt_and_by_nobody_else(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        messages = [make.message(run) for _ in range(3)]
        _append(store, *messages)
        now, until = make.now, after_ms(make.now, 1000)
        taken = store.transact(lambda tx: tx.outbox.claim(now=now, until=until, limit=2))
        assert taken == [replace(m, due_at=until, attempts=1) for m in messages[:2]]
        assert store.transact(lambda tx: tx.outbox.claim(now=now, until=until, limit=9))[0].id == messages[2].id
        assert store.transact(lambda tx: tx.outbox.claim(now=now, until=until, limit=9)) == []
        later = after_ms(until, 1000)
        again = store.transact(lambda tx: tx.outbox.claim(now=until, until=later, limit=9))
        assert [(m.id, m.attempts) for m in again] == [(m.id, 2) for m in messages]

    @proves("NO-04")
    def test_what_is_not_due_or_delivered_is_not_claimed(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        early, late, told = (make.message(run) for _ in range(3))
        late = replace(late, due_at=after_ms(make.now, 5000))
        _append(store, early, late, told)
        store.transact(lambda tx: tx.outbox.mark_delivered(told.id, make.now))
        now = make.now
        found = store.transact(lambda tx: tx.outbox.claim(now=now, until=after_ms(now, 1000), limit=9))
        assert [m.id for m in found] == [early.id]

    @proves("NO-04", "NO-06")
    def test_a_failed_attempt_is_put_off_and_one_that_is_over_moves_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        message = make.message(run)
        _append(store, message)
        now, until, later = make.now, after_ms(make.now, 1000), after_ms(make.now, 9000)
        store.transact(lambda tx: tx.outbox.claim(now=now, until=until, limit=9))
        store.transact(lambda tx: tx.outbox.postpone(message.id, attempts=9, due_at=later, failure="Stale"))
        (unmoved,) = store.read(lambda tx: tx.outbox.pending(limit=9))
        assert (unmoved.due_at, unmoved.failure) == (until, "")
        store.transact(lambda tx: tx.outbox.postpone(message.id, attempts=1, due_at=later, failure="OSError"))
        (put_off,) = store.read(lambda tx: tx.outbox.pending(limit=9))
        assert (put_off.due_at, put_off.failure, put_off.attempts) == (later, "OSError", 1)
        store.transact(lambda tx: tx.outbox.mark_delivered(message.id, make.now))
        store.transact(lambda tx: tx.outbox.postpone(message.id, attempts=1, due_at=now, failure="OSError"))
        assert store.read(lambda tx: tx.outbox.pending(limit=9)) == []


def _append(store: StoreUnderTest, *messages: OutboxMessage) -> None:
    def fn(tx: Transaction) -> None:
        for message in messages:
            tx.outbox.append(message)

    store.transact(fn)
