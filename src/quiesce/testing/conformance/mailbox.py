"""Mailboxes of runs: numbered by arrival, one entry a key, and an end that is never replaced."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvariantBroken, QuiesceError
from quiesce.domain.ids import CheckpointId, Position, ReceiptId, RunId
from quiesce.domain.mailbox import EntryId, EntryKind, MailboxEntry
from quiesce.domain.runs import Run
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class MailboxContract(StoreContract):
    """`Mailbox`."""

    @proves("C13")
    def test_an_entry_is_read_back_as_it_was_stored(self, store: StoreUnderTest, make: Samples) -> None:
        run = _added(store, make)
        wake = _entry(make, run, EntryKind.WAKE, name="order-7 📦", value={"ok": [1, None, "ü"]})
        stored = _add(store, wake)
        assert stored == replace(wake, number=1)
        assert store.read(lambda tx: tx.mailbox.get(wake.id)) == stored
        assert store.read(lambda tx: tx.mailbox.by_key(run.id, EntryKind.WAKE, wake.key)) == stored
        assert store.read(lambda tx: tx.mailbox.of_run(run.id)) == [stored]

    def test_what_is_not_there_is_not_found(self, store: StoreUnderTest, make: Samples) -> None:
        run = _added(store, make)
        entry = _add(store, _entry(make, run))
        assert store.read(lambda tx: tx.mailbox.get(EntryId(make.id()))) is None
        assert store.read(lambda tx: tx.mailbox.by_key(run.id, EntryKind.WAKE, entry.key)) is None
        assert store.read(lambda tx: tx.mailbox.by_key(RunId(make.id()), entry.kind, entry.key)) is None
        assert store.read(lambda tx: tx.mailbox.of_run(RunId(make.id()))) == []

    def test_entries_are_numbered_by_run_in_the_order_of_their_arrival(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = _added(store, make), _added(store, make)
        stored = [_add(store, _entry(make, of)) for of in (run, other, run, run, other)]
        assert [entry.number for entry in stored] == [1, 1, 2, 3, 2]
        assert store.read(lambda tx: tx.mailbox.of_run(run.id)) == [e for e in stored if e.run_id == run.id]

    @proves("CC-47")
    def test_a_second_entry_of_a_key_is_an_error_and_changes_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        run = _added(store, make)
        first = _add(store, _entry(make, run))
        with pytest.raises(InvariantBroken):
            _add(store, replace(_entry(make, run), key=first.key))
        wake = _add(store, replace(_entry(make, run, EntryKind.WAKE), key=first.key))
        assert store.read(lambda tx: tx.mailbox.of_run(run.id)) == [first, wake]

    @proves("C13")
    def test_the_queue_holds_one_kind_and_name_of_one_run_oldest_first(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = _added(store, make), _added(store, make)
        a1, b, a2 = (_add(store, _entry(make, run, EntryKind.WAKE, name=name)) for name in ("a", "b", "a"))
        said = _add(store, _entry(make, run))
        _add(store, _entry(make, other, EntryKind.WAKE, name="a"))

        def queued(kind: EntryKind, name: str = "", limit: int = 10) -> list[MailboxEntry]:
            return store.read(lambda tx: tx.mailbox.queued(run.id, kind, name=name, limit=limit))

        assert queued(EntryKind.WAKE, "a") == [a1, a2]
        assert queued(EntryKind.WAKE, "a", limit=1) == [a1]
        assert queued(EntryKind.WAKE, "b") == [b]
        assert queued(EntryKind.WAKE, "c") == []
        assert queued(EntryKind.CORRECTION) == [said]
        assert store.read(lambda tx: tx.mailbox.count_queued(run.id)) == 4

    @proves("C07")
    def test_an_end_is_stored_once_and_takes_the_entry_out_of_the_queue(self, store: StoreUnderTest, make: Samples) -> None:
        run = _added(store, make)
        applied, withdrawn, queued = (_add(store, _entry(make, run)) for _ in range(3))
        ended = [
            applied.applied(Position("7"), CheckpointId(make.id()), make.now),
            withdrawn.withdrawn(make.now),
        ]
        store.transact(lambda tx: tx.mailbox.save_many(ended))
        assert store.read(lambda tx: tx.mailbox.of_run(run.id)) == [*ended, queued]
        assert store.read(lambda tx: tx.mailbox.queued(run.id, EntryKind.CORRECTION, limit=10)) == [queued]
        again = applied.withdrawn(make.now)
        with pytest.raises(QuiesceError):
            store.transact(lambda tx: tx.mailbox.save_many([again]))
        assert store.read(lambda tx: tx.mailbox.get(applied.id)) == ended[0]

    def test_what_was_sealed_is_not_written_again(self, store: StoreUnderTest, make: Samples) -> None:
        run = _added(store, make)
        entry = _add(store, _entry(make, run))
        changed = replace(entry.withdrawn(make.now), body=b'"other"', subject="eve", number=9)
        store.transact(lambda tx: tx.mailbox.save_many([changed]))
        assert store.read(lambda tx: tx.mailbox.get(entry.id)) == replace(
            changed, body=entry.body, subject=entry.subject, number=entry.number
        )

    @proves("C07")
    def test_what_is_still_queued_is_returned_with_the_end_of_its_run_alone(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = _added(store, make), _added(store, make)
        first, second, wake = (
            _add(store, _entry(make, run, kind)) for kind in (EntryKind.CORRECTION, EntryKind.CORRECTION, EntryKind.WAKE)
        )
        elsewhere = _add(store, _entry(make, other))
        withdrawn = first.withdrawn(make.now)
        receipt_id, at = ReceiptId(make.id()), make.now

        store.transact(lambda tx: tx.mailbox.save_many([withdrawn]))
        store.transact(lambda tx: tx.mailbox.return_all(run.id, receipt_id, at))
        store.transact(lambda tx: tx.mailbox.return_all(run.id, ReceiptId("another"), at))
        assert store.read(lambda tx: tx.mailbox.of_run(run.id)) == [
            withdrawn,
            *(e.returned(receipt_id, at) for e in (second, wake)),
        ]
        assert store.read(lambda tx: tx.mailbox.of_run(other.id)) == [elsewhere]
        assert store.read(lambda tx: tx.mailbox.count_queued(run.id)) == 0


def _added(store: StoreUnderTest, make: Samples) -> Run:
    run = make.running()
    store.add(run)
    return run


def _entry(
    make: Samples, run: Run, kind: EntryKind = EntryKind.CORRECTION, *, name: str = "", value: object = "no"
) -> MailboxEntry:
    entry_id = EntryId(make.id())
    return MailboxEntry(
        id=entry_id,
        run_id=run.id,
        number=0,
        kind=kind,
        name=name,
        key=f"key of {entry_id}",
        subject="ada",
        body=canonical(value),
        arrived_at=make.now,
    )


def _add(store: StoreUnderTest, entry: MailboxEntry) -> MailboxEntry:
    return store.transact(lambda tx: tx.mailbox.add(entry))
