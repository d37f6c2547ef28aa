"""Probing: a tool's own destination is asked what became of a call that left and did not answer.

Keeps: asking is no dispatch, and may be repeated at any time, of runs that go on and of runs that have ended. A failed read is
not an answer, and never taken for absence (CC-44). The answer is evidence beside the journal, as a person's decision is.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.boundary import Actor
from quiesce.domain.canonical import Json, parse
from quiesce.domain.errors import InvalidInput, NotFound, Refused, required
from quiesce.domain.evidence import Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation
from quiesce.ports.store import Transaction
from quiesce.runtime.background import call_body
from quiesce.runtime.codec import annotations_of, decode, encode
from quiesce.runtime.environment import Environment
from quiesce.runtime.reconciliation import Decision, decide
from quiesce.runtime.registry import Registry, Tool


@dataclass(frozen=True, slots=True)
class Happened:
    """Answer of a probe: the effect took place, with this result."""

    result: object = None


@dataclass(frozen=True, slots=True)
class Absent:
    """Answer of a probe: it did not take place *and can no longer do so*. Only then is it dispatched again."""


async def ask_destination(tool: Tool, key: str) -> object:
    """Ask through the tool's probe; return `Happened`, `Absent`, or whatever else it said or raised: that is no answer."""
    probe = required(tool.probe, "a tool with effect 'probe' has a probe")
    try:
        return await call_body(probe, (key,), {})
    except Exception as error:  # noqa: BLE001 - user code; see above
        return error


async def read_again(
    env: Environment, known: Registry, run_id: RunId, position: Position, *, actor: Actor, tenant: str
) -> Evidence:
    """Ask the destination of an unknown effect once more, and record what it said; see `decide_tx` for what follows from it.

    Raises `NotFound`, or `Refused` for an operation whose outcome is known, and where this process does not know the tool or
    the tool has no probe: then nobody was asked and nothing is recorded.
    """
    agent, operation = await env.store.read(lambda tx: _unknown(tx, run_id, position, tenant))
    tool = known.tool_of(agent, operation.name)
    if tool is None:
        raise Refused(f"tool {operation.name!r} of agent {agent!r} is not known here: name its code", operation=position)
    if tool.probe is None:
        raise Refused(
            f"tool {tool.name!r} is declared {str(tool.effect)!r}: it has no probe, so its destination cannot be asked; look it "
            "up and record a decision",
            operation=position,
        )
    answer = await ask_destination(tool, operation.key)
    verdict, result, said = _read(answer, tool, env)
    grounds = f"asked the destination again: {said}"[: env.limits.text_chars_max]
    decision = Decision(
        run_id=run_id,
        position=position,
        verdict=verdict,
        actor=actor,
        grounds=grounds,
        result=result,
        kind=EvidenceKind.PROBE,
        tenant=tenant,
        is_checked=verdict is Verdict.HAPPENED,
    )
    return await decide(env, decision)


def _unknown(tx: Transaction, run_id: RunId, position: Position, tenant: str) -> tuple[str, Operation]:
    run, operation = tx.runs.get(run_id), tx.operations.get(run_id, position)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    if operation is None:
        raise NotFound("operation", position, f"run {run_id} has no such position; see `quiesce inspect`")
    if not operation.may_have_acted:
        raise Refused(f"operation {position} ({operation.name}) is {operation.status}: its outcome is known", operation=position)
    return run.agent, operation


def _read(answer: object, tool: Tool, env: Environment) -> tuple[Verdict, Json, str]:
    """Return what an answer says; a result that the tool does not return by its declaration is no answer."""
    match answer:
        case Happened(result):
            try:
                data = encode(result, field=f"result of {tool.name}", limits=env.limits)
                decode(data, annotations_of(tool.fn).get("return"), field="result")
            except InvalidInput:
                return Verdict.CANNOT_TELL, None, "it answered with what the tool does not return by its declaration"
            return Verdict.HAPPENED, parse(data), "it happened"
        case Absent():
            return Verdict.DID_NOT_HAPPEN, None, "it did not happen, and cannot any more"
        case Exception():
            return Verdict.CANNOT_TELL, None, f"no answer ({type(answer).__name__})"
        case _:
            return Verdict.CANNOT_TELL, None, "it cannot tell"
