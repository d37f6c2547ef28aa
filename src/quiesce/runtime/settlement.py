"""The terminal boundary, transaction by transaction: C·X → F → P → T.

Each function is one step, idempotent, with the ids of the first record winning; `settle` walks the steps that are still
missing, so a death anywhere leaves exactly one right continuation (TR-59). The holder of a run walks them with what it
knows (what it really showed, whether clean-up was done); anybody else walks them with what the store can prove.

This module is the only writer of occurrences, outcomes, receipts and terminal statuses (NO-08); a test looks for others.
The boundary of a thread's head gives the next queued run its turn in the same transaction (`turns.py`).
Lock order: thread, then runs by ascending id (a parent before its child).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quiesce.domain.boundary import STATUS_OF, Frontier, Occurrence, PersistenceOutcome, measure
from quiesce.domain.canonical import canonical
from quiesce.domain.checkpoints import h1_of_nothing
from quiesce.domain.errors import invariant, required
from quiesce.domain.ids import Fence, OutcomeId, ReceiptId, RunId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.resume import resume_policy, tool_state
from quiesce.domain.runs import Admission, Run, RunStatus, WaitKind
from quiesce.domain.streams import StreamState, Visibility
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import Thread
from quiesce.domain.workers import AttemptEnd
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.notifier import run_topic, worker_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import is_held, wake_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.interactions import revoke_tx
from quiesce.runtime.past import left_in_order
from quiesce.runtime.trees import descendants
from quiesce.runtime.turns import first_in_line, leave_tx, next_turn_tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What is known about clean-up and frontier when a boundary is established."""

    attempted: bool
    completed: bool
    escalated: bool = False
    by: str = "recovery"
    emitted_seq: int | None = None
    """What really left, if somebody knows; else the store's bound is taken."""


def accept_end_tx(tx: Transaction, run: Run, occurrence: Occurrence, *, settle_at: Instant) -> Run:
    """C·X: record the end's occurrence and fence the run, locked by the caller. Returns the run, settling.

    From here on nothing of the run begins: no claim, no seal, no dispatch. A live holder may still deliver evidence.
    """
    invariant(run.is_active, "an end is accepted once, on an active run")
    tx.terminal.add_occurrence(occurrence)
    revoke_tx(tx, run.id, occurrence.actor)
    held = is_held(tx, run)
    fenced = run.fenced_for_settlement(settle_at=settle_at if held else tx.now)
    if not held:
        fenced = replace(fenced, drain_fence=None)  # a dead holder drains nothing; that there was one stays on the row
    tx.runs.save(fenced)
    tx.ring(run_topic(run.id))
    if fenced.worker_id is not None:
        tx.ring(worker_topic(fenced.worker_id))
    return fenced


def freeze_tx(tx: Transaction, run_id: RunId, *, emitted_seq: int | None = None, fence: Fence | None = None) -> bool:
    """F: freeze the visible frontier, once. With `fence`, only if that holder still drains; returns whether F stands.

    Without `emitted_seq` the store's own bound is recorded: exact for store-first streams, for others the reserved block.
    """
    run = tx.runs.lock(run_id)
    if run is None or run.status is not RunStatus.SETTLING or (fence is not None and run.drain_fence != fence):
        return False
    state = required(tx.streams.state(run_id), "a run's ledger is opened with it")
    if state.frozen_seq is None:
        seq, exact = (emitted_seq, True) if emitted_seq is not None else _bound(tx, run, state)
        tx.streams.freeze(run_id, seq, exact=exact)
    return True


def _bound(tx: Transaction, run: Run, state: StreamState) -> tuple[int, bool]:
    if run.visibility is Visibility.STORE_FIRST:
        return state.stored_seq, True
    if state.reserved_seq <= state.stored_seq or (run.worker_id is None and left_in_order(tx, run.id, before=run.attempt + 1)):
        return state.stored_seq, True
    return state.reserved_seq, False


def establish_tx(tx: Transaction, run_id: RunId, outcome_id: OutcomeId, cleanup: Cleanup, *, fence: Fence | None = None) -> bool:
    """P: read back what is durable and record it, once; close the drain. Returns whether P stands.

    A call that was dispatched and has no stored result becomes `unknown` here: whoever knew more had its time.
    """
    run = tx.runs.lock(run_id)
    if run is None or run.status is not RunStatus.SETTLING or (fence is not None and run.drain_fence != fence):
        return False
    occurrence = required(tx.terminal.occurrence(run_id), "a settling run has its occurrence")
    if tx.terminal.outcome(occurrence.id) is not None:
        return True
    _give_up_on_answers(tx, run)
    frontier = _frontier(tx, run_id)
    durability, gap = measure(frontier)
    tx.terminal.add_outcome(
        PersistenceOutcome(
            id=outcome_id,
            run_id=run_id,
            occurrence_id=occurrence.id,
            frontier=frontier,
            durability=durability,
            gap=gap,
            cleanup_attempted=cleanup.attempted,
            cleanup_completed=cleanup.completed,
            escalated=cleanup.escalated,
            established_by=cleanup.by,
            at=tx.now,
        )
    )
    tx.runs.save(replace(run, drain_fence=None))
    return True


def _give_up_on_answers(tx: Transaction, run: Run) -> None:
    open_calls = [o for o in tx.operations.unresolved([run.id]) if o.status is OperationStatus.DISPATCHED]
    if open_calls:
        tx.operations.put_many([replace(o, status=OperationStatus.UNKNOWN) for o in open_calls])


def _frontier(tx: Transaction, run_id: RunId) -> Frontier:
    """Read the numbers back from the store: what P is established from (TR-09)."""
    state = required(tx.streams.state(run_id), "a run's ledger is opened with it")
    emitted = required(state.frozen_seq, "the frontier is frozen before it is measured")
    last = tx.checkpoints.last(run_id)
    covered = last.covered_seq if last is not None else 0
    return Frontier(
        covered_seq=covered,
        stored_seq=state.stored_seq,
        emitted_seq=max(emitted, covered),
        emitted_exact=bool(state.frozen_exact),
        state_bearing_stored=tx.streams.count_state_bearing(run_id, after=covered),
        pending_writes=0 if last is not None and last.is_final else _pending_writes(tx.operations.of_run(run_id)),
    )


def _pending_writes(journal: Sequence[Operation]) -> int:
    """Count the stored results of finished operations that no checkpoint contains (ST-04)."""
    marks = [i for i, o in enumerate(journal) if o.kind is OperationKind.CHECKPOINT]
    return sum(1 for o in journal[marks[-1] + 1 if marks else 0 :] if o.has_result)


def publish_tx(tx: Transaction, run_id: RunId, receipt_id: ReceiptId, *, store_durability: str) -> TerminalReceipt | None:
    """T: publish receipt, terminal status, outbox entry and the parent's wake-up together, once.

    Returns the receipt, or None if there is nothing to publish from yet. T is made from exactly the run's own C and the P
    that names it (TR-58).
    """
    seen = tx.runs.get(run_id)
    if seen is None:
        return None
    thread, runs = _lock_for_end(tx, seen, [])
    run = runs[run_id]
    if (known := tx.terminal.receipt(run_id)) is not None:
        return known
    occurrence = tx.terminal.occurrence(run_id)
    outcome = tx.terminal.outcome(occurrence.id) if occurrence is not None else None
    if run.status is not RunStatus.SETTLING or occurrence is None or outcome is None:
        return None
    invariant(outcome.run_id == run_id and outcome.occurrence_id == occurrence.id, "T cites its own run's C and P")
    receipt = _receipt(tx, run, occurrence, outcome, receipt_id, store_durability)
    tx.terminal.add_receipt(receipt)
    tx.mailbox.return_all(run_id, receipt.id, tx.now)
    tx.runs.save(run.ended(receipt.status, tx.now))
    tx.runs.close_attempt(run_id, run.attempt, AttemptEnd.ENDED, tx.now)
    tx.outbox.append(
        OutboxMessage.new(
            id=f"terminal:{run_id}",
            topic="terminal",
            run_id=run_id,
            body=canonical({"run_id": run_id, "receipt_id": receipt.id, "status": str(receipt.status)}),
            created_at=tx.now,
        )
    )
    if run.parent_id is not None and (parent := runs.get(run.parent_id)) is not None:
        wake_tx(tx, parent, lambda w: w.kind is WaitKind.CHILD and w.subject == run_id)
    if thread.queued:
        next_turn_tx(tx, leave_tx(tx, thread, run_id))
    tx.ring(run_topic(run_id))
    return receipt


def _lock_for_end(tx: Transaction, run: Run, above: Sequence[RunId]) -> tuple[Thread, dict[RunId, Run]]:
    """Lock the thread, then the run, whom its end concerns above it, and whose turn it may be next."""
    thread = required(tx.threads.lock(run.thread_id), "a run's thread exists")
    ids = {run.id, *above, *first_in_line(tx, thread)}
    return thread, tx.runs.lock_many(ids if run.parent_id is None else {*ids, run.parent_id})


def _receipt(
    tx: Transaction,
    run: Run,
    occurrence: Occurrence,
    outcome: PersistenceOutcome,
    receipt_id: ReceiptId,
    store_durability: str,
) -> TerminalReceipt:
    tree = [run, *descendants(tx, run.id)]
    ids = [r.id for r in tree]
    unresolved = tx.operations.unresolved(ids)
    journal = tx.operations.of_run(run.id)
    stream = tx.streams.state(run.id)
    checkpoint = tx.checkpoints.last(run.id)
    previous = tx.terminal.last_of_thread(run.thread_id)
    tools = tool_state([*((o.may_have_acted, str(o.status)) for o in journal), *((True, "unknown") for _ in unresolved)])
    receipt = TerminalReceipt(
        id=receipt_id,
        run_id=run.id,
        thread_id=run.thread_id,
        attempt=run.attempt,
        occurrence_id=occurrence.id,
        outcome_id=outcome.id,
        cause=occurrence.cause,
        reason=occurrence.reason,
        reason_text=occurrence.text,
        actor=occurrence.actor,
        status=STATUS_OF[occurrence.cause],
        checkpoint_id=checkpoint.id if checkpoint else None,
        frontier=outcome.frontier,
        durability=outcome.durability,
        gap=outcome.gap,
        cleanup_attempted=outcome.cleanup_attempted,
        cleanup_completed=outcome.cleanup_completed,
        escalated=outcome.escalated,
        scope=occurrence.scope,
        never_started=occurrence.never_started,
        unresolved=tuple(o.to_json() for o in unresolved),
        unconsumed=tuple(o.to_json() for o in journal if _is_unconsumed_call(o)),
        artifacts=tuple(a.to_json() for a in tx.evidence.artifacts(ids)),
        usage=run.budget.to_json(),
        policy=resume_policy(occurrence.cause, outcome.durability, outcome.gap.kind, tools),
        h1=checkpoint.h1() if checkpoint else h1_of_nothing(run.id),
        h2=stream.chain if stream else "",
        h2_exact=outcome.frontier.emitted_seq <= outcome.frontier.stored_seq,
        store_durability=store_durability,
        previous_digest=previous.digest if previous else None,
        published_at=tx.now,
    )
    return replace(receipt, digest=receipt.h3())


def _is_unconsumed_call(operation: Operation) -> bool:
    return operation.status is OperationStatus.COMMITTED and operation.result is not None and operation.kind is OperationKind.CALL


def end_now_tx(
    tx: Transaction, env: Environment, write: RunWrite, occurrence: Occurrence, cleanup: Cleanup
) -> TerminalReceipt | None:
    """C·X, F, P and T of a holder that has nothing under way, in one transaction with its last rows.

    The order is kept and nobody can observe a part of it; the boundary is still measured by reading the store back.
    Returns None, and stores nothing, if the holder's fence no longer holds: somebody else has decided.
    """
    seen = tx.runs.get(write.run_id)
    if seen is None:
        return None
    _, runs = _lock_for_end(tx, seen, write.ancestors)
    if runs[seen.id].admits(write.fence) is not Admission.HOLDER or tx.apply(write) is not WriteOutcome.APPLIED:
        return None
    run = required(tx.runs.get(seen.id), "a locked run exists")
    accept_end_tx(tx, run, occurrence, settle_at=tx.now)
    freeze_tx(tx, run.id, emitted_seq=cleanup.emitted_seq)
    establish_tx(tx, run.id, OutcomeId(env.new_id(tx.now)), cleanup)
    durability = env.store.capabilities.durability
    receipt = publish_tx(tx, run.id, ReceiptId(env.new_id(tx.now)), store_durability=durability)
    return required(receipt, "a run that was ended has its receipt")


async def settle(env: Environment, run_id: RunId, cleanup: Cleanup, *, fence: Fence | None = None) -> TerminalReceipt | None:
    """Walk F → P → T, each durable before the next; return the receipt.

    With `fence`, as the holder that drains: None if somebody else has taken the settlement over. Without, as recovery.
    """
    if not await env.store.transact(lambda tx: freeze_tx(tx, run_id, emitted_seq=cleanup.emitted_seq, fence=fence)):
        return await env.store.read(lambda tx: tx.terminal.receipt(run_id))
    env.crash.reach("freeze.after")
    return await conclude(env, run_id, cleanup, fence=fence)


async def conclude(env: Environment, run_id: RunId, cleanup: Cleanup, *, fence: Fence | None = None) -> TerminalReceipt | None:
    """Walk P → T of a run whose frontier is frozen."""
    outcome_id = OutcomeId(env.new_id())
    if not await env.store.transact(lambda tx: establish_tx(tx, run_id, outcome_id, cleanup, fence=fence)):
        return await env.store.read(lambda tx: tx.terminal.receipt(run_id))
    env.crash.reach("outcome.after")
    receipt_id = ReceiptId(env.new_id())

    def publish(tx: Transaction) -> TerminalReceipt | None:
        receipt = publish_tx(tx, run_id, receipt_id, store_durability=env.store.capabilities.durability)
        env.crash.reach("publish.inside")
        return receipt

    receipt = await env.store.transact(publish)
    env.crash.reach("publish.after")
    return receipt


async def settle_abandoned(env: Environment, *, limit: int) -> list[RunId]:
    """Finish settlements that nobody finishes: of runs that nobody holds, and of holders that died or took too long."""

    def due(tx: Transaction) -> list[tuple[RunId, bool]]:
        return [(run.id, run.worker_id is not None) for run in tx.runs.unsettled(now=tx.now, limit=limit)]

    settled = await env.store.transact(due)
    for run_id, had_holder in settled:
        await settle(env, run_id, Cleanup(attempted=not had_holder, completed=not had_holder))
    return [run_id for run_id, _ in settled]


def settle_deadline(now: Instant, grace_ms: int, drain_ms: int) -> Instant:
    """Return the instant from which anybody may finish a settlement."""
    return after_ms(now, grace_ms + drain_ms)
