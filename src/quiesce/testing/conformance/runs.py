"""Runs and attempts: rows kept faithfully, found by key, thread, parent, holder and page; due times; attempt history."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.ids import Position, RunId, WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import Durability, Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import Visibility
from quiesce.domain.workers import Attempt, AttemptEnd
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import TENANT, Samples


class RunsContract(StoreContract):
    """`Runs`: rows and queries, but for what workers claim (see `ClaimsContract`)."""

    @proves("RR-15", "RR-16", "RR-17", "RR-18")
    def test_a_run_is_read_back_as_it_was_inserted(self, store: StoreUnderTest, make: Samples) -> None:
        run = replace(
            make.run(limits={"calls": 3, "tokens": 0}, deadline_at=make.now),
            key="order-7",
            durability=Durability.EXIT,
            visibility=Visibility.SHOW_FIRST,
        )
        store.add(run)
        assert store.run(run.id) == run

    def test_a_run_that_is_not_there_is_none(self, store: StoreUnderTest, make: Samples) -> None:
        absent = RunId(make.id())
        assert store.read(lambda tx: tx.runs.get(absent)) is None
        assert store.transact(lambda tx: tx.runs.lock(absent)) is None

    def test_a_locked_run_is_the_stored_run(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.run()
        store.add(run)
        assert store.transact(lambda tx: tx.runs.lock(run.id)) == run

    def test_lock_many_returns_those_that_exist(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(3)]
        store.add(*runs)
        asked = [runs[2].id, RunId(make.id()), runs[0].id, runs[2].id]
        assert store.transact(lambda tx: tx.runs.lock_many(asked)) == {runs[0].id: runs[0], runs[2].id: runs[2]}
        assert store.transact(lambda tx: tx.runs.lock_many([])) == {}

    def test_a_saved_run_is_read_back_in_every_state(self, store: StoreUnderTest, make: Samples) -> None:
        pending = make.run()
        store.add(pending)
        running = pending.claimed(WorkerId(make.id()))
        waits = (
            Wait(kind=WaitKind.TIMER, subject="1", position=Position("1"), due_at=make.now),
            Wait(kind=WaitKind.CHILD, subject=make.id(), position=Position("2.1")),
            Wait(kind=WaitKind.UNKNOWN, subject="3", position=Position("3")),
        )
        settling = running.fenced_for_settlement(settle_at=after_ms(make.now, 500))
        states = [running, running.parked(waits), running.parked(waits).woken(), running.released(), settling]
        for state in [*states, settling.ended(RunStatus.CANCELLED, make.now)]:
            store.save(state)
            assert store.run(pending.id) == state

    def test_save_many_stores_each(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(3)]
        store.add(*runs)
        taken = [run.claimed(WorkerId(make.id())) for run in runs]
        store.save(*taken)
        assert [store.run(run.id) for run in runs] == taken

    def test_saving_one_run_leaves_the_others_alone(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.run(), make.run()
        store.add(run, other)
        store.save(run.claimed(WorkerId(make.id())))
        assert store.run(other.id) == other

    @proves("CC-12")
    def test_a_run_is_found_by_its_key_within_its_tenant(self, store: StoreUnderTest, make: Samples) -> None:
        run = replace(make.run(), key="order-7")
        store.add(run, make.run())
        assert store.read(lambda tx: tx.runs.by_key(TENANT, "order-7")) == run
        assert store.read(lambda tx: tx.runs.by_key(TENANT, "order-8")) is None
        assert store.read(lambda tx: tx.runs.by_key("other", "order-7")) is None

    def test_two_tenants_may_use_the_same_key(self, store: StoreUnderTest, make: Samples) -> None:
        ours, theirs = (replace(make.run(tenant=tenant), key="k") for tenant in (TENANT, "other"))
        store.add(ours, theirs)
        assert store.read(lambda tx: (tx.runs.by_key(TENANT, "k"), tx.runs.by_key("other", "k"))) == (ours, theirs)

    @proves("RR-30")
    def test_active_children_are_the_direct_ones_neither_ended_nor_settling(self, store: StoreUnderTest, make: Samples) -> None:
        parent = make.running()
        worker = make.worker()
        pending, running = make.run(parent=parent), make.running(worker, parent=parent)
        waiting = make.waiting(None, parent=parent)
        settling = make.settling(worker, make.now, parent=parent)
        ended = make.settling(None, make.now, parent=parent).ended(RunStatus.CANCELLED, make.now)
        grandchild = make.run(parent=running)
        store.add(parent, ended, running, grandchild, settling, waiting, pending, make.run())
        assert store.read(lambda tx: tx.runs.active_children(parent.id)) == [pending, running, waiting]
        assert store.read(lambda tx: tx.runs.children(parent.id)) == [pending, running, waiting, settling, ended]
        assert store.read(lambda tx: tx.runs.children(grandchild.id)) == []

    def test_a_worker_holds_what_runs_or_settles_under_it(self, store: StoreUnderTest, make: Samples) -> None:
        worker, other = make.worker(), make.worker()
        running, settling = make.running(worker), make.settling(worker, make.now)
        parked = make.running(worker).parked(())
        ended = make.settling(worker, make.now).ended(RunStatus.FAILED, make.now)
        store.add(settling, running, parked, make.running(other), ended)
        assert store.read(lambda tx: tx.runs.held_by(worker.id)) == [running, settling]
        assert store.read(lambda tx: tx.runs.held_by(make.id())) == []

    def test_the_runs_of_a_thread_come_newest_first(self, store: StoreUnderTest, make: Samples) -> None:
        thread = make.thread()
        runs = [make.run(thread_id=thread.id, number=n + 1) for n in range(4)]
        store.add(*runs, make.run())
        assert store.read(lambda tx: tx.runs.of_thread(thread.id, limit=3)) == [runs[3], runs[2], runs[1]]
        assert store.read(lambda tx: tx.runs.of_thread(make.thread().id, limit=3)) == []

    def test_pages_go_from_newest_to_oldest_within_a_tenant(self, store: StoreUnderTest, make: Samples) -> None:
        runs = [make.run() for _ in range(5)]
        store.add(*runs[2:], *runs[:2], make.run(tenant="other"))

        def page(before: RunId | None, limit: int) -> list[Run]:
            return store.read(lambda tx: tx.runs.page(tenant=TENANT, statuses=[], before=before, limit=limit))

        assert page(None, 2) == [runs[4], runs[3]]
        assert page(runs[3].id, 2) == [runs[2], runs[1]]
        assert page(runs[1].id, 2) == [runs[0]]
        assert page(runs[0].id, 2) == []

    def test_a_page_holds_only_the_statuses_asked_for(self, store: StoreUnderTest, make: Samples) -> None:
        pending, running, waiting = make.run(), make.running(), make.waiting(None)
        store.add(pending, running, waiting)

        def page(*statuses: str) -> list[Run]:
            return store.read(lambda tx: tx.runs.page(tenant=TENANT, statuses=statuses, before=None, limit=10))

        assert page("running", "waiting") == [waiting, running]
        assert page("completed") == []
        assert page() == [waiting, running, pending]

    def test_next_due_is_the_earliest_instant_still_to_come(self, store: StoreUnderTest, make: Samples) -> None:
        start = after_ms(make.now, 10_000)
        timer, deadline, settlement = (after_ms(start, ms) for ms in (10, 20, 30))
        store.add(make.waiting(timer), make.run(deadline_at=deadline), make.settling(make.worker(), settlement))
        for now, due in ((start, timer), (timer, deadline), (deadline, settlement), (settlement, None)):
            assert _next_due(store, now) == due

    def test_nothing_falls_due_for_a_run_that_ended(self, store: StoreUnderTest, make: Samples) -> None:
        later = after_ms(make.now, 10_000)
        run = make.settling(None, later, deadline_at=later)
        store.add(run)
        store.save(run.ended(RunStatus.FAILED, make.now))
        assert _next_due(store, make.now) is None


class AttemptsContract(StoreContract):
    """The history of holders."""

    def test_attempts_are_read_back_in_order(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        attempts = [make.attempt(run, number=n) for n in (1, 2, 3)]
        _open(store, *attempts, make.attempt(other))
        assert store.read(lambda tx: tx.runs.attempts(run.id)) == attempts
        assert store.read(lambda tx: tx.runs.attempts(RunId(make.id()))) == []

    @pytest.mark.parametrize("end", list(AttemptEnd))
    def test_how_an_attempt_ended_is_recorded(self, store: StoreUnderTest, make: Samples, end: AttemptEnd) -> None:
        run = make.running()
        attempt = make.attempt(run)
        store.add(run)
        _open(store, attempt)
        store.transact(lambda tx: tx.runs.close_attempt(run.id, 1, end, make.now))
        closed = replace(attempt, end=end, closed_at=make.now)
        assert store.read(lambda tx: tx.runs.attempts(run.id)) == [closed]

    def test_an_end_once_recorded_stands(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        attempts = [make.attempt(run, number=1), make.attempt(run, number=2)]
        store.add(run)
        first, later = make.now, after_ms(make.now, 5)
        _open(store, *attempts)
        store.transact(lambda tx: tx.runs.close_attempt(run.id, 1, AttemptEnd.EXPIRED, first))
        store.transact(lambda tx: tx.runs.close_attempt(run.id, 1, AttemptEnd.ENDED, later))
        store.transact(lambda tx: tx.runs.close_attempt(run.id, 9, AttemptEnd.ENDED, later))
        closed = replace(attempts[0], end=AttemptEnd.EXPIRED, closed_at=first)
        assert store.read(lambda tx: tx.runs.attempts(run.id)) == [closed, attempts[1]]


def _next_due(store: StoreUnderTest, now: Instant) -> Instant | None:
    return store.read(lambda tx: tx.runs.next_due(now=now))


def _open(store: StoreUnderTest, *attempts: Attempt) -> None:
    def fn(tx: Transaction) -> None:
        for attempt in attempts:
            tx.runs.open_attempt(attempt)

    store.transact(fn)
