"""Points of an agent's code that are one fact when they are stored: checkpoints, timers, saved artifacts."""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.canonical import Json, canonical, digest, parse
from quiesce.domain.errors import InvalidInput, Stopped, required
from quiesce.domain.evidence import ArtifactReceipt
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.operations import (
    EffectPolicy,
    Operation,
    OperationKind,
    OperationStatus,
    ResultKind,
    fingerprint,
)
from quiesce.domain.runs import Durability, Wait, WaitKind
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.codec import encode

SLEEP_SECONDS_MAX = 366 * 86_400


def fact(attempt: Attempt, position: Position, kind: OperationKind, name: str, *, arguments: bytes, result: bytes) -> Operation:
    """Make an operation that is done when it is stored."""
    now = attempt.env.clock.now()
    return Operation(
        run_id=attempt.run.id,
        position=position,
        kind=kind,
        name=name,
        fingerprint=fingerprint(kind, name, arguments),
        arguments=arguments,
        policy=EffectPolicy.PURE,
        status=OperationStatus.COMMITTED,
        fence=attempt.run.fence,
        sealed_at=now,
        result_kind=ResultKind.OK,
        result=result,
        settled_at=now,
    )


async def perform_checkpoint(attempt: Attempt, position: Position, state: object) -> None:
    """Store a completed state that covers every event numbered so far; on replay, pass over it.

    After a cancel in mode `after_step` this is the boundary at which the run stops: the state is stored, then `Stopped`.
    """
    journal = attempt.journal
    if not journal.may_close_step:
        journal.check_open()
    data = encode(state, field="state", limits=attempt.env.limits)
    name = "checkpoint"
    mark = fingerprint(OperationKind.CHECKPOINT, name, b"null")
    known = journal.expect(position, OperationKind.CHECKPOINT, name, mark)
    if known is not None and known.has_result:
        return
    attempt.env.crash.reach("checkpoint.before")
    checkpoint = journal.make_checkpoint(data, is_final=False)
    result = canonical({"checkpoint_id": checkpoint.id, **journal.gate.emitted(journal.has_ended)})
    journal.hold(fact(attempt, position, OperationKind.CHECKPOINT, name, arguments=b"null", result=result))
    journal.consume(position)
    if attempt.run.durability is Durability.SYNC or journal.is_closed:
        await journal.flush()
    elif attempt.run.durability is Durability.ASYNC:
        journal.push()
    attempt.env.crash.reach("checkpoint.after")
    if journal.is_closed:
        raise Stopped


async def perform_sleep(attempt: Attempt, position: Position, seconds: float) -> None:
    """Store a due instant when first reached, then wait for it, parked if that is long."""
    journal = attempt.journal
    journal.check_open()
    if not 0 <= seconds <= SLEEP_SECONDS_MAX:
        raise InvalidInput(field="seconds", value=seconds, rule=f"must be 0 to {SLEEP_SECONDS_MAX}")
    arguments = canonical({"seconds": seconds})
    mark = fingerprint(OperationKind.TIMER, "sleep", arguments)
    timer = journal.expect(position, OperationKind.TIMER, "sleep", mark)
    if timer is None:
        due = after_ms(await attempt.store_now(), seconds * 1000)
        timer = replace(fact(attempt, position, OperationKind.TIMER, "sleep", arguments=arguments, result=b"null"), due_at=due)
        await journal.put(timer)
    due_at = required(timer.due_at, "a timer has its due instant")
    await attempt.wait_until_over(Wait(kind=WaitKind.TIMER, subject=position, position=position, due_at=due_at))
    journal.check_open()
    journal.consume(position)


async def perform_save_artifact(attempt: Attempt, position: Position, name: str, content: str | bytes) -> ArtifactReceipt:
    """Write the file, then store its receipt; on replay, read the receipt back and write nothing."""
    journal, files = attempt.journal, attempt.env.artifacts
    journal.check_open()
    if files is None:
        raise InvalidInput(field="artifacts", value=None, rule="need a directory: Quiesce(..., artifacts=DIR)")
    data = content.encode() if isinstance(content, str) else content
    arguments = canonical({"name": name, "digest": digest(data)})
    mark = fingerprint(OperationKind.STEP, "save_artifact", arguments)
    known = journal.expect(position, OperationKind.STEP, "save_artifact", mark)
    if known is not None and known.has_result:
        journal.consume(position)
        return _receipt_from(attempt.run.id, parse(required(known.result, "a stored result")))
    path = files.write(attempt.run.id, name, data)
    now = attempt.env.clock.now()
    receipt = ArtifactReceipt(run_id=attempt.run.id, name=name, path=path, digest=digest(data), bytes=len(data), saved_at=now)
    attempt.env.crash.reach("artifact.before")
    journal.save_artifact(receipt)
    result = canonical({**receipt.to_json(), "saved_at": now})
    await journal.put(fact(attempt, position, OperationKind.STEP, "save_artifact", arguments=arguments, result=result))
    attempt.env.crash.reach("artifact.after")
    journal.consume(position)
    return receipt


def _receipt_from(run_id: RunId, facts: Json) -> ArtifactReceipt:
    row = facts if isinstance(facts, dict) else {}
    return ArtifactReceipt(
        run_id=run_id,
        name=str(row["name"]),
        path=str(row["path"]),
        digest=str(row["digest"]),
        bytes=int(str(row["bytes"])),
        saved_at=Instant(int(str(row["saved_at"]))),
    )
