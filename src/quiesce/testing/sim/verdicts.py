"""What must hold when a world has come to rest: judged from everything stored, outside and seen, at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from quiesce.domain.canonical import parse
from quiesce.domain.ids import RunId
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus, ResultKind
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.workers import AttemptEnd
from quiesce.runtime.bundle import gather_tx
from quiesce.runtime.verification import verify
from quiesce.testing.sim.clients import Scene, View
from quiesce.testing.sim.outside import answer_of
from quiesce.testing.sim.workload import LONG_S, Act, words_of


def is_at_rest(scene: Scene, run: Run) -> bool:
    """Return whether nothing is left to do for a run: it has ended, sleeps by its own wish, or waits for a decision.

    With decisions all made, waiting for one is no rest.
    """
    if run.is_terminal:
        return True
    if run.status is RunStatus.RUNNING and not scene.config.resolves_all:
        # An operation inside a step waits in place: the step is under way, and so the run does not park.
        return any(o.status is OperationStatus.UNKNOWN and "." in o.position for o in scene.store.state.operations.of(run.id))
    if run.status is not RunStatus.WAITING:
        return False
    return all(_is_endless(scene, wait) for wait in run.waits)


def _is_endless(scene: Scene, wait: Wait) -> bool:
    match wait.kind:
        case WaitKind.UNKNOWN:
            return not scene.config.resolves_all
        case WaitKind.CHILD:
            child = scene.store.state.runs.get(RunId(wait.subject))
            return child is not None and not child.is_terminal and is_at_rest(scene, child)
        case WaitKind.WAKE | WaitKind.ANSWER:
            return wait.due_at is None
        case WaitKind.CHOICE:
            return True
        case WaitKind.TURN:
            return False
        case WaitKind.TIMER:
            left_us = (wait.due_at or 0) - scene.store.now()
            return left_us > LONG_S * 500_000


async def judge(scene: Scene, views: Collection[View]) -> None:
    """Check everything."""
    for run in scene.runs():
        _judge_effects(scene, run)
        _judge_checkpoints(scene, run)
        if run.status is RunStatus.COMPLETED:
            _judge_words(scene, run)
        if run.is_terminal:
            bundle = await scene.store.read(lambda tx, run_id=run.id: gather_tx(tx, run_id))  # type: ignore[misc]
            failed = [f"{c.name}: expected {c.expected}, found {c.found}" for c in verify(bundle) if not c.ok]
            scene.require(not failed, f"run {run.id}: its receipt does not hold: {failed}")
        _mark_run(scene, run)
    for view in views:
        _judge_view(scene, view)


def _judge_effects(scene: Scene, run: Run) -> None:
    """Hold the journal against what really happened."""
    for operation in scene.store.state.operations.of(run.id):
        if operation.kind is not OperationKind.CALL:
            continue
        record = scene.outside.records.get(operation.key)
        effects = record.effects if record else 0
        if operation.policy is not EffectPolicy.PURE:
            scene.require(effects <= 1, f"{operation.key} ({operation.policy}) happened {effects} times")
        if operation.result_kind is ResultKind.OK:
            scene.require(effects > 0, f"{operation.key} is committed and never happened")
            is_true = parse(operation.result or b"null") == answer_of(operation.key)
            scene.require(is_true, f"{operation.key}: a result that nobody gave")
        elif effects and operation.policy is not EffectPolicy.PURE:
            is_kept = operation.status in (OperationStatus.DISPATCHED, OperationStatus.UNKNOWN)
            is_known = is_kept or operation.result_kind is ResultKind.GIVEN_UP
            scene.require(is_known, f"{operation.key} ({operation.policy}) happened; it is {_state_of(operation)} on record")


def _state_of(operation: Operation) -> str:
    return f"{operation.status}, {operation.result_kind}, tries {[t.error for t in operation.tries]}"


def _judge_checkpoints(scene: Scene, run: Run) -> None:
    rows = sorted(scene.store.state.checkpoints_of.of(run.id), key=lambda c: c.number)
    covered, parent = 0, None
    for number, row in enumerate(rows, start=1):
        scene.require((row.number, row.parent_id) == (number, parent), f"run {run.id}: checkpoint {row.number} is out of line")
        scene.require(row.covered_seq >= covered, f"run {run.id}: checkpoint {number} covers less than the one before")
        covered, parent = row.covered_seq, row.id
    state = scene.store.state.streams.get(run.id)
    scene.require(state is not None and covered <= state.stored_seq, f"run {run.id}: a checkpoint covers unstored events")


def _judge_words(scene: Scene, run: Run) -> None:
    """What a reader is left with of a completed run is what its code emits, once and in order, however often it ran."""
    row = parse(run.input)
    args = row.get("args") if isinstance(row, dict) else None
    plan = msgspec.convert(args[0] if isinstance(args, list) else [], list[Act])
    spoken: dict[str, list[object]] = {}
    for event in _lasting(list(scene.store.state.events.of(run.id))):
        facts = parse(event.payload)
        if isinstance(facts, dict):
            spoken.setdefault(str(facts["act"]), []).append(facts["word"])
    for label, words in words_of(plan):
        found = spoken.get(label, [])
        scene.require(found == list(range(words)), f"run {run.id}: act {label} says {words} words; its stream keeps {found}")


def _lasting(events: list[StreamEvent]) -> Iterator[StreamEvent]:
    replaced: set[int] = set()
    for event in events:
        if event.kind is EventKind.SUPERSEDED:
            facts = parse(event.payload)
            scope = facts.get("operation") if isinstance(facts, dict) else None
            first, last = gap_range(event)
            replaced |= {e.seq for e in events if first <= e.seq <= last and e.operation == scope}
    return (e for e in events if e.kind is EventKind.DATA and e.seq not in replaced)


def _judge_view(scene: Scene, view: View) -> None:
    """A reader saw what is stored, once and in order; what it saw beyond was accounted for; nothing beyond F (ST-13)."""
    run = scene.store.state.runs.get(view.run_id)
    receipt = scene.store.state.receipts.get(view.run_id)
    events = scene.store.state.events.of(view.run_id)
    gaps = [gap_range(e) for e in events if e.kind is EventKind.GAP]
    what = f"reader of {view.run_id}"
    for seq, event in view.seen.items():
        stored = events.get(seq)
        if stored is not None:
            scene.require(stored.chain == event.chain, f"{what}: was given another event {seq} than is stored")
        elif receipt is not None:
            is_explained = any(first <= seq <= last for first, last in gaps) or seq > receipt.frontier.stored_seq
            scene.require(is_explained, f"{what}: was given {seq}, which nothing accounts for")
        if receipt is not None:
            emitted = receipt.frontier.emitted_seq
            scene.require(seq <= emitted, f"{what}: was given {seq}, beyond the frontier {emitted}")
    if run is None or not run.is_terminal:
        return
    if view.end is None:
        scene.fail(f"{what}: got no end")
        return
    missed = [e.seq for e in events if e.seq > view.start and e.seq not in view.seen]
    scene.require(not missed, f"{what}: was never given {missed}")
    is_true = receipt is not None and (view.end.status, view.end.receipt_id) == (run.status, receipt.id)
    scene.require(is_true, f"{what}: its end is not the run's")


def _mark_run(scene: Scene, run: Run) -> None:
    """Note what was seen to happen, for the coverage gate."""
    state, mark = scene.store.state, scene.mark
    mark(f"run {run.status}")
    for attempt in state.attempts.of(run.id):
        mark(f"attempt {attempt.end or 'open'}")
        if attempt.end is AttemptEnd.RELEASED:
            mark("released")
    for operation in state.operations.of(run.id):
        mark(f"{operation.kind}{f' {operation.policy}' if operation.kind is OperationKind.CALL else ''} {operation.status}")
        if b"BudgetExceeded" in (operation.result or b""):
            mark("over budget")
        if len(operation.tries) > 1:
            mark(f"{operation.kind} tried again")
    for evidence in state.evidence.of(run.id):
        mark(f"evidence {evidence.kind} {evidence.verdict}")
    receipt, outcome = state.receipts.get(run.id), state.outcomes.get(run.id)
    if receipt is None or outcome is None:
        return
    mark(f"reason {receipt.reason}")
    mark(f"gap {receipt.gap.kind}")
    mark(f"settled by {outcome.established_by}")
    mark(f"policy {receipt.policy.rule}")
    mark(f"{run.visibility} {run.durability} {run.status}")
    flags = {
        "never started": receipt.never_started,
        "escalated": receipt.escalated,
        "clean-up not completed": not receipt.cleanup_completed,
        "frontier bounded": not receipt.frontier.emitted_exact,
        "unresolved at T": bool(receipt.unresolved),
        "unconsumed at T": bool(receipt.unconsumed),
        "chained receipt": receipt.previous_digest is not None,
    }
    for name, holds in flags.items():
        if holds:
            mark(name)
