"""Schedules at their edges: what changes nothing, what comes from others or too early, and what is cut to a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.commands import Target
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import ThreadId
from quiesce.domain.instant import after_ms
from quiesce.domain.schedules import FireStatus, Missed, ScheduleStatus, Timing
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.schedules import SCOPE, TIMER_DUE, ScheduleOwner
from quiesce.runtime.scheduling import ScheduleService, ScheduleView
from quiesce.runtime.service import Caller
from tests.channel.kit import Channel
from tests.channel.test_schedules import MINUTE_MS, Clockwork, hhmm


@pytest.fixture
async def works(channel: Channel) -> Clockwork:
    return Clockwork(channel)


def timer(view: ScheduleView, *, tenant: str = "local", key: str = "by hand") -> CommandRequest:
    """A timer of a schedule, staged by somebody who is not the schedule, and due at once."""
    return CommandRequest(
        kind=TIMER_DUE,
        target=Target(owner=ScheduleOwner.name, id=view.schedule.id),
        producer="somebody",
        producer_key=key,
        subject="mallory",
        payload={"planned": view.schedule.next_at},
        revision=view.schedule.revision,
        tenant=tenant,
    )


@pytest.mark.req("NO-13")
async def test_pausing_what_is_paused_and_resuming_what_goes_on_change_nothing(works: Clockwork) -> None:
    view = await works.define()
    assert (await works.service.resume("s")).schedule == view.schedule
    paused = await works.service.pause("s")
    works.until("12:01:00")
    assert (await works.service.pause("s")).schedule == paused.schedule
    assert await works.channel.used(SCOPE) == 0


@pytest.mark.req("NO-13", "CC-36")
async def test_the_same_definition_by_somebody_else_is_theirs_from_then_on(works: Clockwork) -> None:
    view = await works.define()
    other = ScheduleService(works.env, Caller(subject="bob"))
    changed, is_changed = await other.define("s", view.schedule.definition)
    assert is_changed
    assert (changed.schedule.revision, changed.schedule.subject) == (1, "bob")
    works.until("12:10:00")
    await works.rest()
    assert [run.subject for run in await works.runs()] == ["bob"]


@pytest.mark.req("C74", "NO-13")
@pytest.mark.parametrize(("missed", "expected"), [(Missed.ONE, FireStatus.FIRED), (Missed.SKIP, FireStatus.MISSED)])
async def test_a_one_shot_whose_instant_passed_while_it_was_paused_is_decided_by_its_policy(
    works: Clockwork, missed: Missed, expected: FireStatus
) -> None:
    await works.define(timing=Timing(at=after_ms(works.channel.clock.now(), 5 * MINUTE_MS)), missed=missed)
    await works.service.pause("s")
    works.until("13:00:00")
    await works.rest()
    assert await works.fires() == []
    view = await works.service.resume("s")
    assert [hhmm(instant) for instant in view.next] == ["12:05"]
    await works.rest()
    assert await works.told() == [(str(expected), "12:05", ["12:05"])]
    assert (await works.service.show("s")).schedule.status is ScheduleStatus.ENDED


@pytest.mark.req("NO-13", "CC-36")
async def test_a_timer_of_another_tenant_and_one_of_no_schedule_decide_nothing(works: Clockwork) -> None:
    view = await works.define()
    await works.channel.stage(timer(view, tenant="other"))
    nowhere = replace(timer(view, key="nowhere"), target=Target(owner=ScheduleOwner.name, id="no such id"))
    await works.channel.stage(nowhere)
    await works.rest()
    assert await works.fires() == []
    assert (await works.service.show("s")).schedule == view.schedule
    assert [await reason(works, tenant) for tenant in ("local", "other")] == ["no such schedule"] * 2


async def reason(works: Clockwork, tenant: str) -> str:
    """What the one settled command of a tenant was told."""

    def read(tx: Transaction) -> str:
        (command,) = tx.commands.page(tenant=tenant, statuses=(), before=None, limit=9)
        settlement = tx.commands.settlement(command.event_id)
        assert settlement is not None
        return settlement.receipt.reason

    return await works.env.store.read(read)


@pytest.mark.req("NO-13", "C72", "C74")
async def test_an_occurrence_that_is_told_of_before_its_instant_is_decided_once(works: Clockwork) -> None:
    """By the clock of another server a timer may come a moment early; whatever is changed then, that instant is past."""
    view = await works.define()
    await works.channel.stage(timer(view))
    await works.rest()
    assert await works.told() == [("fired", "12:10", ["12:10"])]
    await works.service.pause("s")
    assert [hhmm(instant) for instant in (await works.service.resume("s")).next] == ["12:20"]
    assert [hhmm(instant) for instant in (await works.define(agent="editor")).next] == ["12:20"]
    works.until("12:10:00")
    await works.rest()
    works.until("12:20:00")
    await works.rest()
    assert await works.told() == [("fired", "12:10", ["12:10"]), ("fired", "12:20", ["12:20"])]
    assert len(await works.runs()) == 2


@pytest.mark.req("NO-13", "C73", "CC-36")
async def test_a_run_in_a_thread_of_somebody_else_is_a_refused_occurrence_with_a_reason_in_bounds(works: Clockwork) -> None:
    thread = Thread(id=ThreadId("theirs"), tenant="other", created_at=works.channel.clock.now())
    await works.env.store.transact(lambda tx: tx.threads.insert(thread))
    await works.define(thread_id=thread.id)
    bounded = works.channel.environment(limits=replace(works.env.limits, text_chars_max=20))
    works.until("12:10:00")
    await works.rest(Deliverer(bounded, [ScheduleOwner(bounded)]))
    (view,) = await works.fires()
    assert view.fire is not None
    assert (view.fire.status, view.fire.run_id) == (FireStatus.REFUSED, None)
    assert view.fire.reason.startswith("INVALID_INPUT")
    assert len(view.fire.reason) == 20
    assert await works.runs() == []
    assert [hhmm(instant) for instant in (await works.service.show("s")).next] == ["12:20", "12:30", "12:40"]
    assert (await works.service.show("s", upcoming=0)).next == ()


@pytest.mark.req("C74")
async def test_of_too_many_missed_times_the_newest_are_named_and_all_are_counted(works: Clockwork) -> None:
    await works.define()
    bounded = works.channel.environment(limits=replace(works.env.limits, fires_named_max=2))
    works.until("12:36:00")
    await works.rest(Deliverer(bounded, [ScheduleOwner(bounded)]))
    (view,) = await works.fires()
    assert view.fire is not None
    assert [hhmm(instant) for instant in view.fire.stands_for] == ["12:20", "12:30"]
    assert (view.fire.count, view.fire.is_exact) == (3, True)


async def test_occurrences_are_paged_from_the_planned_one_to_the_first(works: Clockwork) -> None:
    await works.define()
    for time in ("12:10:00", "12:20:00", "12:30:00"):
        works.until(time)
        await works.rest()
    seen = await works.service.fires("s", limit=2)
    assert [(hhmm(view.planned), view.status) for view in seen] == [("12:40", "planned"), ("12:30", "queued")]
    rest = await works.service.fires("s", before=seen[-1].planned, limit=5)
    assert [(hhmm(view.planned), view.status) for view in rest] == [("12:20", "queued"), ("12:10", "queued")]


@pytest.mark.parametrize("name", ["", "n" * 201])
async def test_a_name_that_breaks_the_rule_is_refused(works: Clockwork, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await works.define(name)
    assert refused.value.details["field"] == "name"
    assert await works.service.page() == []
