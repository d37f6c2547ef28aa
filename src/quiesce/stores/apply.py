"""Applies a batch of write values inside one transaction: the one place where a holder's fence is judged.

The same function serves all three stores. It asks the ports for a handful of whole-batch operations, so its cost in round
trips does not depend on how many runs have gathered. A refused write (stale fence, no budget) takes nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quiesce.domain.budgets import Amounts, difference
from quiesce.domain.errors import invariant
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation
from quiesce.domain.runs import Admission, Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction


def apply_writes(tx: Transaction, writes: Sequence[RunWrite]) -> list[WriteOutcome]:
    """Apply each write or refuse it; return the outcomes in the same order.

    Locks the runs concerned (and ancestors whose budgets are drawn on) by ascending id.
    """
    runs = tx.runs.lock_many({run_id for w in writes for run_id in (w.run_id, *w.ancestors)})
    frozen = _frozen(tx, runs, writes)
    counted = _counted(runs, writes)
    before = _operations_before(tx, counted, writes)
    outcomes: list[WriteOutcome] = []
    applied: list[RunWrite] = []
    moved: dict[RunId, Run] = {}
    for write in writes:
        outcome = _judge(write, runs, frozen)
        if outcome.is_applied and write.run_id in counted and not _move_budgets(write, runs, moved, before):
            outcome = WriteOutcome.OVER_BUDGET
        outcomes.append(outcome)
        if outcome.is_applied:
            applied.append(write)
    _store(tx, applied, list(moved.values()))
    return outcomes


def _judge(write: RunWrite, runs: dict[RunId, Run], frozen: dict[RunId, int]) -> WriteOutcome:
    """Judge a write by its fence. A holder that a cancel has fenced out is told so also where its rows are taken."""
    run = runs.get(write.run_id)
    admission = run.admits(write.fence) if run is not None else Admission.STALE
    last_seq = max((e.seq for e in write.events), default=0)
    if not write.allowed_by(admission) or last_seq > frozen.get(write.run_id, last_seq):
        return WriteOutcome.STALE
    return WriteOutcome.APPLIED if admission is Admission.HOLDER else WriteOutcome.EVIDENCE


def _frozen(tx: Transaction, runs: dict[RunId, Run], writes: Sequence[RunWrite]) -> dict[RunId, int]:
    """Return the frozen frontier of runs that settle: events beyond it are refused (ST-13)."""
    settling = {
        w.run_id for w in writes if w.events and w.run_id in runs and runs[w.run_id].admits(w.fence) is Admission.EVIDENCE
    }
    if not settling:
        return {}
    return {run_id: s.frozen_seq for run_id, s in tx.streams.states(settling).items() if s.frozen_seq is not None}


def _counted(runs: dict[RunId, Run], writes: Sequence[RunWrite]) -> set[RunId]:
    """Return the runs whose budget a write may move: by its amounts, or by having none where a reservation was."""
    return {w.run_id for w in writes if w.moves_budget or (w.run_id in runs and runs[w.run_id].budget.allowances)}


def _operations_before(
    tx: Transaction, counted: set[RunId], writes: Sequence[RunWrite]
) -> dict[tuple[RunId, Position], Operation]:
    keys = [(o.run_id, o.position) for w in writes if w.run_id in counted for o in w.operations]
    return {(o.run_id, o.position): o for o in tx.operations.get_many(keys)} if keys else {}


def _move_budgets(
    write: RunWrite,
    runs: dict[RunId, Run],
    moved: dict[RunId, Run],
    before: dict[tuple[RunId, Position], Operation],
) -> bool:
    """Draw the write's reservations on the run and each ancestor, or on none of them. False if they do not fit.

    Amounts are absolute per operation, so only the difference to what is stored moves a budget: a write applied twice
    moves it once. A stored result is never replaced (RR-31), so a row offered in its place moves nothing.
    """
    used: Amounts = {}
    reserved: Amounts = {}
    asking: set[str] = set()
    rows: dict[tuple[RunId, Position], Operation] = {}
    for operation in write.operations:
        key = (operation.run_id, operation.position)
        old = rows.get(key) or before.get(key)
        if old is not None and old.has_result:
            continue
        rows[key] = operation
        used = _sum(used, difference(operation.used, old.used if old else {}))
        change = difference(operation.reserved, old.reserved if old else {})
        asking |= {unit for unit, amount in change.items() if amount > 0}
        reserved = _sum(reserved, change)
    # What one row gives back of its reservation another may not take if the first has used it.
    asked = {unit: used.get(unit, 0) + reserved.get(unit, 0) for unit in asking}
    chain = [write.run_id, *write.ancestors]
    for run_id in chain:
        invariant(run_id in runs, "a run's ancestors are never removed before it")
        if asked and runs[run_id].budget.shortfall(asked) is not None:
            return False
    before.update(rows)
    if not used and not reserved:
        return True
    for run_id in chain:
        run = replace(runs[run_id], budget=runs[run_id].budget.moved(used=used, reserved=reserved))
        runs[run_id] = moved[run_id] = run
    return True


def _sum(a: Amounts, b: Amounts) -> dict[str, int]:
    return {unit: a.get(unit, 0) + b.get(unit, 0) for unit in {*a, *b}}


def _store(tx: Transaction, writes: Sequence[RunWrite], moved: Sequence[Run]) -> None:
    if operations := [o for w in writes for o in w.operations]:
        tx.operations.put_many(operations)
    if consumed := [(w.run_id, p) for w in writes for p in w.consumed]:
        tx.operations.consume_many(consumed)
    if events := [e for w in writes for e in w.events]:
        tx.streams.append_many(events)
    if checkpoints := [c for w in writes for c in w.checkpoints]:
        tx.checkpoints.add_many(checkpoints)
    if artifacts := [a for w in writes for a in w.artifacts]:
        tx.evidence.add_artifacts(artifacts)
    for write in writes:
        if write.reserve_seq is not None:
            tx.streams.reserve(write.run_id, write.reserve_seq)
    if moved:
        tx.runs.save_many(moved)
    for run_id in dict.fromkeys(w.run_id for w in writes if w.events):
        tx.ring(run_topic(run_id))
