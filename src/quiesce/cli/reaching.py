"""Verbs that reach a run from outside: `correct`, `wake`, `mailbox`.

Whoever reaches the store asks the run directly; a command on the control channel is for those who stage it in a transaction
of their own.
"""

from __future__ import annotations

import getpass
import json
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import JsonOption, RunArgument, SessionOption, StoreOption
from quiesce.cli.output import console, listing, moment, print_json, say, status_text
from quiesce.cli.session import find_run, locate, opened
from quiesce.domain.canonical import Json, parse
from quiesce.domain.errors import InvalidInput
from quiesce.domain.mailbox import EntryId, MailboxEntry
from quiesce.runtime.service import Caller, ControlService

KeyOption = Annotated[
    str | None, typer.Option("--key", help="Your own identity of this request: the same key is the same one.", show_default=False)
]


def correct(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Your words to the agent.", show_default=False)],
    *,
    key: KeyOption = None,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Correct a running agent."""

    async def work() -> int:
        async with opened(locate(session, store, None)) as env:
            service = ControlService(env, Caller(subject=getpass.getuser()))
            entry = await service.correct(await find_run(service, run), text, key=key)
        _tell(entry, "kept for the run's next safe boundary; `quiesce mailbox` says what becomes of it", as_json=as_json)
        return Exit.OK

    perform(work, as_json=as_json)


def wake(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the run waits for.", show_default=False)],
    *,
    value: Annotated[str | None, typer.Option("--value", help="JSON that the wait returns.", show_default=False)] = None,
    key: KeyOption = None,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wake a run that waits for a name."""

    async def work() -> int:
        given = _value_of(value)
        async with opened(locate(session, store, None)) as env:
            service = ControlService(env, Caller(subject=getpass.getuser()))
            entry = await service.wake(await find_run(service, run), name, given, key=key)
        _tell(entry, f"kept until the run waits for {name!r}", as_json=as_json)
        return Exit.OK

    perform(work, as_json=as_json)


def mailbox(
    run: RunArgument,
    *,
    withdraw: Annotated[
        str | None, typer.Option("--withdraw", metavar="ENTRY", help="Take this one back.", show_default=False)
    ] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what reached a run from outside."""

    async def work() -> int:
        async with opened(locate(session, store, None), writes=withdraw is not None) as env:
            service = ControlService(env)
            run_id = await find_run(service, run)
            if withdraw is not None:
                await service.withdraw_entry(EntryId(withdraw))
            entries = await service.mailbox(run_id)
        if as_json:
            print_json([entry.to_json() for entry in entries])
        elif entries:
            console().print(listing(("entry", "what", "value", "by", "arrived", "status", "where"), map(_row, entries)))
        else:
            console().print(Text("nothing has reached it"))
        return Exit.OK

    perform(work, as_json=as_json)


def _row(entry: MailboxEntry) -> tuple[str | Text, ...]:
    where = f"operation {entry.position}" if entry.position is not None else f"receipt {entry.receipt_id}"
    return (
        entry.id,
        f"{entry.kind} {entry.name}".strip(),
        json.dumps(parse(entry.body), ensure_ascii=False),
        entry.subject,
        moment(entry.arrived_at),
        status_text(entry.status),
        where if entry.position or entry.receipt_id else "-",
    )


def _tell(entry: MailboxEntry, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(entry.to_json())
    else:
        say(f"{entry.kind} {entry.id}: {words}")


def _value_of(text: str | None) -> Json:
    if text is None:
        return None
    try:
        value: Json = json.loads(text)
    except ValueError as error:
        raise InvalidInput(field="value", value=text, rule=f"is not JSON: {error}") from None
    return value
