"""Calls of tools: sealed → dispatched → committed → consumed, and what a restart may do with each.

Two durable writes a call: seal and dispatch together before it leaves, the result after. The dispatch mark is durable
before the tool is touched (RR-09). Whether an unanswered call may be made again is decided by `domain.operations.recover`
from the declared policy and the stored facts; a new process gives no right to it (RR-13).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import BudgetExceeded, FenceLost, InvalidInput, OutcomeUnknown, required
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.ids import Position
from quiesce.domain.operations import (
    EffectPolicy,
    Operation,
    OperationKind,
    OperationStatus,
    Recovery,
    ResultKind,
    Try,
    fingerprint,
)
from quiesce.domain.runs import Wait, WaitKind
from quiesce.runtime import scopes
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.background import call_body
from quiesce.runtime.codec import annotations_of, encode
from quiesce.runtime.isolated import ISOLATED, Call, target_of
from quiesce.runtime.probing import Absent, Happened, ask_destination
from quiesce.runtime.reconciliation import answer_tx
from quiesce.runtime.registry import Tool
from quiesce.runtime.steps import backed_off, describe, error_result, recovery_of, refuse, result_of, wait_for_due
from quiesce.runtime.transacting import persist

_REPEATABLE: Final = (EffectPolicy.PURE, EffectPolicy.IDEMPOTENT)


async def perform_call(
    attempt: Attempt, position: Position, tool: Tool, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    """Return the call's stored result, making the call first where that is allowed.

    Raises `ToolFailed` for a stored error. An outcome that nobody can tell parks the run until there is evidence or a
    decision; it is never repeated on a hope. Raises `InvalidInput` for arguments that the tool does not take.
    """
    attempt.journal.check_open()
    operation = _begin(attempt, position, tool, args, kwargs)
    while not operation.has_result:
        match await recovery_of(attempt, attempt.journal.operations.get(position)):
            case Recovery.WAIT:
                await wait_for_due(attempt, operation)
                operation = await _dispatch(attempt, replace(operation, due_at=None), tool, args, kwargs)
            case Recovery.BEGIN | Recovery.DISPATCH | Recovery.AGAIN:
                operation = await _dispatch(attempt, replace(operation, due_at=None), tool, args, kwargs)
            case Recovery.PROBE:
                operation = await _probe(attempt, operation, tool)
            case Recovery.PARK:
                operation = await _park_unknown(attempt, operation)
            case Recovery.READ:
                operation = attempt.journal.operations[position]
    attempt.journal.consume(position)
    return result_of(operation, annotations_of(tool.fn).get("return"))


def _begin(attempt: Attempt, position: Position, tool: Tool, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Operation:
    try:
        bound = inspect.signature(tool.fn).bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise InvalidInput(field=f"arguments of {tool.name}", value=[*args, *kwargs], rule=f"do not fit: {error}") from None
    arguments = encode(bound, field=f"arguments of {tool.name}", limits=attempt.env.limits)
    mark = fingerprint(OperationKind.CALL, tool.name, arguments)
    return attempt.journal.expect(position, OperationKind.CALL, tool.name, mark) or Operation(
        run_id=attempt.run.id,
        position=position,
        kind=OperationKind.CALL,
        name=tool.name,
        fingerprint=mark,
        arguments=arguments,
        policy=tool.effect,
        status=OperationStatus.SEALED,
        fence=attempt.run.fence,
        sealed_at=attempt.env.clock.now(),
    )


async def _dispatch(
    attempt: Attempt, operation: Operation, tool: Tool, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Operation:
    """Store the dispatch mark, then make the call, in flight; return the operation as it then stands.

    An operation that comes here dispatched is in doubt: an earlier try left and nobody has its answer.
    """
    attempt.journal.check_open()
    crash = attempt.env.crash
    in_doubt = operation.status is OperationStatus.DISPATCHED and tool.effect is EffectPolicy.IDEMPOTENT
    begun = Try(number=len(operation.tries) + 1, fence=attempt.run.fence, started_at=attempt.env.clock.now())
    asking = replace(
        operation,
        status=OperationStatus.DISPATCHED,
        fence=attempt.run.fence,
        tries=(*operation.tries, begun),
        reserved={u: operation.reserved.get(u, 0) + tool.cost.get(u, 0) for u in {*operation.reserved, *tool.cost}},
    )
    crash.reach("dispatch.before")
    try:
        await attempt.journal.put(asking)
    except BudgetExceeded as error:
        return await (_park_unknown(attempt, operation) if in_doubt else refuse(attempt, operation, error))
    operation = asking
    if tool.effect is EffectPolicy.PROBE and begun.number > 1:
        operation = await _as_stored(attempt, operation)
        if operation.has_result:
            return operation
        if operation.fence != attempt.run.fence:  # another holder's by now, and so is the call
            raise FenceLost
    crash.reach("dispatch.after")
    attempt.journal.gate.begin_scope(operation.position)
    interruptible = tool.isolation != "thread"
    task = attempt.start(
        operation, _carry_out(attempt, operation, tool, args, kwargs, in_doubt=in_doubt), can_interrupt=interruptible
    )
    await attempt.join(operation.position, task)
    return attempt.journal.operations[operation.position]


async def _carry_out(
    attempt: Attempt,
    operation: Operation,
    tool: Tool,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    in_doubt: bool,
) -> None:
    """Make the call and store what it answered; whoever awaits it may be gone by then."""
    scopes.enter(scopes.Scope(operation.position, asyncio.current_task()))
    try:
        async with asyncio.timeout(None if tool.timeout_ms is None else tool.timeout_ms / 1000):
            value = await _invoke(attempt, operation, tool, args, kwargs)
        result = encode(value, field=f"result of {tool.name}", limits=attempt.env.limits)
        ended = _committed(attempt, operation, tool, ResultKind.OK, result)
    except asyncio.CancelledError:
        await _store(attempt, await _without_answer(attempt, operation, tool, "interrupted"))
        raise
    except (OutcomeUnknown, TimeoutError) as doubt:
        ended = await _without_answer(attempt, operation, tool, str(doubt) or "no answer in time")
    except Exception as error:  # noqa: BLE001 - a tool may raise anything: that is its answer, and a stored result
        ended = await _failed(attempt, operation, tool, error, in_doubt=in_doubt)
    attempt.has_answered(operation.position)
    attempt.env.crash.reach("effect.after")
    await _store(attempt, ended)


async def _invoke(
    attempt: Attempt, operation: Operation, tool: Tool, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    call = Call(
        key=operation.key,
        run_id=operation.run_id,
        operation=operation.position,
        fence=operation.fence,
        try_number=len(operation.tries),
        deadline_at=attempt.run.deadline_at,
    )
    if tool.isolation == "process":
        process = required(attempt.env.tool_process, "an environment that runs isolated tools has a tool process")
        packed = encode([target_of(tool.fn), args, kwargs, call if tool.takes_call else None], field=f"arguments of {tool.name}")
        payload = canonical({"args": parse(packed)})
        return parse(await process.run(ISOLATED, payload, grace_ms=attempt.env.settings.grace_ms))
    extra: dict[str, object] = {"call": call} if tool.takes_call else {}
    return await call_body(tool.fn, args, {**kwargs, **extra})


async def _store(attempt: Attempt, operation: Operation) -> None:
    """Store an answer: in the journal while the attempt advances or drains, beside it once the run is out of reach."""
    if attempt.is_over:
        await testify_late(attempt, operation)
        return
    if attempt.is_stopping:
        attempt.journal.hold(operation)
        return
    try:
        await attempt.journal.put(operation)
    except FenceLost:  # out of reach since, which shows only now
        await testify_late(attempt, operation)
        raise
    attempt.env.crash.reach("result.after" if operation.has_result else "retry.after")


async def testify_late(attempt: Attempt, operation: Operation) -> None:
    """Store an answer that the attempt can no longer store as its own: a record beside the journal, for the run to take.

    The record is of the instant at which the answer came, so that telling of it twice leaves one.
    """
    if operation.has_result:
        body = {"result_kind": str(operation.result_kind), "result": parse(operation.result or b"null")}
        at = required(operation.settled_at, "a result has its instant")
        evidence = attempt.evidence_of(operation, EvidenceKind.LATE_RESULT, body, Verdict.HAPPENED, at)
        await persist(attempt.env, lambda tx: answer_tx(tx, operation, evidence))


def _committed(attempt: Attempt, operation: Operation, tool: Tool, kind: ResultKind, result: bytes) -> Operation:
    now = attempt.env.clock.now()
    return replace(
        operation,
        status=OperationStatus.COMMITTED,
        result_kind=kind,
        result=result,
        settled_at=now,
        reserved=_less(operation, tool),
        used={u: operation.used.get(u, 0) + tool.cost.get(u, 0) for u in {*operation.used, *tool.cost}},
        tries=(*operation.tries[:-1], replace(operation.tries[-1], ended_at=now)),
    )


def _less(operation: Operation, tool: Tool) -> dict[str, int]:
    """Return what stays reserved when this try's own reservation ends: earlier tries that nobody answered for."""
    left = {u: n - tool.cost.get(u, 0) for u, n in operation.reserved.items()}
    return {u: n for u, n in left.items() if n > 0}


async def _failed(attempt: Attempt, operation: Operation, tool: Tool, error: Exception, *, in_doubt: bool) -> Operation:
    """A tool that raised has answered for this try. Only what may be repeated anyway is tried again.

    Of an earlier try that nobody answered for, a failure of this one says nothing: the doubt stays.
    """
    delay_ms = tool.retry.delay_ms(len(operation.tries)) if tool.effect in _REPEATABLE else None
    used = {u: operation.used.get(u, 0) + tool.cost.get(u, 0) for u in {*operation.used, *tool.cost}}
    if delay_ms is not None:
        waiting = await backed_off(attempt, operation, error, delay_ms, _less(operation, tool))
        return replace(waiting, used=used, status=OperationStatus.DISPATCHED if in_doubt else waiting.status)
    if in_doubt:
        last = replace(operation.tries[-1], error=describe(error), ended_at=attempt.env.clock.now())
        unknown = replace(operation, status=OperationStatus.UNKNOWN, tries=(*operation.tries[:-1], last))
        return replace(unknown, used=used, reserved=_less(operation, tool))
    return _committed(attempt, operation, tool, ResultKind.ERROR, error_result(error))


async def _without_answer(attempt: Attempt, operation: Operation, tool: Tool, why: str) -> Operation:
    """A call that left and did not answer: tried again where that is safe, else unknown."""
    if tool.effect is EffectPolicy.PURE and attempt.is_stopping:
        return replace(operation, status=OperationStatus.SEALED)
    if tool.effect in _REPEATABLE and not attempt.is_stopping:
        delay_ms = tool.retry.delay_ms(len(operation.tries))
        if delay_ms is not None:
            waiting = await backed_off(attempt, operation, TimeoutError(why), delay_ms, operation.reserved)
            return waiting if tool.effect is EffectPolicy.PURE else replace(waiting, status=OperationStatus.DISPATCHED)
        if tool.effect is EffectPolicy.PURE:
            return _committed(attempt, operation, tool, ResultKind.ERROR, error_result(TimeoutError(why)))
    last = replace(operation.tries[-1], error=f"no answer: {why}", ended_at=attempt.env.clock.now())
    return replace(operation, status=OperationStatus.UNKNOWN, tries=(*operation.tries[:-1], last))


async def _probe(attempt: Attempt, operation: Operation, tool: Tool) -> Operation:
    """Ask the destination what became of an unanswered call. Asking is no dispatch and may be repeated."""
    answer = await ask_destination(tool, operation.key)
    match answer:
        case Happened(result):
            await attempt.testify(operation, EvidenceKind.PROBE, {"answer": "happened"})
            data = encode(result, field=f"result of {tool.name}", limits=attempt.env.limits)
            found = replace(operation, tries=operation.tries or ())
            committed = _committed(attempt, found, tool, ResultKind.OK, data)
            await attempt.journal.put(committed)
            return await _as_stored(attempt, committed)
        case Absent():
            await attempt.testify(operation, EvidenceKind.PROBE, {"answer": "absent"}, Verdict.DID_NOT_HAPPEN)
            sealed = replace(operation, status=OperationStatus.SEALED, due_at=None, reserved=_less(operation, tool))
            attempt.journal.hold(sealed)
            return sealed
        case _:
            return await _park_unknown(attempt, operation)


async def _as_stored(attempt: Attempt, operation: Operation) -> Operation:
    """Return what stands in the journal: while the destination was asked, a person may have decided, and that comes first."""
    stored = await attempt.read(lambda tx: tx.operations.get(operation.run_id, operation.position))
    attempt.journal.operations[operation.position] = stored = required(stored, "an operation that was written is on record")
    return stored


async def _park_unknown(attempt: Attempt, operation: Operation) -> Operation:
    """Keep the uncertainty, durably, and wait for the destination's own evidence or a person's decision."""
    attempt.journal.check_open()
    if operation.status is not OperationStatus.UNKNOWN:
        operation = replace(operation, status=OperationStatus.UNKNOWN)
        await attempt.journal.put(operation)
    wait = Wait(kind=WaitKind.UNKNOWN, subject=operation.position, position=operation.position)
    await attempt.wait_until_over(wait)
    attempt.journal.check_open()
    return await _as_stored(attempt, operation)
