"""Verbs of schedules: `schedules list | add | pause | resume | remove | fires`.

Planned times are shown as the schedule's own wall clock shows them. How far an occurrence is is what its run says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cases import CASES
from quiesce.cli.advancing import CodeArgument, milliseconds, read_budget
from quiesce.cli.code import code_for, read_input
from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, SessionOption, StoreOption
from quiesce.cli.output import console, grid, listing, moment, plural, print_json, say, status_text
from quiesce.cli.session import locate, opened
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.schedules import Definition, Missed, Timing, instant_of, local_iso
from quiesce.runtime.scheduling import FireView, ScheduleService, ScheduleView

schedules = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]
_ALERTS = ("missed", "refused", "expired")


@schedules.command("list", help="List schedules with their next planned times, and what went by without a run.")
def list_schedules(
    *,
    upcoming: Annotated[int, typer.Option("--next", min=1, max=100, help="How many planned times to show of each.")] = 1,
    after: Annotated[str, typer.Option("--after", help="Only those whose name comes behind this one: the next page.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 50,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List schedules."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            views = await ScheduleService(env).page(after=after, limit=limit, upcoming=upcoming)
        if as_json:
            print_json([view.to_json() for view in views])
        elif not views:
            say("no schedules; `quiesce schedules add --help` shows how to make one")
        else:
            console().print(listing(("name", "status", "when", "agent", "next", "went by"), map(_row, views)))
        return Exit.OK

    perform(work, as_json=as_json)


@schedules.command(
    "add",
    help="Define a schedule: runs by a cron expression, or once. The same again changes nothing; under a name that is there, "
    "another definition takes the place of the old one.\n\n\b\nExamples:\n"
    '  $ quiesce schedules add nightly agents:reporter --cron "0 2 * * *" --timezone Europe/London\n'
    "  $ quiesce schedules add once --case durable-report --at 2026-12-24T18:00 --timezone Europe/Berlin",
)
def add(  # noqa: PLR0913 - each parameter is an option that a person may type
    name: NameArgument,
    target: CodeArgument = None,
    *,
    case: Annotated[str | None, typer.Option("--case", help="A built-in case: " + ", ".join(CASES))] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="Five fields: minute hour day month weekday.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Once, at this time, as 2026-12-24T18:00.")] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="The time zone of --cron and --at, by its IANA name.")] = "UTC",
    missed: Annotated[
        Missed,
        typer.Option("--missed", help="What times that passed without a worker lead to: no run, one for all, one each."),
    ] = Missed.ONE,
    catchup: Annotated[int, typer.Option("--catchup", help="With --missed all: how many runs at most.")] = 100,
    input_json: Annotated[
        str | None, typer.Option("--input", help="JSON: a list of arguments, an object of named ones, or one value.")
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="One thread for all its runs; else each has its own.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds from a fire to its run's deadline.")] = None,
    budget: Annotated[list[str] | None, typer.Option("--budget", help="Of each run, as tool_calls=5. Repeatable.")] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Define a schedule."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        agent, _ = code_for(case, target, place)
        definition = Definition(
            agent=agent.name,
            input=read_input(input_json, agent),
            timing=Timing(cron=cron, timezone=timezone, at=None if at is None else _read_moment(at, timezone)),
            bindings=canonical(dict(agent.bindings), field="bindings"),
            thread_id=None if thread is None else ThreadId(thread),
            budget={a.unit: a.limit for a in read_budget(budget or []).allowances if a.limit is not None},
            timeout_ms=milliseconds(timeout),
            missed=missed,
            catchup_max=catchup,
        )
        async with opened(place, creates=True) as env:
            view, is_changed = await ScheduleService(env).define(name, definition)
        if not as_json:
            say(f"schedule {name}: " + ("stored" if is_changed else "unchanged"))
        _tell(view, as_json=as_json)
        return Exit.OK

    perform(work, as_json=as_json)


@schedules.command("pause", help="Stop a schedule from firing. What it fired already goes on.")
def pause(name: NameArgument, *, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Pause a schedule."""
    _change(lambda service: service.pause(name), session, store, as_json=as_json)


@schedules.command("resume", help="Let a paused schedule go on with its next planned time. Times of the pause are not caught up.")
def resume(name: NameArgument, *, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Resume a schedule."""
    _change(lambda service: service.resume(name), session, store, as_json=as_json)


@schedules.command("remove", help="Delete a schedule. Its name is free then; runs that it made stay.")
def remove(name: NameArgument, *, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Delete a schedule."""
    _change(lambda service: service.delete(name), session, store, as_json=as_json)


@schedules.command("fires", help="Show what each planned time came to, the latest first: its receipt, and how far its run is.")
def fires(
    name: NameArgument,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 20,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a schedule fired."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            views = await ScheduleService(env).fires(name, limit=limit)
        if as_json:
            print_json([view.to_json() for view in views])
        else:
            console().print(listing(("due", "status", "fired", "late", "stands for", "run"), map(_fire_row, views)))
        return Exit.OK

    perform(work, as_json=as_json)


def _change(
    verb: Callable[[ScheduleService], Awaitable[ScheduleView]], session: SessionOption, store: StoreOption, *, as_json: bool
) -> None:
    async def work() -> int:
        async with opened(locate(session, store, None)) as env:
            view = await verb(ScheduleService(env))
        _tell(view, as_json=as_json)
        return Exit.OK

    perform(work, as_json=as_json)


def _read_moment(text: str, timezone: str) -> Instant:
    try:
        return instant_of(datetime.fromisoformat(text), timezone)
    except ValueError:
        raise InvalidInput(field="at", value=text, rule="must be a time such as 2026-12-24T18:00") from None


def _tell(view: ScheduleView, *, as_json: bool) -> None:
    if as_json:
        print_json(view.to_json())
        return
    definition = view.schedule.definition
    rows: list[tuple[str, str | Text]] = [
        ("name", view.schedule.name),
        ("status", status_text(str(view.schedule.status))),
        ("when", _when(definition.timing)),
        ("agent", definition.agent),
        ("missed times", f"{definition.missed}"),
        ("next", _next(view)),
    ]
    console().print(grid(rows))


def _row(view: ScheduleView) -> tuple[str | Text, ...]:
    schedule = view.schedule
    went_by = ", ".join(f"{view.tally[what]} {what}" for what in _ALERTS if view.tally.get(what))
    about = (schedule.name, status_text(str(schedule.status)), _when(schedule.definition.timing), schedule.definition.agent)
    return (*about, _next(view), Text(went_by or "-", style="red" if went_by else "dim"))


def _next(view: ScheduleView) -> str:
    return "\n".join(_local(instant, view.schedule.definition.timing.timezone) for instant in view.next) or "-"


def _when(timing: Timing) -> str:
    if timing.at is not None:
        return f"once, {timing.timezone}"
    return f"{timing.cron}  {timing.timezone}"


def _local(instant: Instant, timezone: str) -> str:
    return local_iso(instant, timezone).replace("T", " ")


def _fire_row(view: FireView) -> tuple[str | Text, ...]:
    due, fire = _local(view.planned, view.timezone), view.fire
    if fire is None:
        return (due, status_text(view.status), "-", "-", "-", "-")
    stands_for = plural(fire.count, "time") if fire.is_exact else f"{fire.count} times or more"
    about = fire.run_id or fire.reason or "-"
    return (due, status_text(view.status), moment(fire.fired_at), f"{fire.late_ms / 1000:.1f}s", stands_for, about)
