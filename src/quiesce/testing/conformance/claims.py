"""What workers, rescuers and timekeepers find: claimable, unsettled and overdue runs, judged at the given instant."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.workers import Worker
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import AGENT, Samples


class ClaimsContract(StoreContract):
    """`Runs.claimable`, `unsettled` and `overdue`."""

    @proves("CC-28")
    def test_pending_runs_are_claimable_oldest_first(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(4)]
        store.add(*reversed(runs))
        assert _claimable(store, make.now) == runs

    def test_a_claim_takes_no_more_than_its_limit(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(4)]
        store.add(*reversed(runs))
        assert _claimable(store, make.now, limit=3) == runs[:3]

    @proves("CC-32")
    def test_a_claim_takes_only_runs_of_its_agents(self, store: StoreUnderTest, make: Samples) -> None:
        red, green, blue = (make.run(agent=agent) for agent in ("red", "green", "blue"))
        store.add(red, green, blue)
        assert _claimable(store, make.now, "red", "blue", "unheard of") == [red, blue]
        assert store.transact(lambda tx: tx.runs.claimable(agents=[], now=make.now, limit=10)) == []

    def test_a_waiting_run_is_claimable_from_the_instant_it_is_due(self, store: StoreUnderTest, make: Samples) -> None:
        due_at = after_ms(make.now, 10_000)
        run = make.waiting(due_at)
        store.add(run, make.waiting(None))
        assert _claimable(store, Instant(due_at - 1)) == []
        assert _claimable(store, due_at) == [run]

    @proves("RR-03")
    def test_a_run_under_a_live_worker_is_not_claimable(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)
        store.add(make.running(worker))
        assert _claimable(store, Instant(worker.lease_expires_at - 1)) == []

    @proves("RR-04")
    def test_a_run_is_claimable_at_the_instant_its_holders_lease_runs_out(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        run = make.running(worker)
        store.add_workers(worker)
        store.add(run)
        assert _claimable(store, worker.lease_expires_at) == [run]

    @proves("RR-04")
    def test_a_run_of_a_removed_worker_is_claimable(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        run = make.running(worker)
        store.add_workers(worker)
        store.add(run)
        store.transact(lambda tx: tx.workers.remove(worker.id))
        assert _claimable(store, make.now) == [run]

    def test_a_renewed_lease_keeps_its_runs(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        store.add_workers(worker)
        store.add(make.running(worker))
        later = after_ms(worker.lease_expires_at, 1000)
        store.transact(lambda tx: tx.workers.renew(worker.id, expires_at=later))
        assert _claimable(store, worker.lease_expires_at) == []

    def test_a_claimed_run_is_gone_for_the_next_claim(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker()
        runs = [make.run() for _ in range(3)]
        store.add_workers(worker)
        store.add(*runs)
        store.save(runs[0].claimed(worker.id))
        assert _claimable(store, make.now) == runs[1:]

    @proves("RR-29")
    def test_no_settling_and_no_ended_run_is_ever_claimable(self, store: StoreUnderTest, make: Samples) -> None:
        settling = make.settling(make.worker(), make.now, deadline_at=make.now)
        ended = [make.settling(None, make.now).ended(status, make.now) for status in _ENDS]
        store.add(settling, *ended)
        assert _claimable(store, after_ms(make.now, 1_000_000)) == []

    def test_a_released_and_a_woken_run_are_claimable_at_once(self, store: StoreUnderTest, make: Samples) -> None:
        released, woken = make.running().released(), make.waiting(None).woken()
        store.add(released, woken)
        assert _claimable(store, make.now) == [released, woken]

    @proves("TR-59")
    def test_a_settlement_is_left_to_its_live_holder_until_its_time(self, store: StoreUnderTest, make: Samples) -> None:
        worker = make.worker(lease_ms=60_000)
        settle_at = after_ms(make.now, 10_000)
        run = make.settling(worker, settle_at)
        store.add_workers(worker)
        store.add(run, make.run(), make.running(worker))
        assert _unsettled(store, Instant(settle_at - 1)) == []
        assert _unsettled(store, settle_at) == [run]

    @proves("TR-59")
    @pytest.mark.parametrize("gone", ["never held", "expired", "removed"])
    def test_a_settlement_without_a_live_holder_is_anybodys(self, store: StoreUnderTest, make: Samples, gone: str) -> None:
        worker = make.worker(lease_ms=1000)
        run = make.settling(None if gone == "never held" else worker, after_ms(make.now, 1_000_000))
        if gone != "removed":
            store.add_workers(worker)
        store.add(run)
        now = worker.lease_expires_at if gone == "expired" else make.now
        assert _unsettled(store, now) == [run]

    def test_a_settled_run_is_unsettled_no_more(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.settling(None, make.now)
        store.add(run)
        store.save(run.ended(RunStatus.CANCELLED, make.now))
        assert _unsettled(store, after_ms(make.now, 1_000_000)) == []

    def test_unsettled_runs_come_within_the_limit(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.settling(None, make.now) for _ in range(3)]
        store.add(*runs)
        found = store.transact(lambda tx: tx.runs.unsettled(now=make.now, limit=2))
        assert len(found) == 2
        assert all(run in runs for run in found)

    @proves("RR-18")
    def test_idle_runs_are_overdue_from_the_instant_of_their_deadline(self, store: StoreUnderTest, make: Samples) -> None:
        deadline = after_ms(make.now, 10_000)
        pending, waiting = make.run(deadline_at=deadline), make.waiting(None, deadline_at=deadline)
        store.add(pending, waiting, make.run(), make.settling(None, make.now, deadline_at=deadline))
        assert _overdue(store, Instant(deadline - 1)) == []
        assert _overdue(store, deadline) == [pending, waiting]

    def test_a_running_run_is_overdue_only_without_a_live_holder(self, store: StoreUnderTest, make: Samples) -> None:
        live, dead = make.worker(lease_ms=60_000), make.worker(lease_ms=1000)
        deadline = after_ms(make.now, 10_000)
        held = make.running(live, deadline_at=deadline)
        left, orphan = make.running(dead, deadline_at=deadline), make.running(make.worker(), deadline_at=deadline)
        store.add_workers(live, dead)
        store.add(held, left, orphan)
        assert _overdue(store, deadline) == [left, orphan]

    def test_overdue_runs_come_within_the_limit(self, store: StoreUnderTest, make: Samples) -> None:
        store.add(*(make.run(deadline_at=make.now) for _ in range(3)))
        assert len(store.transact(lambda tx: tx.runs.overdue(now=make.now, limit=2))) == 2

    def test_what_was_found_may_be_saved_in_the_same_transaction(self, store: StoreUnderTest, make: Samples) -> None:
        worker: Worker = make.worker()
        run = replace(make.run(), key="k")
        store.add_workers(worker)
        store.add(run)

        def claim(now: Instant) -> list[Run]:
            def fn(tx: Transaction) -> list[Run]:
                taken = [found.claimed(worker.id) for found in tx.runs.claimable(agents=[AGENT], now=now, limit=5)]
                tx.runs.save_many(taken)
                return taken

            return store.transact(fn)

        assert claim(make.now) == [store.run(run.id)]
        assert claim(make.now) == []


_ENDS = (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED)


def _claimable(store: StoreUnderTest, now: Instant, *agents: str, limit: int = 10) -> list[Run]:
    return store.transact(lambda tx: tx.runs.claimable(agents=agents or (AGENT,), now=now, limit=limit))


def _unsettled(store: StoreUnderTest, now: Instant) -> list[Run]:
    return _by_id(store.transact(lambda tx: tx.runs.unsettled(now=now, limit=10)))


def _overdue(store: StoreUnderTest, now: Instant) -> list[Run]:
    return _by_id(store.transact(lambda tx: tx.runs.overdue(now=now, limit=10)))


def _by_id(runs: list[Run]) -> list[Run]:
    """Sort: the port promises no order here."""
    return sorted(runs, key=lambda run: run.id)
