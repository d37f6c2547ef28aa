"""Schedules as owners: each occurrence decided once, whatever was missed, raced, paused or in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from quiesce import Quiesce, agent
from quiesce import Run as AgentRun
from quiesce.domain.canonical import parse
from quiesce.domain.commands import IntentStatus, Target
from quiesce.domain.deliveries import Claim, Command, CommandStatus
from quiesce.domain.errors import CapacityExhausted, InvalidInput, NotFound, Refused, StaleClaim
from quiesce.domain.ids import ThreadId, WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import Run
from quiesce.domain.schedules import Definition, FireStatus, Missed, ScheduleStatus, Timing, local_iso
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.deliveries import claim_commands_tx
from quiesce.runtime.environment import Settings
from quiesce.runtime.owners import Delivery
from quiesce.runtime.schedules import SCOPE, TIMER_DUE, ScheduleOwner
from quiesce.runtime.scheduling import FireView, ScheduleService, ScheduleView
from quiesce.runtime.service import Caller
from tests.channel.kit import LEASE_MS, PASS, Channel, Ledger, gathered
from tests.planting import plant_tx

MINUTE_MS: Final = 60_000
TEN_MINUTES: Final = Timing(cron="*/10 * * * *")


class Clockwork:
    """Schedules on a channel under a clock that the test moves."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.env = channel.env
        self.service = ScheduleService(channel.env)
        self.until("12:00:00")

    def until(self, time: str) -> None:
        """Move the clock on to the next such time of day, UTC."""
        now = datetime.fromtimestamp(self.channel.clock.now() / 1_000_000, UTC)
        hour, minute, second = map(int, time.split(":"))
        seconds = (hour * 3600 + minute * 60 + second) - (now.hour * 3600 + now.minute * 60 + now.second)
        self.channel.clock.advance((seconds % 86_400) * 1000 - now.microsecond / 1000)

    def worker(self) -> Deliverer:
        """A process that delivers timers."""
        return Deliverer(self.env, [ScheduleOwner(self.env)])

    async def define(self, name: str = "s", timing: Timing = TEN_MINUTES, **fields: object) -> ScheduleView:
        """Define a schedule."""
        definition = replace(Definition(agent="reporter", input=b'{"args":[],"kwargs":{}}', timing=timing), **fields)  # type: ignore[arg-type]
        view, _ = await self.service.define(name, definition)
        return view

    async def rest(self, worker: Deliverer | None = None) -> None:
        """Deliver until nothing is due."""
        await self.channel.quiesce(worker or self.worker())

    async def fires(self, name: str = "s") -> list[FireView]:
        """What was decided, oldest first."""
        return [view for view in reversed(await self.service.fires(name, limit=1000)) if view.fire is not None]

    async def told(self, name: str = "s") -> list[tuple[str, str, list[str]]]:
        """Each decided occurrence: outcome, planned time, and the times that it stands for."""
        return [
            (str(view.fire.status), hhmm(view.planned), [hhmm(i) for i in view.fire.stands_for])
            for view in await self.fires(name)
            if view.fire is not None
        ]

    async def runs(self) -> list[Run]:
        """All runs, oldest first."""
        found = await self.env.store.read(lambda tx: tx.runs.page(tenant="local", statuses=(), before=None, limit=1000))
        return list(reversed(found))

    async def claim(self) -> list[Command]:
        """Claim what is due as a process that then does nothing."""
        consumers = [(ScheduleOwner.name, TIMER_DUE.name, TIMER_DUE.version)]
        worker_id = WorkerId(self.env.new_id())
        claimed = await self.env.store.transact(
            lambda tx: claim_commands_tx(tx, self.env, worker_id, consumers, limit=64, after=None)
        )
        return claimed.commands


def hhmm(instant: Instant) -> str:
    return local_iso(instant, "UTC")[11:16]


def claim_of(command: Command) -> Claim:
    assert command.claim is not None
    return command.claim


@pytest.fixture
async def works(channel: Channel) -> Clockwork:
    return Clockwork(channel)


# -- firing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-13", "CC-68")
async def test_a_schedule_fires_at_its_planned_times_and_each_fire_has_a_receipt(works: Clockwork) -> None:
    view = await works.define()
    assert [hhmm(instant) for instant in view.next] == ["12:10"]
    await works.rest()
    assert await works.told() == []
    for time in ("12:10:02", "12:20:00", "12:30:09"):
        works.until(time)
        await works.rest()
    fires = await works.fires()
    assert await works.told() == [("fired", t, [t]) for t in ("12:10", "12:20", "12:30")]
    assert [view.fire.late_ms for view in fires if view.fire] == [2000, 0, 9000]
    assert [view.fire.run_id for view in fires if view.fire] == [run.id for run in await works.runs()]
    assert [run.agent for run in await works.runs()] == ["reporter"] * 3
    assert await works.channel.used(SCOPE) == 1, "the timer that waits, and no other"


@pytest.mark.req("CC-20", "CC-23", "NO-13")
async def test_a_schedule_and_its_first_timer_are_stored_together_or_not_at_all(works: Clockwork) -> None:
    await works.env.store.transact(lambda tx: tx.intents.set_capacity("local", SCOPE, bound=0, reserve=0))
    with pytest.raises(CapacityExhausted):
        await works.define()
    assert await works.service.page() == []
    await works.env.store.transact(lambda tx: tx.intents.set_capacity("local", SCOPE, bound=1, reserve=0))
    view = await works.define()
    timer = await works.env.store.read(
        lambda tx: tx.intents.by_key("local", "schedule", f"{view.schedule.id}:0:{view.schedule.next_at}")
    )
    assert timer is not None
    assert (timer.due_at, timer.status) == (view.schedule.next_at, IntentStatus.STAGED)


@pytest.mark.req("NO-14")
async def test_a_timer_that_falls_due_adds_nothing_to_any_budget(works: Clockwork) -> None:
    await works.define(budget={"tokens": 100})
    budgets = []
    for time in ("12:10:00", "12:20:00"):
        works.until(time)
        await works.rest()
        budgets.append([run.budget.to_json() for run in await works.runs()])
    allowance = {"tokens": {"limit": 100, "used": 0, "reserved": 0}}
    assert budgets == [[allowance], [allowance, allowance]]
    timers = await works.env.store.read(lambda tx: tx.commands.page(tenant="local", statuses=(), before=None, limit=10))
    assert [set(parse(command.intent.payload)) for command in timers] == [{"planned"}, {"planned"}]  # type: ignore[arg-type]


@pytest.mark.req("CC-23")
async def test_a_users_command_comes_before_the_timer_that_was_staged_earlier_and_falls_due_later(works: Clockwork) -> None:
    view = await works.define()
    wanted = works.channel.request(kind=PASS, key="correction")
    users = await works.channel.stage(replace(wanted, target=Target(owner="schedule", id=view.schedule.id)))
    await works.channel.relay()
    works.until("12:10:00")
    await works.channel.relay()
    commands = await works.env.store.read(lambda tx: tx.commands.page(tenant="local", statuses=(), before=None, limit=10))
    assert {command.intent.kind.name: command.number for command in commands} == {"pass": 1, "timer_due": 2}
    assert (await works.channel.command(users)).number == 1


@pytest.mark.req("NO-13")
async def test_a_full_scope_of_others_stops_no_schedule(works: Clockwork) -> None:
    await works.env.store.transact(lambda tx: tx.intents.set_capacity("local", "default", bound=0, reserve=0))
    await works.define()
    works.until("12:10:00")
    await works.rest()
    assert await works.told() == [("fired", "12:10", ["12:10"])]


@pytest.mark.req("NO-13")
async def test_a_one_shot_fires_once_and_has_ended(works: Clockwork) -> None:
    instant = after_ms(works.channel.clock.now(), 5 * MINUTE_MS)
    await works.define(timing=Timing(at=instant))
    works.until("12:05:00")
    await works.rest()
    works.until("18:00:00")
    await works.rest()
    assert await works.told() == [("fired", "12:05", ["12:05"])]
    view = await works.service.show("s")
    assert (view.schedule.status, view.next) == (ScheduleStatus.ENDED, ())
    again = await works.define(timing=Timing(at=instant))
    assert again.schedule.revision == view.schedule.revision, "said again at each start of a process, it changes nothing"
    assert await works.channel.used(SCOPE) == 0
    with pytest.raises(Refused):
        await works.service.pause("s")


# -- what was missed -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("C74")
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (Missed.SKIP, [("missed", "12:30", ["12:10", "12:20", "12:30"])]),
        (Missed.ONE, [("fired", "12:30", ["12:10", "12:20", "12:30"])]),
        (Missed.ALL, [("fired", "12:10", ["12:10"]), ("fired", "12:20", ["12:20"]), ("fired", "12:30", ["12:30"])]),
    ],
)
async def test_after_35_minutes_without_anybody_two_schedulers_decide_what_was_missed_once(
    works: Clockwork, missed: Missed, expected: list[tuple[str, str, list[str]]]
) -> None:
    await works.define(missed=missed)
    works.until("12:01:00")
    await works.rest()
    works.until("12:36:00")
    await gathered(*(works.rest(worker) for worker in (works.worker(), works.worker())))
    await works.rest()
    assert await works.told() == expected
    assert len(await works.runs()) == sum(outcome == "fired" for outcome, _, _ in expected)
    tally = (await works.service.show("s")).tally
    assert tally.get("missed", 0) == (3 if missed is Missed.SKIP else 0)
    works.until("12:40:00")
    await works.rest()
    assert (await works.told())[len(expected) :] == [("fired", "12:40", ["12:40"])]
    commands = await works.env.store.read(lambda tx: tx.commands.page(tenant="local", statuses=(), before=None, limit=10))
    assert sorted(command.number for command in commands) == [1, 2], "numbered as they were relayed, however late"


@pytest.mark.req("C74", "CC-34", "CC-47")
@pytest.mark.parametrize("first", [0, 1])
async def test_two_schedulers_that_hold_one_timer_make_no_extra_run(works: Clockwork, first: int) -> None:
    await works.define(missed=Missed.ALL)
    works.until("12:36:00")
    await works.channel.relay()
    (stale,) = await works.claim()
    works.channel.clock.advance(LEASE_MS + 1)
    (live,) = await works.claim()
    owner = ScheduleOwner(works.env)
    deliveries = [Delivery(command=command, claim=claim_of(command)) for command in (stale, live)]
    ordered = deliveries if first == 0 else deliveries[::-1]
    answers = await gathered(*(owner.admit(works.env, delivery) for delivery in ordered))
    receipts = [answer for answer in answers if not isinstance(answer, StaleClaim)]
    assert receipts
    assert len({str(receipt) for receipt in receipts}) == 1, "whoever is answered is told of one admission"
    assert [outcome for outcome, _, _ in await works.told()] == ["fired"] * 3
    assert len(await works.runs()) == 3


# -- pause, change, delete -----------------------------------------------------------------------------------------------------


@pytest.mark.req("NO-13", "CC-33")
async def test_a_paused_schedule_does_not_fire_and_goes_on_with_its_next_time(works: Clockwork) -> None:
    await works.define()
    await works.service.pause("s")
    await works.service.pause("s")
    assert await works.channel.used(SCOPE) == 0, "its timer was taken back"
    works.until("12:25:00")
    await works.rest()
    view = await works.service.resume("s")
    assert [hhmm(instant) for instant in view.next] == ["12:30"]
    works.until("12:30:00")
    await works.rest()
    assert await works.told() == [("fired", "12:30", ["12:30"])]
    assert view.tally.get("missed", 0) == 0


@pytest.mark.req("NO-13", "CC-33")
@pytest.mark.parametrize("point", ["staged", "relayed", "claimed"])
async def test_a_timer_that_is_on_its_way_loses_its_force_when_the_schedule_is_paused(works: Clockwork, point: str) -> None:
    await works.define()
    works.until("12:10:00")
    if point != "staged":
        await works.channel.relay()
    claimed = await works.claim() if point == "claimed" else []
    await works.service.pause("s")
    for command in claimed:
        with pytest.raises(StaleClaim):
            await ScheduleOwner(works.env).admit(works.env, Delivery(command=command, claim=claim_of(command)))
    works.channel.clock.advance(LEASE_MS + 1)
    await works.rest()
    assert await works.fires() == []
    assert await works.runs() == []
    assert await works.channel.used(SCOPE) == 0
    commands = await works.env.store.read(lambda tx: tx.commands.page(tenant="local", statuses=(), before=None, limit=10))
    assert [command.status for command in commands] == ([] if point == "staged" else [CommandStatus.DISCARDED])


@pytest.mark.req("NO-13", "CC-33")
async def test_pause_and_a_timer_that_is_due_meet_in_one_order(works: Clockwork) -> None:
    for number in range(6):
        await works.define(f"s{number}")
    works.until("12:10:00")
    pauses = [works.service.pause(f"s{number}") for number in range(6)]
    resting = [works.rest(worker) for worker in (works.worker(), works.worker())]
    answers = await gathered(*pauses[:3], *resting, *pauses[3:])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    works.until("12:45:00")
    await works.rest()
    for number in range(6):
        view = await works.service.show(f"s{number}")
        assert view.schedule.status is ScheduleStatus.PAUSED
        assert [planned for _, planned, _ in await works.told(f"s{number}")] in ([], ["12:10"])
    assert await works.channel.used(SCOPE) == 0


@pytest.mark.req("NO-13", "CC-33", "C72")
async def test_a_changed_schedule_follows_its_new_definition_alone_and_no_time_fires_twice(works: Clockwork) -> None:
    await works.define()
    works.until("12:10:05")
    await works.rest()
    view = await works.define(timing=Timing(cron="5,10,15 * * * *"), agent="editor")
    assert (view.schedule.revision, [hhmm(i) for i in view.next]) == (1, ["12:15"])
    works.until("12:20:00")
    await works.rest()
    assert [planned for _, planned, _ in await works.told()] == ["12:10", "12:15"]
    assert [run.agent for run in await works.runs()] == ["reporter", "editor"]


@pytest.mark.req("NO-13")
async def test_the_same_definition_changes_nothing_and_a_paused_one_stays_paused_when_it_is_changed(
    works: Clockwork,
) -> None:
    first = await works.define()
    assert (await works.define()).schedule == first.schedule
    await works.service.pause("s")
    changed = await works.define(agent="editor")
    assert (changed.schedule.status, changed.schedule.definition.agent) == (ScheduleStatus.PAUSED, "editor")
    assert await works.channel.used(SCOPE) == 0


@pytest.mark.req("NO-13")
async def test_two_that_define_one_name_at_once_make_one_schedule(works: Clockwork) -> None:
    views = await gathered(*(works.define() for _ in range(4)))
    assert len({view.schedule.id for view in views if isinstance(view, ScheduleView)}) == 1
    assert len(views) == len([view for view in views if isinstance(view, ScheduleView)])
    assert await works.channel.used(SCOPE) == 1


@pytest.mark.req("NO-13")
async def test_a_deleted_schedule_never_fires_again_and_its_name_is_free(works: Clockwork) -> None:
    old = await works.define()
    await works.service.delete("s")
    with pytest.raises(NotFound):
        await works.service.fires("s")
    works.until("12:15:00")
    await works.rest()
    new = await works.define()
    assert new.schedule.id != old.schedule.id
    works.until("12:20:00")
    await works.rest()
    assert await works.told() == [("fired", "12:20", ["12:20"])]
    assert len(await works.runs()) == 1


async def test_another_tenants_schedule_does_not_exist(works: Clockwork) -> None:
    await works.define()
    others = ScheduleService(works.env, Caller(tenant="other", subject="bob"))
    assert await others.page() == []
    for verb in (others.pause, others.resume, others.delete, others.show, others.fires):
        with pytest.raises(NotFound):
            await verb("s")
    definition = Definition(agent="reporter", input=b"{}", timing=TEN_MINUTES)
    view, is_changed = await others.define("s", definition)
    assert is_changed
    assert view.schedule.tenant == "other"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timing": Timing(cron="0 2 * *")}, "cron"),
        ({"timing": Timing(cron="* * */20 * 1L")}, "cron"),
        ({"timing": Timing(at=Instant(1))}, "at"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"catchup_max": 0}, "catchup_max"),
        ({"catchup_max": 1001}, "catchup_max"),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"agent": ""}, "agent"),
    ],
)
async def test_a_definition_that_breaks_a_rule_is_refused_by_name_and_stored_nowhere(
    works: Clockwork, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await works.define(**fields)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
    assert await works.service.page() == []


async def test_a_tenant_has_a_bounded_number_of_schedules(works: Clockwork) -> None:
    bounded = ScheduleService(works.channel.environment(limits=replace(works.env.limits, schedules_max=1)))
    definition = Definition(agent="reporter", input=b"{}", timing=TEN_MINUTES)
    await bounded.define("one", definition)
    with pytest.raises(CapacityExhausted):
        await bounded.define("two", definition)
    await bounded.define("one", replace(definition, agent="editor"))


# -- what stands in the way ----------------------------------------------------------------------------------------------------


@pytest.mark.req("C73", "NO-13")
async def test_what_refuses_a_run_is_an_outcome_of_the_occurrence_and_no_timer_is_lost(works: Clockwork) -> None:
    await works.define(thread_id=ThreadId("one-at-a-time"))
    for time in ("12:10:00", "12:20:00"):
        works.until(time)
        await works.rest()
    fires = await works.fires()
    assert [view.status for view in fires] == ["queued", "refused"]
    refused = fires[1].fire
    assert refused is not None
    assert (refused.status, refused.run_id) == (FireStatus.REFUSED, None)
    assert refused.reason.startswith("THREAD_BUSY")
    view = await works.service.show("s")
    assert [hhmm(instant) for instant in view.next] == ["12:30", "12:40", "12:50"]
    assert view.tally == {"fired": 1, "refused": 1}


@pytest.mark.req("C73")
async def test_an_occurrence_that_no_worker_took_stays_queued_and_expires_and_is_never_a_success(works: Clockwork) -> None:
    await works.define(timeout_ms=15 * MINUTE_MS)
    assert [view.status for view in await works.service.fires("s")] == ["planned"]
    works.until("12:10:00")
    await works.rest()
    await works.service.pause("s")
    assert [view.status for view in await works.service.fires("s")] == ["queued"]
    assert "expired" not in (await works.service.show("s")).tally
    works.until("12:25:00")
    assert [view.status for view in await works.service.fires("s")] == ["expired"]
    assert (await works.service.show("s")).tally["expired"] == 1


@agent
async def says_done(run: AgentRun, word: str) -> str:
    return word


@pytest.fixture
async def q(url: str) -> AsyncIterator[Quiesce]:
    async with Quiesce(url, settings=Settings(poll_ms=20, sweep_ms=40), agents=[says_done]) as opened:
        yield opened


@pytest.mark.req("C73", "CC-68", "NO-13")
async def test_a_process_that_is_opened_fires_its_schedules_and_shows_how_their_runs_ended(q: Quiesce) -> None:
    arguments = b'{"args":["done"],"kwargs":{}}'
    await q.env.store.transact(
        lambda tx: plant_tx(tx, q.env, Definition(agent="says_done", input=arguments, timing=Timing(at=tx.now)), tx.now)
    )
    async with asyncio.timeout(60):
        while (fire := (await q.schedules.fires("planted"))[0].fire) is None:
            await asyncio.sleep(0.02)
    handle = await q.handle(str(fire.run_id))
    assert await handle.result(timeout_ms=60_000) == "done"
    assert [view.status for view in await q.schedules.fires("planted")] == ["completed"]
    assert [view.schedule.status for view in await q.schedules.page()] == [ScheduleStatus.ENDED]


@pytest.mark.req("NO-13", "C72")
async def test_a_process_may_say_at_each_start_what_it_wants_to_run_when(q: Quiesce) -> None:
    views = [
        await q.schedule(
            "nightly", says_done, "done", cron="0 2 * * *", timezone="Europe/London", missed="all", budget={"calls": 1}
        )
        for _ in range(2)
    ]
    assert views[0].schedule == views[1].schedule
    definition = views[0].schedule.definition
    assert parse(definition.input) == {"args": ["done"], "kwargs": {}}
    assert (definition.agent, definition.missed, definition.budget) == ("says_done", Missed.ALL, {"calls": 1})
    assert local_iso(views[0].next[0], "Europe/London")[11:16] == "02:00"
    with pytest.raises(InvalidInput):
        await q.schedule("nightly", says_done, cron="0 2 * * *", missed="perhaps")


async def test_the_timer_of_another_owners_ledger_is_not_touched(works: Clockwork) -> None:
    await works.define()
    works.until("12:10:00")
    await works.channel.quiesce(Deliverer(works.env, [Ledger()]))
    assert await works.fires() == []
    await works.rest()
    assert len(await works.fires()) == 1
