"""Workers: one lease each, renewed, drained, expired, removed."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.workers import Renewal
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class WorkersContract(StoreContract):
    """`Workers`."""

    def test_a_worker_is_read_back_as_it_was_inserted(self, store: StoreUnderTest, make: Samples) -> None:
        worker, other = make.worker(), make.worker()
        store.add_workers(worker, other)
        assert store.read(lambda tx: tx.workers.get(worker.id)) == worker
        assert store.read(lambda tx: tx.workers.get(make.worker().id)) is None

    @proves("CC-38")
    def test_a_renewal_moves_the_lease(self, store: StoreUnderTest, make: Samples) -> None:
        worker, other = make.worker(), make.worker()
        store.add_workers(worker, other)
        later = after_ms(worker.lease_expires_at, 1)
        assert store.transact(lambda tx: tx.workers.renew(worker.id, expires_at=later)) is Renewal.RENEWED
        assert store.read(lambda tx: tx.workers.get(worker.id)) == replace(worker, lease_expires_at=later)
        assert store.read(lambda tx: tx.workers.get(other.id)) == other

    @proves("C69")
    def test_a_renewal_never_shortens_a_lease(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)
        earlier = Instant(worker.lease_expires_at - 1)
        assert store.transact(lambda tx: tx.workers.renew(worker.id, expires_at=earlier)) is Renewal.RENEWED
        assert store.read(lambda tx: tx.workers.get(worker.id)) == worker

    def test_an_expired_lease_that_nobody_removed_may_be_renewed(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker(lease_ms=1)
        store.add_workers(worker)
        later = after_ms(worker.lease_expires_at, 50_000)
        assert store.transact(lambda tx: tx.workers.renew(worker.id, expires_at=later)) is Renewal.RENEWED
        assert store.read(lambda tx: tx.workers.expired(now=Instant(later - 1), limit=5)) == []

    @proves("CC-38")
    def test_the_lease_of_a_removed_worker_is_lost(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)
        store.transact(lambda tx: tx.workers.remove(worker.id))
        later = after_ms(worker.lease_expires_at, 1)
        assert store.transact(lambda tx: tx.workers.renew(worker.id, expires_at=later)) is Renewal.LOST
        assert store.read(lambda tx: tx.workers.get(worker.id)) is None

    def test_removing_a_worker_that_is_gone_does_nothing(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)
        store.transact(lambda tx: tx.workers.remove(make.worker().id))
        assert store.read(lambda tx: tx.workers.get(worker.id)) == worker

    def test_a_draining_worker_is_marked_and_keeps_its_lease(self, store: StoreUnderTest, make: Samples) -> None:
        worker, other = make.worker(), make.worker()
        store.add_workers(worker, other)
        store.transact(lambda tx: tx.workers.drain(worker.id))
        assert store.read(lambda tx: tx.workers.get(worker.id)) == replace(worker, is_draining=True)
        assert store.read(lambda tx: tx.workers.get(other.id)) == other

    def test_expired_workers_come_oldest_expiry_first(self, store: StoreUnderTest, make: Samples) -> None:
        late, early, middle = (make.worker(lease_ms=ms) for ms in (3000, 1000, 2000))
        store.add_workers(late, early, middle)
        at_middle = middle.lease_expires_at
        assert store.read(lambda tx: tx.workers.expired(now=at_middle, limit=5)) == [early, middle]
        assert store.read(lambda tx: tx.workers.expired(now=Instant(at_middle - 1), limit=5)) == [early]
        assert store.read(lambda tx: tx.workers.expired(now=late.lease_expires_at, limit=2)) == [early, middle]
