"""Verbs of the control channel: `queue`, and what to look at or to do.

A command's delivery and its effect stand in two columns: that one is settled says nothing of the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import JsonOption, SessionOption, StoreOption
from quiesce.cli.output import age, console, grid, listing, moment, print_json, status_text
from quiesce.cli.session import locate, opened
from quiesce.domain.deliveries import CommandStatus, HistoryLine
from quiesce.runtime.queue import STAGED, Entry, QueueCounts, QueueService

queue = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class Delivery(StrEnum):
    """What `--status` takes: how far a delivery is, and `staged` before it."""

    STAGED = STAGED
    PENDING = CommandStatus.PENDING
    CLAIMED = CommandStatus.CLAIMED
    UNKNOWN = CommandStatus.UNKNOWN
    QUARANTINED = CommandStatus.QUARANTINED
    SETTLED = CommandStatus.SETTLED
    DISCARDED = CommandStatus.DISCARDED
    EXPIRED = CommandStatus.EXPIRED


CommandArgument = Annotated[
    str, typer.Argument(metavar="COMMAND", help="The id of a command's event, or of its intent.", show_default=False)
]
WhyOption = Annotated[str, typer.Option("--why", help="Your grounds, kept in the command's history.")]


@queue.command("list", help="List what is staged, then commands, newest first: their deliveries, and what is known of effects.")
def list_commands(
    *,
    status: Annotated[list[Delivery] | None, typer.Option("--status", help="Only these. Repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many intents, and how many commands.")] = 20,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List commands."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            service = QueueService(env)
            entries = await service.entries(statuses=[str(s) for s in status or []], limit=limit)
            counts = await service.counts()
        if as_json:
            print_json([entry.to_json() for entry in entries])
            return Exit.OK
        rows = [_row(entry, counts) for entry in entries]
        head = ("command", "what", "target", "no.", "delivery", "effect", "due", "age")
        console().print(listing(head, rows) if rows else Text("nothing was staged"))
        console().print(_summary(counts))
        return Exit.OK

    perform(work, as_json=as_json)


@queue.command("show", help="Show one command: what was asked, by whom, of whom; delivery and effect.")
def show(
    command: CommandArgument, *, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show one command."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            service = QueueService(env)
            entry = await service.show(command)
            lines = await service.history(command)
        if as_json:
            print_json(entry.to_json() | {"history": [_line_json(line) for line in lines]})
        else:
            console().print(_portrait(entry))
            console().print(_chronicle(lines))
        return Exit.OK

    perform(work, as_json=as_json)


@queue.command("history", help="Show what happened to one delivery: claims, deferrals, settlement. Never overwritten.")
def history(
    command: CommandArgument, *, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show what happened to one delivery."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            lines = await QueueService(env).history(command)
        if as_json:
            print_json([_line_json(line) for line in lines])
        else:
            console().print(_chronicle(lines))
        return Exit.OK

    perform(work, as_json=as_json)


@queue.command("counts", help="Count what is unfinished, its oldest age, and the room of each scope.")
def counts(*, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Count what is unfinished."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=False) as env:
            found = await QueueService(env).counts()
        if as_json:
            print_json(found.to_json())
            return Exit.OK
        rows = [
            (status, str(count), "-" if since is None else age(since, found.now))
            for status, (count, since) in found.statuses.items()
        ]
        console().print(listing(("status", "count", "oldest"), rows) if rows else Text("nothing is unfinished"))
        rooms = [(room.scope, str(room.used), str(room.bound), str(room.reserve)) for room in found.capacities]
        if rooms:
            console().print(listing(("scope", "used", "bound", "reserve"), rooms))
        return Exit.OK

    perform(work, as_json=as_json)


@queue.command("withdraw", help="Take back an intent that was not relayed yet.")
def withdraw(
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The id of the intent.", show_default=False)],
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back an intent."""
    _act(intent, lambda service: service.withdraw(intent), session, store, as_json=as_json)


@queue.command(
    "requeue",
    help="Offer a quarantined command again. Refused for one that may have taken effect: its owner's receipt alone ends that.",
)
def requeue(
    command: CommandArgument,
    *,
    why: WhyOption,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Offer a quarantined command again."""
    _act(command, lambda service: service.requeue(command, why=why), session, store, as_json=as_json)


@queue.command(
    "reconcile",
    help="Have the receipt of a quarantined command that may have taken effect read again. It is not admitted again.",
)
def reconcile(
    command: CommandArgument,
    *,
    why: WhyOption,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a receipt read again."""
    _act(command, lambda service: service.reconcile(command, why=why), session, store, as_json=as_json)


@queue.command("quarantine", help="Take a command that nobody delivers out of its target's way, for a person to decide about.")
def quarantine(
    command: CommandArgument,
    *,
    why: WhyOption,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a command out of the way."""
    _act(command, lambda service: service.quarantine(command, why=why), session, store, as_json=as_json)


@queue.command("room", help="Set how many unfinished commands a scope may hold, and the reserve for those that may overtake.")
def room(
    scope: Annotated[str, typer.Argument(metavar="SCOPE", help="The name of the scope.", show_default=False)],
    *,
    bound: Annotated[int, typer.Option("--bound", min=0, help="Unfinished commands that it may hold.")],
    reserve: Annotated[int, typer.Option("--reserve", min=0, help="More of them that may overtake, such as cancels.")] = 100,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the room of a scope."""

    async def work() -> int:
        async with opened(locate(session, store, None)) as env:
            found = await QueueService(env).set_capacity(scope, bound=bound, reserve=reserve)
        shown = {"scope": found.scope, "used": found.used, "bound": found.bound, "reserve": found.reserve}
        if as_json:
            print_json(shown)
        else:
            console().print(grid((name, str(value)) for name, value in shown.items()))
        return Exit.OK

    perform(work, as_json=as_json)


def _act(
    name: str, verb: Callable[[QueueService], Awaitable[object]], session: Path | None, store: str | None, *, as_json: bool
) -> None:
    """Do one thing about one command, and show it as it is then."""

    async def work() -> int:
        async with opened(locate(session, store, None)) as env:
            service = QueueService(env)
            await verb(service)
            entry = await service.show(name)
        if as_json:
            print_json(entry.to_json())
        else:
            console().print(_portrait(entry))
        return Exit.OK

    perform(work, as_json=as_json)


def _row(entry: Entry, counts: QueueCounts) -> tuple[str | Text, ...]:
    intent, command = entry.intent, entry.command
    number = "-" if command is None else str(command.number)
    name = intent.id if command is None else command.event_id
    target = f"{intent.target.owner} {intent.target.id}"
    about = (status_text(entry.delivery), status_text(str(entry.effect)))
    due = moment(intent.due_at) if entry.delivery == STAGED else "-"
    return (name, intent.kind.name, target, number, *about, due, age(intent.staged_at, counts.now))


def _summary(counts: QueueCounts) -> Text:
    parts = [f"{count} {status}" for status, (count, _) in counts.statuses.items()]
    return Text("unfinished: " + (", ".join(parts) or "none"), style="dim")


def _portrait(entry: Entry) -> object:
    intent, command = entry.intent, entry.command
    rows: list[tuple[str, str | Text]] = [
        ("intent", intent.id),
        ("command", "not relayed" if command is None else f"{command.event_id}, number {command.number} of its target"),
        ("what", f"{intent.kind.name} (version {intent.kind.version})"),
        ("target", f"{intent.target.owner} {intent.target.id}, revision {intent.revision}"),
        ("asked by", f"{intent.producer}, key {intent.producer_key}, for {intent.subject}"),
        ("staged", moment(intent.staged_at)),
        ("due", moment(intent.due_at)),
        ("not after", moment(intent.not_after)),
        ("payload", intent.payload.decode()),
        ("delivery", status_text(entry.delivery)),
        ("effect", status_text(str(entry.effect))),
    ]
    if command is not None and command.reason:
        rows.append(("reason", command.reason))
    if entry.settlement is not None:
        receipt = entry.settlement.receipt
        rows.append(("receipt", f"{receipt.id}: {receipt.verdict} {receipt.effect_ref or receipt.reason}".rstrip()))
    return grid(rows)


def _chronicle(lines: list[HistoryLine]) -> object:
    rows = [(moment(line.at), str(line.what), str(line.fence), line.by, line.reason) for line in lines]
    return listing(("at", "what", "fence", "by", "why"), rows) if rows else Text("nothing has happened to it yet")


def _line_json(line: HistoryLine) -> dict[str, object]:
    return {"what": str(line.what), "fence": line.fence, "by": line.by, "reason": line.reason, "at": line.at}
