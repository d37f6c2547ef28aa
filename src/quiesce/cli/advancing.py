"""Verbs that advance runs: `start`, `resume`, `worker`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import typer

from quiesce.cases import CASES
from quiesce.cli.code import code_for, owners_for, read_input, registry_for
from quiesce.cli.driving import Ending, Stop, drive
from quiesce.cli.endings import show_ending
from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, RunArgument, SessionOption, StoreOption
from quiesce.cli.output import say
from quiesce.cli.session import Place, find_run, locate, opened
from quiesce.cli.streaming import Teller
from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.runs import Durability, Run
from quiesce.domain.streams import Visibility
from quiesce.domain.threads import OnBusy
from quiesce.runtime.correction_owner import owners_of_runs
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Owner
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.registry import Registry
from quiesce.runtime.schedules import ScheduleOwner
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import TIMEOUT_MS_MAX, Submission
from quiesce.runtime.worker import RunWorker

CodeArgument = Annotated[
    str | None, typer.Argument(metavar="MODULE:AGENT", help="An agent of your own, found from here.", show_default=False)
]
CodesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="MODULE:AGENT…", help="Code of agents of your own.", show_default=False)
]


def start(  # noqa: PLR0913 - each parameter is an option that a person may type
    *,
    target: CodeArgument = None,
    case: Annotated[str | None, typer.Option("--case", help="A built-in case: " + ", ".join(CASES))] = None,
    input_json: Annotated[
        str | None, typer.Option("--input", help="JSON: a list of arguments, an object of named ones, or one value.")
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="Thread to continue or to begin.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same request gives the same run.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds until the run's deadline.")] = None,
    budget: Annotated[list[str] | None, typer.Option("--budget", help="A limit, as tool_calls=5. Repeatable.")] = None,
    durability: Annotated[Durability, typer.Option(help="When steps and checkpoints become durable.")] = Durability.SYNC,
    visibility: Annotated[Visibility, typer.Option(help="When words may be shown.")] = Visibility.STORE_FIRST,
    on_busy: Annotated[OnBusy, typer.Option(help="While the thread has an unfinished run.")] = OnBusy.REJECT,
    detach: Annotated[bool, typer.Option("--detach", help="Submit only; a worker or `resume` advances it.")] = False,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a run and advance it to its end."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        agent, known = code_for(case, target, place)
        wanted = Submission(
            agent=agent.name,
            input=read_input(input_json, agent),
            bindings=canonical(dict(agent.bindings), field="bindings"),
            thread_id=None if thread is None else ThreadId(thread),
            key=key,
            timeout_ms=milliseconds(timeout),
            budget=read_budget(budget or []),
            durability=durability,
            visibility=visibility,
            turn=TurnRequest(on_busy=on_busy),
        )
        async with opened(place, creates=True) as env:
            run = await ControlService(env).submit(wanted)
            say(f"run {run.id}  session {place.shown}")
            if detach:
                return await show_ending(env, place, run.id, Ending.HANDED_BACK, as_json=as_json)
            return await advance(env, place, known, run, as_json=as_json, may_follow=True)

    perform(work, as_json=as_json)


def resume(
    *,
    run: RunArgument,
    codes: CodesArgument = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run where it stands, or read back how it ended."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        async with opened(place, writes=False) as env:
            service = ControlService(env)
            run_id = await find_run(service, run)
            found = await service.get(run_id)
            if found.is_terminal:
                return await show_ending(env, place, run_id, Ending.ENDED, as_json=as_json, reads_back=True)
            return await advance(env, place, registry_for(codes or [], place), found, as_json=as_json, may_follow=False)

    perform(work, as_json=as_json)


def worker(
    *,
    codes: CodesArgument = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="Only these built-in cases. Repeatable.")] = None,
    name: Annotated[str, typer.Option("--name", help="Name that receipts and LEASE_BUSY show.")] = "worker",
    end_runs: Annotated[
        bool,
        typer.Option("--end-runs", help="When told to stop, end its runs (worker_shutdown): nobody is to follow."),
    ] = False,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
) -> None:
    """Advance whatever is due, until told to stop."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        known = registry_for(codes or [], place, cases=case)
        async with opened(place, creates=True) as env:
            return await _serve(env, known, owners_for(codes or [], place), name, end_runs=end_runs)

    perform(work, as_json=False)


async def _serve(env: Environment, known: Registry, owners: Sequence[Owner], name: str, *, end_runs: bool) -> int:
    advancing = RunWorker(env, known, name=name)
    delivering = Deliverer(env, [*owners_of_runs(env), ScheduleOwner(env), *owners], name=name)
    with Stop().listening() as stop:
        await advancing.start()
        await delivering.start()
        say(f"worker {advancing.id} ready (pid {os.getpid()}): {', '.join(known.names)}")
        await stop.event.wait()
        say(f"draining: calls in flight get their time, unfinished runs are {'ended' if end_runs else 'handed back'}")
        await delivering.close()
        await advancing.close(end_runs=end_runs)
    say(f"stopped; {advancing.state.claimed} attempts")
    return Exit.OK


async def advance(env: Environment, place: Place, known: Registry, run: Run, *, as_json: bool, may_follow: bool) -> int:
    """Advance a run's tree with progress on stderr, and show how that ended; return the exit code."""
    stop = Stop()
    with stop.listening():
        async with _told(env, run.id):
            ending = await drive(env, known, run.id, stop, patience_ms=place.config.patience_ms, may_follow=may_follow)
    code = await show_ending(env, place, run.id, ending, as_json=as_json)
    return 128 + stop.signal if ending is Ending.HANDED_BACK else code


@contextlib.asynccontextmanager
async def _told(env: Environment, run_id: RunId) -> AsyncIterator[None]:
    """Show the run's stream on stderr meanwhile, if somebody sits there."""
    if not sys.stderr.isatty():
        yield
        return
    teller = Teller(sys.stderr)

    async def tell() -> None:
        async for frame in ControlService(env).stream(run_id):
            teller.show(frame)

    telling = asyncio.create_task(tell(), name="progress")
    try:
        yield
        await asyncio.wait({telling}, timeout=0.2)
    finally:
        telling.cancel()
        teller.finish()


def milliseconds(timeout: float | None) -> int | None:
    """Return a timeout in whole milliseconds. Raises `InvalidInput` in the unit in which it was given."""
    if timeout is None:
        return None
    if not 0.001 <= timeout <= TIMEOUT_MS_MAX / 1000:
        raise InvalidInput(field="timeout", value=timeout, rule=f"must be 0.001 to {TIMEOUT_MS_MAX // 1000} seconds")
    return round(timeout * 1000)


def read_budget(given: list[str]) -> Budget:
    """Return the budget that `unit=limit` texts describe. Raises `InvalidInput`."""
    limits: dict[str, int] = {}
    for text in given:
        unit, mark, limit = text.partition("=")
        if not mark or not limit.isdecimal():
            raise InvalidInput(field="budget", value=text, rule="must be UNIT=LIMIT, as tool_calls=5")
        limits[unit] = int(limit)
    return Budget.of_limits(limits)
