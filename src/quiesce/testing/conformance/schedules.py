"""Schedules and the receipts of their fires: names, locks, what is written once, and what is counted."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.errors import InvariantBroken
from quiesce.domain.ids import ThreadId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.schedules import Definition, Fire, FireStatus, Missed, Schedule, ScheduleId, ScheduleStatus, Timing
from quiesce.ports.store import Transaction
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import TENANT, Samples

MINUTE_MS = 60_000


class SchedulesContract(StoreContract):
    """`Schedules`."""

    @proves("NO-13")
    def test_a_schedule_is_read_back_as_it_was_stored(self, store: StoreUnderTest, make: Samples) -> None:
        full = Definition(
            agent="agent 🛠",
            input=b'{"text":"\\u0000 a"}',
            bindings=b'{"model":"m"}',
            timing=Timing(cron="0 2 * * *", timezone="Europe/London"),
            thread_id=ThreadId("thread"),
            budget={"tokens": 7},
            timeout_ms=5000,
            missed=Missed.ALL,
            catchup_max=3,
        )
        one_shot = Definition(agent="a", input=b"{}", timing=Timing(at=Instant(make.now + 1)))
        for schedule in (_schedule(make, definition=full), _schedule(make, name="once", definition=one_shot)):
            assert _insert(store, schedule)
            assert _get(store, schedule) == schedule

    @proves("NO-13")
    def test_a_name_is_one_schedule_of_its_tenant_until_that_is_deleted(self, store: StoreUnderTest, make: Samples) -> None:
        first, second, other = _schedule(make), _schedule(make), _schedule(make, tenant="other")
        assert [_insert(store, schedule) for schedule in (first, second, other)] == [True, False, True]
        assert _get(store, second) is None
        _save(store, first.changed(ScheduleStatus.DELETED, None, make.now))
        assert store.read(lambda tx: tx.schedules.by_name(TENANT, "s")) is None
        assert _insert(store, second)
        assert store.read(lambda tx: tx.schedules.by_name(TENANT, "s")) == second
        assert store.read(lambda tx: tx.schedules.count(TENANT)) == 1

    @proves("NO-13")
    def test_a_save_needs_the_lock_and_keeps_what_was_sealed(self, store: StoreUnderTest, make: Samples) -> None:
        schedule = _schedule(make)
        _insert(store, schedule)
        paused = schedule.changed(ScheduleStatus.PAUSED, None, after_ms(make.now, 5))
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.schedules.save(paused))
        _save(store, replace(paused, name="another", tenant="other", created_at=Instant(1)))
        assert _get(store, schedule) == paused
        assert store.transact(lambda tx: tx.schedules.lock(ScheduleId("nobody"))) is None

    @proves("NO-13")
    def test_schedules_are_listed_by_name_page_by_page_without_the_deleted(self, store: StoreUnderTest, make: Samples) -> None:
        for name in ("c", "a", "d", "b"):
            _insert(store, _schedule(make, name=name))
        gone = store.read(lambda tx: tx.schedules.by_name(TENANT, "d"))
        assert gone is not None
        _save(store, gone.changed(ScheduleStatus.DELETED, None, make.now))
        _insert(store, _schedule(make, name="z", tenant="other"))
        pages = [store.read(lambda tx, a=after: tx.schedules.page(tenant=TENANT, after=a, limit=2)) for after in ("", "b")]  # type: ignore[misc]
        assert [[schedule.name for schedule in page] for page in pages] == [["a", "b"], ["c"]]

    @proves("C72", "C74")
    def test_an_occurrence_has_one_receipt_for_ever(self, store: StoreUnderTest, make: Samples) -> None:
        schedule = _schedule(make)
        fire = _fire(make, schedule, 0, count=3)
        with pytest.raises(InvariantBroken):
            store.transact(lambda tx: tx.schedules.add_fires([fire]))
        _insert(store, schedule)
        _add(store, fire)
        with pytest.raises(InvariantBroken):
            _add(store, replace(fire, reason="again"))
        assert store.read(lambda tx: tx.schedules.fire(schedule.id, fire.planned)) == fire
        assert store.read(lambda tx: tx.schedules.fire(schedule.id, Instant(fire.planned + 1))) is None

    @proves("C74")
    def test_fires_are_listed_latest_first_page_by_page(self, store: StoreUnderTest, make: Samples) -> None:
        schedule, other = _schedule(make), _schedule(make, name="other")
        for one in (schedule, other):
            _insert(store, one)
        fires = [_fire(make, schedule, number) for number in range(4)]
        _add(store, *fires)
        _add(store, _fire(make, other, 9))
        first = store.read(lambda tx: tx.schedules.fires(schedule.id, before=None, limit=3))
        assert first == fires[:0:-1]
        assert store.read(lambda tx: tx.schedules.fires(schedule.id, before=first[-1].planned, limit=3)) == [fires[0]]

    @proves("C73", "C74")
    def test_what_went_by_without_a_run_is_counted(self, store: StoreUnderTest, make: Samples) -> None:
        schedule = _schedule(make)
        _insert(store, schedule)
        assert store.read(lambda tx: tx.schedules.tally(schedule.id, now=make.now)) == {}
        late, later, begun = (
            replace(make.run(), deadline_at=after_ms(make.now, deadline), attempt=attempt)
            for deadline, attempt in ((5, 0), (10_000_000, 0), (5, 1))
        )
        ended = replace(make.run(), deadline_at=after_ms(make.now, 50), ended_at=after_ms(make.now, 40))
        runs = (late, later, begun, ended)
        fired = [
            replace(_fire(make, schedule, number), status=FireStatus.FIRED, run_id=run.id) for number, run in enumerate(runs)
        ]
        missed = [_fire(make, schedule, 7, count=3), _fire(make, schedule, 8, count=2)]
        refused = replace(_fire(make, schedule, 9), status=FireStatus.REFUSED, reason="busy")

        def fill(tx: Transaction) -> None:
            for run in runs:
                tx.runs.insert(run)
                tx.streams.open(run.id)

        store.transact(fill)
        _add(store, *fired, *missed, refused)
        now = after_ms(make.now, 100)
        expected = {"fired": 4, "missed": 5, "refused": 1, "expired": 1}
        assert store.read(lambda tx: tx.schedules.tally(schedule.id, now=now)) == expected


def _schedule(make: Samples, *, name: str = "s", tenant: str = TENANT, definition: Definition | None = None) -> Schedule:
    return Schedule(
        id=ScheduleId(make.id()),
        tenant=tenant,
        name=name,
        subject="ada",
        definition=definition or Definition(agent="a", input=b"{}", timing=Timing(cron="* * * * *")),
        revision=0,
        status=ScheduleStatus.ACTIVE,
        next_at=after_ms(make.now, MINUTE_MS),
        created_at=make.now,
        changed_at=make.now,
    )


def _fire(make: Samples, schedule: Schedule, minute: int, *, count: int = 1) -> Fire:
    planned = after_ms(make.now, minute * MINUTE_MS)
    return Fire(
        schedule_id=schedule.id,
        planned=planned,
        status=FireStatus.MISSED,
        fired_at=after_ms(planned, 1500),
        stands_for=tuple(Instant(planned - number) for number in reversed(range(count))),
        count=count,
        is_exact=count == 1,
    )


def _insert(store: StoreUnderTest, schedule: Schedule) -> bool:
    return store.transact(lambda tx: tx.schedules.insert(schedule))


def _get(store: StoreUnderTest, schedule: Schedule) -> Schedule | None:
    return store.read(lambda tx: tx.schedules.get(schedule.id))


def _save(store: StoreUnderTest, schedule: Schedule) -> None:
    def save(tx: Transaction) -> None:
        tx.schedules.lock(schedule.id)
        tx.schedules.save(schedule)

    store.transact(save)


def _add(store: StoreUnderTest, *fires: Fire) -> None:
    def add(tx: Transaction) -> None:
        tx.schedules.lock(fires[0].schedule_id)
        tx.schedules.add_fires(fires)

    store.transact(add)
