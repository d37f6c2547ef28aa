"""Verbs that change what a run may do: `cancel`, `reconcile`."""

from __future__ import annotations

import getpass
import json
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.code import registry_for
from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, RunArgument, SessionOption, StoreOption
from quiesce.cli.output import console, listing, print_json, say
from quiesce.cli.receipt_view import show_receipt
from quiesce.cli.session import Place, find_run, locate, opened
from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope
from quiesce.domain.canonical import Json, parse
from quiesce.domain.errors import InvalidInput
from quiesce.domain.evidence import Evidence, Verdict
from quiesce.domain.ids import Position
from quiesce.domain.operations import OperationStatus
from quiesce.runtime.cancel import CancelVerdict
from quiesce.runtime.inspection import Inspection
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.service import ControlService

_WORDS = {
    CancelVerdict.ACCEPTED: "accepted",
    CancelVerdict.ALREADY_ACCEPTED: "an end was accepted already",
    CancelVerdict.ALREADY_TERMINAL: "already terminal: nothing was changed",
}


def cancel(
    run: RunArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Your words, kept in the receipt.")] = "",
    mode: Annotated[CancelMode, typer.Option("--mode", help="Interrupt now, or let the step finish.")] = CancelMode.NOW,
    scope: Annotated[CancelScope, typer.Option("--scope", help="The run alone, or all below it too.")] = CancelScope.TREE,
    grace: Annotated[int | None, typer.Option("--grace", help="Milliseconds for what cannot be interrupted.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the receipt.")] = False,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a run."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts)) as env:
            service = ControlService(env)
            run_id = await find_run(service, run)
            admission = await service.cancel(run_id, reason=reason, mode=mode, scope=scope, grace_ms=grace)
            if not as_json:
                reached = f"; {len(admission.reached)} runs are fenced" if len(admission.reached) > 1 else ""
                say(f"cancel of {run_id}: {_WORDS[admission.verdict]}{reached}")
            receipt = admission.receipt if no_wait else await service.wait(run_id)
        if as_json:
            print_json({"admission": admission.to_json(), "receipt": receipt.to_json() if receipt else None})
        elif receipt is not None:
            show_receipt(console(), receipt)
        else:
            say("nothing is said yet about what became durable: see `quiesce receipt`")
        return Exit.OK

    perform(work, as_json=as_json)


def reconcile(
    run: RunArgument,
    operation: Annotated[
        str | None, typer.Argument(metavar="OPERATION", help="Position, as `inspect` shows it.", show_default=False)
    ] = None,
    *,
    verdict: Annotated[Verdict | None, typer.Option("--verdict", help="What you have found out, or decided.")] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask the destination again, through the tool's probe.")] = False,
    result: Annotated[str | None, typer.Option("--result", help="JSON: what the call answered, if it happened.")] = None,
    grounds: Annotated[str, typer.Option("--grounds", help="On what grounds; kept with the decision.")] = "",
    actor: Annotated[str | None, typer.Option("--actor", help="Who decides. [default: your login name]")] = None,
    codes: Annotated[
        list[str] | None,
        typer.Option("--code", metavar="MODULE:AGENT", help="The run's code, to check the result by.", show_default=False),
    ] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about an effect that may have happened."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        if operation is None:
            return await _list_unknown(place, run, as_json=as_json)
        value = _result_of(verdict, result)
        if ask and verdict is not None:
            raise InvalidInput(field="ask", value=True, rule="cannot go with --verdict: the destination's answer is the verdict")
        if not ask and (verdict is None or not grounds):
            missing = "verdict" if verdict is None else "grounds"
            raise InvalidInput(field=missing, value=None, rule=f"a decision needs --{missing}; or --ask the destination")
        known = registry_for(codes or [], place)
        async with opened(place) as env:
            service = ControlService(env, known=known)
            run_id, position = await find_run(service, run), Position(operation)
            who = Actor(kind=ActorKind.USER, name=actor or getpass.getuser())
            if verdict is None:
                evidence = await service.read_again(run_id, position, actor=who)
            else:
                evidence = await service.reconcile(
                    Decision(run_id=run_id, position=position, verdict=verdict, actor=who, grounds=grounds, result=value)
                )
            seen = await service.inspect(run_id)
        if as_json:
            print_json(
                {
                    "evidence": evidence.to_json(),
                    "result_checked": _is_checked(evidence),
                    "status": str(seen.run.status),
                    "explanation": seen.explain(),
                }
            )
        else:
            _say_decided(place, evidence, seen)
        return Exit.OK

    perform(work, as_json=as_json)


async def _list_unknown(place: Place, run: str, *, as_json: bool) -> int:
    async with opened(place, writes=False) as env:
        service = ControlService(env)
        seen = await service.inspect(await find_run(service, run))
    unknown = [o for o in seen.operations if o.status is OperationStatus.UNKNOWN]
    if as_json:
        print_json([o.to_json() for o in unknown])
    elif unknown:
        rows = [(o.position, o.name, str(o.policy), str(len(o.tries)), o.key) for o in unknown]
        console().print(listing(("op", "tool", "effect", "tries", "key to look for"), rows))
    else:
        console().print(Text("nothing is undecided"))
    return Exit.OK


def _is_checked(evidence: Evidence) -> bool:
    facts = parse(evidence.body)
    return isinstance(facts, dict) and facts.get("result_checked") is True


def _say_decided(place: Place, evidence: Evidence, seen: Inspection) -> None:
    out = console()
    out.print(Text(f"recorded: operation {evidence.position} {evidence.verdict}"))
    if evidence.verdict is Verdict.HAPPENED and not _is_checked(evidence):
        unknown = "the result was not checked: what the tool returns is not known here (name its code: --code module:agent)"
        out.print(Text(unknown), soft_wrap=True)
    if seen.run.is_active:
        out.print(Text(f"the run may go on: quiesce resume {seen.run.id}{place.flags}"), soft_wrap=True)
    else:
        out.print(Text(f"the run stays as it ended: {seen.explain()}"), soft_wrap=True)


def _result_of(verdict: Verdict | None, text: str | None) -> Json:
    if text is None:
        return None
    if verdict is not Verdict.HAPPENED:
        raise InvalidInput(field="result", value=text, rule="goes with --verdict happened")
    try:
        value: Json = json.loads(text)
    except ValueError as error:
        raise InvalidInput(field="result", value=text, rule=f"is not JSON: {error}") from None
    return value
