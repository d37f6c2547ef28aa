"""Verbs about threads: `thread`, `continue`, `standing`.

`continue` is where a person chooses: it goes on only under a choice that names the receipt it is about, and what it prints
when it is refused are the commands that would do.
"""

from __future__ import annotations

import contextlib
import getpass
import shlex
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from quiesce.cli.advancing import advance, read_budget
from quiesce.cli.code import read_input, registry_for
from quiesce.cli.driving import Ending
from quiesce.cli.endings import show_ending
from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, SessionOption, StoreOption
from quiesce.cli.output import console, grid, listing, moment, print_json, say, status_text
from quiesce.cli.session import Place, locate, opened
from quiesce.domain.canonical import Json, canonical
from quiesce.domain.continuations import Carry, Continuation, OnGap
from quiesce.domain.errors import ContinuationRefused, InvalidInput
from quiesce.domain.history import ThreadView, Turn
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.threads import OnBusy
from quiesce.runtime.conversation import as_text
from quiesce.runtime.environment import Environment
from quiesce.runtime.placement import request_turn
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.threads import ThreadService

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, as `start` and `list --json` show it.")]
WORDS_SHOWN: Final = 60


def thread(
    name: ThreadArgument,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many turns, the newest.")] = 20,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a thread: its turns, what was seen beyond each state, and what may be done next."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        async with opened(place, writes=False) as env:
            threads = ThreadService(env)
            view = await threads.view(ThreadId(name))
            turns = await threads.history(ThreadId(name), limit=limit)
        if as_json:
            print_json({**view.to_json(), "turns": [turn.to_json() for turn in turns]})
        else:
            _show(console(), place, view, turns)
        return Exit.OK

    perform(work, as_json=as_json)


def continue_thread(  # noqa: PLR0913 - each parameter is an option that a person may type
    name: ThreadArgument,
    *,
    codes: Annotated[
        list[str] | None, typer.Option("--code", metavar="MODULE:AGENT", help="Code of agents of your own.", show_default=False)
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="The agent to go on with. [default: the last turn's]")] = None,
    input_json: Annotated[
        str | None, typer.Option("--input", help="JSON: what the agent is called with. Without it, chooses for what is queued.")
    ] = None,
    accept: Annotated[str | None, typer.Option("--accept", help="The receipt that you have read.")] = None,
    policy: Annotated[OnGap | None, typer.Option("--policy", help="reconcile or restart.")] = None,
    carry: Annotated[Carry, typer.Option("--carry", help="What the new run builds on.")] = Carry.KEEP_PARTIAL,
    on_busy: Annotated[OnBusy, typer.Option("--on-busy", help="While the thread has an unfinished run.")] = OnBusy.REJECT,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same request gives the same run.")] = None,
    budget: Annotated[list[str] | None, typer.Option("--budget", help="A limit, as tool_calls=5. Repeatable.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit only; a worker or `resume` advances it.")] = False,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a thread under a recorded choice."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        turn = request_turn(accept=accept, policy=policy, carry=carry, on_busy=on_busy)
        known = registry_for(codes or [], place)
        async with opened(place) as env:
            threads, service = ThreadService(env), ControlService(env)
            if input_json is None:
                if turn.choice is None:
                    rule = "name the receipt that you choose about, or --input to go on with"
                    raise InvalidInput(field="accept", value=None, rule=rule)
                with _told_what_would_do(place, name):
                    chosen = await threads.choose(ThreadId(name), turn.choice)
                run = await service.get(chosen.run_id)
            else:
                called = known.get(agent or await _last_agent(threads, name))
                wanted = Submission(
                    agent=called.name,
                    input=read_input(input_json, called),
                    bindings=canonical(dict(called.bindings), field="bindings"),
                    thread_id=ThreadId(name),
                    key=key,
                    budget=read_budget(budget or []),
                    turn=turn,
                )
                with _told_what_would_do(place, name):
                    run = await service.submit(wanted)
            if not as_json:
                await _say_record(env, run.id)
            if detach:
                return await show_ending(env, place, run.id, Ending.HANDED_BACK, as_json=as_json)
            return await advance(env, place, known, run, as_json=as_json, may_follow=True)

    perform(work, as_json=as_json)


def standing(
    *,
    thread: Annotated[str | None, typer.Option("--thread", help="Declare for this thread.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Declare for the runs of this agent.")] = None,
    on_gap: Annotated[OnGap | None, typer.Option("--on-gap", help="What may be done without asking again.")] = None,
    carry: Annotated[Carry, typer.Option("--carry", help="What the new run builds on.")] = Carry.KEEP_PARTIAL,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show standing policies, or declare one."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        declares = on_gap is not None
        if (thread or agent) and not declares:
            raise InvalidInput(field="on_gap", value=None, rule="say what may be done: --on-gap block, reconcile or restart")
        async with opened(place, writes=declares) as env:
            threads = ThreadService(env, subject=getpass.getuser())
            if on_gap is not None:
                await threads.declare(thread=thread, agent=agent, on_gap=on_gap, carry=carry)
            declared = await threads.declared()
        if as_json:
            print_json([policy.to_json() for policy in declared])
        elif declared:
            rows = [(str(p.scope), p.name, str(p.on_gap), str(p.carry), p.declared_by, moment(p.declared_at)) for p in declared]
            console().print(listing(("for", "name", "on gap", "carry", "by", "since"), rows))
        else:
            console().print(Text("nothing is declared: where a run left a gap, somebody is asked"))
        return Exit.OK

    perform(work, as_json=as_json)


async def _last_agent(threads: ThreadService, name: str) -> str:
    turns = await threads.history(ThreadId(name), limit=1)
    if not turns:
        raise InvalidInput(field="agent", value=None, rule=f"must be named: thread {name} has no run yet")
    return turns[-1].agent


@contextlib.contextmanager
def _told_what_would_do(place: Place, name: str) -> Iterator[None]:
    """Print, behind a refusal, the commands that would go on."""
    try:
        yield
    except ContinuationRefused as refused:
        choices, receipt_id = refused.details.get("choices"), refused.details.get("receipt_id")
        for choice in choices if isinstance(choices, list) else []:
            say(f"  {_command(place, name, str(receipt_id), choice)}")
        raise


def _command(place: Place, name: str, receipt_id: str, policy: str) -> str:
    return f"quiesce continue {shlex.quote(name)} --accept {receipt_id} --policy {policy} --input JSON{place.flags}"


async def _say_record(env: Environment, run_id: RunId) -> None:
    record = await env.store.read(lambda tx: tx.continuations.of_run(run_id))
    say(f"run {run_id}: " + ("waits for its turn" if record is None else _words_of(record)))


def _words_of(record: Continuation) -> str:
    """Say in a line under which record a run took its turn."""
    by = f"standing policy of {record.standing['declared_by']}" if record.standing is not None else record.actor.name
    base = "nothing" if record.base_run_id is None else f"run {record.base_run_id}"
    words = f"{record.rule} {record.policy}, {record.carry} by {by}; builds on {base}"
    gave_up = record.gave_up
    return words if gave_up is None else f"{words}; gave up events {gave_up.first_seq} to {gave_up.last_seq} of {gave_up.run_id}"


def _show(out: Console, place: Place, view: ThreadView, turns: list[Turn]) -> None:
    for turn in turns:
        out.print(_head_line(turn))
        out.print(grid(_rows(turn)))
        out.print()
    rows: list[tuple[str, str | Text]] = [("thread", f"{view.thread_id} is {_STATUS[view.status]}")]
    if view.policy is not None:
        rows.append(("policy now", f"{view.policy.policy} ({view.policy.rule}): {view.policy.admissible}"))
    rows += [("queued", run_id) for run_id in view.queued]
    out.print(grid(rows))
    if view.choices and view.receipt_id is not None:
        out.print(Text("\nnext", style="bold"))
        for policy in view.choices:
            out.print(Text(f"  {_command(place, view.thread_id, view.receipt_id, str(policy))}"), soft_wrap=True)


_STATUS: Final = {"idle": "idle: a message goes on", "busy": "busy", "choice": "idle, and going on needs a choice"}


def _head_line(turn: Turn) -> Text:
    line = Text.assemble((f"{turn.number}  ", "bold"), turn.agent, " ", status_text(turn.status), ("  " + turn.run_id, "dim"))
    return line if turn.is_built_on else line.append("  not built on", style="magenta")


def _rows(turn: Turn) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = [("asked", _short(_asked(turn.input)))]
    if turn.result is not None:
        rows.append(("answered", _short(as_text(turn.result))))
    rows.append(("state", f"contains events up to {turn.cursor}; seen were {turn.emitted_seq}"))
    if turn.partial is not None:
        what = _short(turn.partial.text) if turn.partial.text else f"{len(turn.partial.events)} events"
        span = f"{turn.partial.first_seq} to {turn.partial.last_seq}"
        rows.append(("partial", Text(f"{what}  (events {span}: seen, and no state)", style="yellow")))
    if turn.continuation is not None:
        rows.append(("turn", _words_of(turn.continuation)))
    return rows


def _asked(value: Json) -> str:
    args = value.get("args") if isinstance(value, dict) else None
    kwargs = value.get("kwargs") if isinstance(value, dict) else None
    given = [as_text(arg) for arg in args] if isinstance(args, list) else []
    named = [f"{k}={as_text(v)}" for k, v in kwargs.items()] if isinstance(kwargs, dict) else []
    return ", ".join([*given, *named]) or "-"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WORDS_SHOWN else f"{text[:WORDS_SHOWN]}…"
