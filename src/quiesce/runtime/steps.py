"""Steps: code that may be repeated until its result is stored, then never runs again.

One durable write a step (its result), unless it reserves units first. A failed try and the due time of the next are
stored, so a restart between two tries goes on counting (C62).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from quiesce.domain.budgets import Amounts, difference
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import BudgetExceeded, OutcomeUnknown, ReplayMismatch, StepFailed, Stopped, ToolFailed
from quiesce.domain.evidence import EvidenceKind
from quiesce.domain.ids import Position
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import (
    EffectPolicy,
    Operation,
    OperationKind,
    OperationStatus,
    Recovery,
    ResultKind,
    RetryPolicy,
    Try,
    fingerprint,
    recover,
)
from quiesce.domain.runs import Durability, Wait, WaitKind
from quiesce.runtime import scopes
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.background import call_body
from quiesce.runtime.codec import annotations_of, decode, encode

ERROR_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is carried out. `usage` maps its result to what it really used of the reserved units."""

    name: str
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    reserve: Mapping[str, int] = field(default_factory=dict)
    usage: Callable[[object], Amounts] | None = None


Body = Callable[..., object]


async def perform_step(
    attempt: Attempt,
    position: Position,
    body: Body,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: StepOptions,
) -> object:
    """Return the step's stored result, running `body` first if there is none. Raises `StepFailed` for a stored error."""
    attempt.journal.check_open()
    arguments = encode({"args": args, "kwargs": dict(kwargs)}, field=f"arguments of {options.name}", limits=attempt.env.limits)
    mark = fingerprint(OperationKind.STEP, options.name, arguments)
    known = attempt.journal.expect(position, OperationKind.STEP, options.name, mark)
    now = attempt.env.clock.now()
    operation = known or Operation(
        run_id=attempt.run.id,
        position=position,
        kind=OperationKind.STEP,
        name=options.name,
        fingerprint=mark,
        arguments=arguments,
        policy=EffectPolicy.PURE,
        status=OperationStatus.SEALED,
        fence=attempt.run.fence,
        sealed_at=now,
    )
    while not operation.has_result:
        if known is not None and await recovery_of(attempt, operation) is Recovery.WAIT:
            await wait_for_due(attempt, operation)
        operation = await _try_once(attempt, replace(operation, due_at=None), body, args, kwargs, options)
        known = operation
    attempt.journal.consume(position)
    return result_of(operation, annotations_of(body).get("return"))


async def recovery_of(attempt: Attempt, operation: Operation | None) -> Recovery:
    """Return what may happen with a stored operation; whether a back-off is over is judged by the store's clock."""
    has_due = operation is not None and operation.due_at is not None
    return recover(operation, now=await attempt.store_now() if has_due else attempt.env.clock.now())


async def wait_for_due(attempt: Attempt, operation: Operation) -> None:
    """Wait out a stored back-off, in place if it is short, else parked."""
    due = operation.due_at
    await attempt.wait_until_over(Wait(kind=WaitKind.TIMER, subject=operation.position, position=operation.position, due_at=due))
    attempt.journal.check_open()


async def _try_once(
    attempt: Attempt,
    operation: Operation,
    body: Body,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: StepOptions,
) -> Operation:
    """Run the body once, in flight; return the operation with its result, or sealed with a due time."""
    number = len(operation.tries) + 1
    begun = Try(number=number, fence=attempt.run.fence, started_at=attempt.env.clock.now())
    operation = replace(operation, fence=attempt.run.fence, tries=(*operation.tries, begun))
    attempt.journal.gate.begin_scope(operation.position)
    if options.reserve:
        asking = replace(operation, reserved=_plus(operation.reserved, options.reserve))
        try:
            await attempt.journal.put(asking)
        except BudgetExceeded as error:
            return await refuse(attempt, operation, error)
        operation = asking
    done: list[Operation] = []

    async def carry_out() -> None:
        scopes.enter(scopes.Scope(operation.position, asyncio.current_task()))
        try:
            value = await call_body(body, args, kwargs)
            ended = _succeeded(attempt, operation, value, options)
        except (BudgetExceeded, OutcomeUnknown, ReplayMismatch):
            raise  # of an operation inside: not this step's own failure
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it becomes a stored result
            ended = await _failed(attempt, operation, error, options)
        attempt.has_answered(operation.position)
        done.append(await _keep(attempt, ended))

    task = attempt.start(operation, carry_out(), can_interrupt=inspect.iscoroutinefunction(body))
    await attempt.join(operation.position, task)
    if attempt.is_stopping:
        raise Stopped
    return done[0]


async def refuse(attempt: Attempt, operation: Operation, error: BudgetExceeded) -> Operation:
    """Store that the budget refused this operation: a replay is refused too, whatever was freed meanwhile."""
    refused = replace(
        operation,
        status=OperationStatus.COMMITTED,
        result_kind=ResultKind.ERROR,
        result=error_result(error),
        settled_at=attempt.env.clock.now(),
    )
    await attempt.journal.put(refused)
    return refused


def _succeeded(attempt: Attempt, operation: Operation, value: object, options: StepOptions) -> Operation:
    result = encode(value, field=f"result of {operation.name}", limits=attempt.env.limits)
    used = options.usage(value) if options.usage is not None else options.reserve
    return _settled(attempt, operation, options, used, ResultKind.OK, result)


async def _failed(attempt: Attempt, operation: Operation, error: Exception, options: StepOptions) -> Operation:
    delay_ms = options.retry.delay_ms(len(operation.tries))
    used = dict.fromkeys(options.reserve, 0)
    if delay_ms is None:
        return _settled(attempt, operation, options, used, ResultKind.ERROR, error_result(error))
    return await backed_off(attempt, operation, error, delay_ms, _minus(operation.reserved, options.reserve))


async def backed_off(attempt: Attempt, operation: Operation, error: Exception, delay_ms: int, reserved: Amounts) -> Operation:
    """Return the operation sealed again after a definite failure, due later; the failed try stays in its log."""
    now = await attempt.store_now()
    failed = replace(operation.tries[-1], error=describe(error), ended_at=now)
    return replace(
        operation,
        status=OperationStatus.SEALED,
        due_at=after_ms(now, delay_ms),
        reserved=reserved,
        tries=(*operation.tries[:-1], failed),
    )


def _settled(
    attempt: Attempt, operation: Operation, options: StepOptions, used: Amounts, kind: ResultKind, result: bytes
) -> Operation:
    now = attempt.env.clock.now()
    return replace(
        operation,
        status=OperationStatus.COMMITTED,
        result_kind=kind,
        result=result,
        settled_at=now,
        reserved=_minus(operation.reserved, options.reserve),
        used=_plus(operation.used, used),
        tries=(*operation.tries[:-1], replace(operation.tries[-1], ended_at=now)),
    )


async def _keep(attempt: Attempt, operation: Operation) -> Operation:
    """Store a step's end as the run's durability mode says; what comes after a stop is kept as evidence, without force."""
    attempt.env.crash.reach("step.before")
    if attempt.is_stopping:
        if operation.result_kind is ResultKind.OK:
            await attempt.testify(operation, EvidenceKind.LATE_PROPOSAL, parse(operation.result or b"null"))
        return operation
    mode = attempt.run.durability
    if operation.due_at is not None or mode is Durability.SYNC:
        await attempt.journal.put(operation)
        attempt.env.crash.reach("step.after" if operation.has_result else "retry.after")
        return operation
    attempt.journal.hold(operation)
    if mode is Durability.ASYNC:
        attempt.journal.push()
    return operation


def error_result(error: BaseException) -> bytes:
    """Return the stored form of an error: its type and message, bounded."""
    return canonical({"type": type(error).__name__, "message": _printable(str(error))})


def describe(error: BaseException) -> str:
    """Return one bounded line about an error, for a try's log."""
    return f"{type(error).__name__}: {_printable(str(error))}"[:ERROR_CHARS_MAX]


def _printable(text: str) -> str:
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()


def result_of(operation: Operation, annotation: object = None) -> object:
    """Return the value of a committed operation, or raise what it ended with."""
    data = operation.result or b"null"
    if operation.result_kind is ResultKind.OK:
        return decode(data, annotation, field=f"result of {operation.name}")
    facts = parse(data)
    row = facts if isinstance(facts, dict) else {}
    if operation.result_kind is ResultKind.GIVEN_UP:
        raise OutcomeUnknown(
            f"{operation.name}: nobody could tell whether it took place, and it was decided to go on without knowing",
            operation=operation.position,
        )
    if row.get("type") == BudgetExceeded.__name__:
        raise BudgetExceeded(str(row.get("message")), operation=operation.position)
    kind = StepFailed if operation.kind is OperationKind.STEP else ToolFailed
    raise kind(f"{operation.name}: {row.get('type')}: {row.get('message')}", operation=operation.position, error=row)


def _plus(a: Amounts, b: Amounts) -> dict[str, int]:
    return {unit: a.get(unit, 0) + b.get(unit, 0) for unit in {*a, *b}}


def _minus(a: Amounts, b: Amounts) -> dict[str, int]:
    return {unit: max(0, change) for unit, change in difference(a, b).items() if change > 0}
