"""Reconciliation: the only ways by which an unknown effect ends (TR-45, CC-54).

A person's decision (it happened, with this result; it did not happen; give up), the destination's own answer to the tool's
probe, or the call's own answer, come late. Each leaves a record with actor and grounds. Time and wishes end nothing. What is
known now may be all that a queued run of the thread waited for: it takes its turn in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from quiesce.domain.boundary import Actor
from quiesce.domain.budgets import difference
from quiesce.domain.canonical import Json, canonical, digest
from quiesce.domain.errors import NotFound, Refused, required
from quiesce.domain.evidence import Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.operations import EffectPolicy, Operation, OperationStatus, ResultKind
from quiesce.domain.runs import Run, WaitKind
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import wake_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.trees import lineage_of
from quiesce.runtime.turns import first_in_line, lock_threads_tx, next_turns_tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody has found out, or decided, about one unknown operation."""

    run_id: RunId
    position: Position
    verdict: Verdict
    actor: Actor
    grounds: str
    result: Json = None
    kind: EvidenceKind = EvidenceKind.DECISION
    tenant: str = "local"
    is_checked: bool = False
    """Whether the result was held against what the tool is declared to return."""


def decide_tx(tx: Transaction, decision: Decision) -> Evidence:
    """Record a decision and, if the run still waits for it, let it go on from there.

    On a run that has ended or settles, only the record is made: journal and receipt stay as they were, the policy at use takes
    the record into account (G-35). Raises `NotFound`, or `Refused` for an operation whose outcome is known.
    """
    threads, lineage = _lock_lineage(tx, decision.run_id)
    run = lineage.get(decision.run_id)
    if run is None or run.tenant != decision.tenant:
        raise NotFound("run", decision.run_id)
    operation = tx.operations.get(run.id, decision.position)
    if operation is None:
        raise NotFound("operation", decision.position, f"run {run.id} has no such position; see `quiesce inspect`")
    if not operation.may_have_acted:
        raise Refused(
            f"operation {decision.position} ({operation.name}) of run {run.id} is {operation.status}: its outcome is known",
            run_id=run.id,
            operation=decision.position,
            status=str(operation.status),
        )
    if operation.status is not OperationStatus.UNKNOWN:
        raise Refused(
            f"operation {decision.position} ({operation.name}) of run {run.id} is under way; nothing is unknown yet",
            run_id=run.id,
            operation=decision.position,
            status=str(operation.status),
        )
    evidence = tx.evidence.add(_evidence(tx, decision))
    if decision.verdict is not Verdict.CANNOT_TELL and run.is_active:
        _settle(tx, lineage, operation, _decided(tx, operation, decision))
    next_turns_tx(tx, threads)
    return evidence


def answer_tx(tx: Transaction, late: Operation, evidence: Evidence) -> None:
    """Record the answer of a call that came when its holder could no longer store it, once (G-34).

    `late` is the operation as that holder would have stored it. If the run goes on and nobody has carried the operation any
    further than that holder did, this is what it waits for, or will: it takes the result. A run that has ended or settles,
    and an operation decided or tried anew since, stay as they are; the record stands beside them.
    """
    threads, lineage = _lock_lineage(tx, late.run_id)
    stored = tx.operations.get(late.run_id, late.position)
    if stored is None or (stored.has_result and stored.tries == late.tries):
        return  # its own write had reached the store after all: nothing is late
    if any(_is_same(record, evidence) for record in tx.evidence.of_run(late.run_id)):
        return
    tx.evidence.add(evidence)
    if lineage[late.run_id].is_active and _is_answered_by(stored, late):
        _settle(tx, lineage, stored, late)
    next_turns_tx(tx, threads)


def _is_same(record: Evidence, other: Evidence) -> bool:
    return (record.position, record.kind, record.body, record.at) == (other.position, other.kind, other.body, other.at)


def _is_answered_by(stored: Operation, late: Operation) -> bool:
    """Whether this answer ends the operation: it is of its last try, and nobody is about to make another."""
    is_left = stored.status is OperationStatus.UNKNOWN or (
        stored.status is OperationStatus.DISPATCHED and stored.policy is EffectPolicy.ONCE
    )
    return is_left and (stored.fence, len(stored.tries)) == (late.fence, len(late.tries))


def _settle(tx: Transaction, lineage: Mapping[RunId, Run], old: Operation, new: Operation) -> None:
    """Store what has become of an operation, move the budgets of these locked runs by it, and let the run go on."""
    tx.operations.put_many([new])
    used, reserved = difference(new.used, old.used), difference(new.reserved, old.reserved)
    if used or reserved:
        tx.runs.save_many([replace(run, budget=run.budget.moved(used=used, reserved=reserved)) for run in lineage.values()])
    freed = required(tx.runs.lock(new.run_id), "a locked run exists")  # its budget may have moved
    wake_tx(tx, freed, lambda w: w.kind is WaitKind.UNKNOWN and w.position == new.position)


def _lock_lineage(tx: Transaction, run_id: RunId) -> tuple[dict[ThreadId, Thread], dict[RunId, Run]]:
    """Lock a run and the runs above it, whose budgets its operations draw on and whose threads may wait for what is known.

    Threads first, then the runs with the first of these threads' queues, the lowest id first, as everywhere.
    """
    above = lineage_of(tx, run_id)
    threads = lock_threads_tx(tx, above)
    ids = {run.id for run in above}
    locked = tx.runs.lock_many(ids.union(*(first_in_line(tx, thread) for thread in threads.values())))
    return threads, {run.id: locked[run.id] for run in above if run.id in locked}


def _evidence(tx: Transaction, decision: Decision) -> Evidence:
    return Evidence(
        run_id=decision.run_id,
        position=decision.position,
        number=0,
        kind=decision.kind,
        verdict=decision.verdict,
        actor=decision.actor,
        body=canonical(
            {
                "grounds": decision.grounds,
                "result": digest(canonical(decision.result)),
                "result_checked": decision.is_checked,
            }
        ),
        at=tx.now,
    )


def _decided(tx: Transaction, operation: Operation, decision: Decision) -> Operation:
    """Return the operation as the verdict leaves it: what was reserved is freed, used if it happened, or stays."""
    match decision.verdict:
        case Verdict.DID_NOT_HAPPEN:
            return replace(operation, status=OperationStatus.SEALED, due_at=None, reserved={})
        case Verdict.HAPPENED:
            kind, result, reserved = ResultKind.OK, canonical(decision.result), {}
            used = {u: operation.used.get(u, 0) + n for u, n in operation.reserved.items()}
        case _:
            kind, result, reserved = ResultKind.GIVEN_UP, b"null", dict(operation.reserved)
            used = dict(operation.used)
    return replace(
        operation,
        status=OperationStatus.COMMITTED,
        result_kind=kind,
        result=result,
        settled_at=tx.now,
        reserved=reserved,
        used=used,
    )


async def decide(env: Environment, decision: Decision) -> Evidence:
    """Record a decision about an unknown effect; see `decide_tx`."""
    evidence = await env.store.transact(lambda tx: decide_tx(tx, decision))
    env.crash.reach("reconcile.after")
    return evidence
