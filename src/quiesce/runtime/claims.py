"""Claims: who may advance a run. Each function is one short transaction with nothing remote inside (RR-02).

Keeps: the fence grows with every claim (RR-04); a live holder is never disturbed (RR-03, typed `LeaseBusy`); a claim that
finds nothing to take ends there (C66). The rescue of dead holders is a claim like any other: a run under an expired
lease is claimable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from quiesce.domain.errors import LeaseBusy, NotFound, Refused
from quiesce.domain.ids import Fence, RunId, WorkerId
from quiesce.domain.instant import after_ms, elapsed_ms, to_iso
from quiesce.domain.interactions import InteractionId
from quiesce.domain.mailbox import EntryKind
from quiesce.domain.runs import Admission, Run, RunStatus, Wait, WaitKind
from quiesce.domain.workers import Attempt, AttemptEnd, Renewal, Worker
from quiesce.ports.notifier import WORK, run_topic
from quiesce.ports.store import Transaction


def register_tx(tx: Transaction, *, worker_id: WorkerId, name: str, lease_ms: int) -> Worker:
    """Store a worker that has just started, with a fresh lease."""
    worker = Worker(id=worker_id, name=name, started_at=tx.now, lease_expires_at=after_ms(tx.now, lease_ms))
    tx.workers.insert(worker)
    return worker


def renew_tx(tx: Transaction, *, worker_id: WorkerId, lease_ms: int) -> Renewal:
    """Move the worker's lease; `LOST` once others have removed it."""
    return tx.workers.renew(worker_id, expires_at=after_ms(tx.now, lease_ms))


def is_held(tx: Transaction, run: Run) -> bool:
    """Return whether the run's holder has a live lease."""
    if run.worker_id is None:
        return False
    worker = tx.workers.get(run.worker_id)
    return worker is not None and worker.is_live(tx.now)


def claim_tx(tx: Transaction, run_id: RunId, worker: Worker) -> Run:
    """Claim one run by id and return it as held.

    Raises `LeaseBusy` while another holder is live, `NotFound`, or `Refused` naming the status that cannot be claimed.
    """
    run = tx.runs.lock(run_id)
    if run is None:
        raise NotFound("run", run_id)
    held = is_held(tx, run)
    if run.status is RunStatus.RUNNING and held:
        holder = tx.workers.get(run.worker_id) if run.worker_id else None
        expires_at = holder.lease_expires_at if holder else tx.now
        raise LeaseBusy(
            f"run {run.id} is advanced by {holder.name if holder else 'another worker'} until {to_iso(expires_at)}; "
            "wait for that, or cancel the run",
            run_id=run.id,
            holder=holder.name if holder else None,
            expires_at=to_iso(expires_at),
        )
    if not run.is_claimable(tx.now, holder_is_live=held):
        waits = ", ".join(f"{w.kind} {w.subject}" for w in run.waits)
        raise Refused(
            f"run {run.id} is {run.status}" + (f" and waits for {waits}" if waits else "") + ": nothing to advance",
            run_id=run.id,
            status=str(run.status),
            waits=[w.to_json() for w in run.waits],
        )
    return _take(tx, run, worker)


def claim_due_tx(
    tx: Transaction, worker: Worker, *, agents: Collection[str], limit: int, accepts: Callable[[Run], bool]
) -> list[Run]:
    """Claim up to `limit` runs of these agents, oldest first: pending, due, or of dead holders.

    A run that the worker does not accept (bound to another model) is left as it is, for another worker. A worker whose own
    lease has run out (a machine that slept) takes nothing: what it took would be anybody's at once, its own again included.
    """
    found = [run for run in tx.runs.claimable(agents=agents, now=tx.now, limit=limit) if accepts(run)]
    if not found:
        return []
    claimant = tx.workers.get(worker.id)
    if claimant is None or not claimant.is_live(tx.now):
        return []
    return [_take(tx, run, worker) for run in found]


def _take(tx: Transaction, run: Run, worker: Worker) -> Run:
    if run.status is RunStatus.RUNNING:
        tx.runs.close_attempt(run.id, run.attempt, AttemptEnd.EXPIRED, tx.now)
    taken = run.claimed(worker.id)
    tx.runs.save(taken)
    tx.runs.open_attempt(
        Attempt(
            run_id=run.id,
            number=taken.attempt,
            fence=taken.fence,
            worker_id=worker.id,
            worker_name=worker.name,
            opened_at=tx.now,
        )
    )
    return taken


def release_tx(tx: Transaction, run_id: RunId, fence: Fence, *, end: AttemptEnd = AttemptEnd.RELEASED) -> bool:
    """Hand a run back, unfinished, for anybody to claim at once. False if this fence no longer holds it.

    `RELEASED` says that everything of the attempt is stored; whoever cannot say so ends it as `EXPIRED`.
    """
    run = tx.runs.lock(run_id)
    if run is None or run.admits(fence) is not Admission.HOLDER:
        return False
    tx.runs.save(run.released())
    tx.runs.close_attempt(run.id, run.attempt, end, tx.now)
    tx.ring(WORK)
    return True


def park_tx(tx: Transaction, run_id: RunId, fence: Fence, waits: tuple[Wait, ...]) -> bool:
    """Let a run wait without process and lease. False if this fence no longer holds it.

    What it waits for is looked at again under the run's lock: if it came about meanwhile the run is claimable at once, so
    no wake-up is lost between looking and waiting (C13).
    """
    run = tx.runs.lock(run_id)
    if run is None or run.admits(fence) is not Admission.HOLDER:
        return False
    parked = run.parked(waits)
    if any(is_over(tx, run_id, wait) for wait in waits):
        parked = parked.woken()
        tx.ring(WORK)
    tx.runs.save(parked)
    tx.runs.close_attempt(run.id, run.attempt, AttemptEnd.PARKED, tx.now)
    tx.ring(run_topic(run_id))
    return True


def is_over(tx: Transaction, run_id: RunId, wait: Wait) -> bool:
    """Return whether what is waited for has come about."""
    match wait.kind:
        case WaitKind.TIMER:
            return wait.due_at is not None and wait.due_at <= tx.now
        case WaitKind.CHILD:
            child = tx.runs.get(RunId(wait.subject))
            return child is None or child.is_terminal
        case WaitKind.WAKE:
            came = tx.mailbox.queued(run_id, EntryKind.WAKE, name=wait.subject, limit=1)
            return bool(came) or (wait.due_at is not None and wait.due_at <= tx.now)
        case WaitKind.ANSWER:
            question = tx.interactions.get(InteractionId(wait.subject))
            return question is None or not question.is_open(tx.now)
        case WaitKind.UNKNOWN:
            operation = tx.operations.get(run_id, wait.position)
            return operation is None or not operation.may_have_acted
        case WaitKind.TURN | WaitKind.CHOICE:
            return tx.continuations.of_run(run_id) is not None


def wake_tx(tx: Transaction, run: Run, is_awaited: Callable[[Wait], bool]) -> bool:
    """Make a waiting run, locked by the caller, claimable if it waits for this. False if it does not."""
    if run.status is not RunStatus.WAITING or not any(is_awaited(wait) for wait in run.waits):
        return False
    tx.runs.save(run.woken())
    tx.ring(WORK)
    tx.ring(run_topic(run.id))
    return True


def retire_tx(tx: Transaction, *, limit: int, spared: WorkerId | None) -> int:
    """Remove workers whose lease has run out and who hold nothing any more; return how many.

    Their runs are claimable before and after: removal only makes their `renew` fail, so that a frozen process that wakes
    learns that it is no longer counted on.
    """
    removed = 0
    for worker in tx.workers.expired(now=tx.now, limit=limit):
        if worker.id != spared and not tx.runs.held_by(worker.id):
            tx.workers.remove(worker.id)
            removed += 1
    return removed


def next_due_tx(tx: Transaction) -> float | None:
    """Return the milliseconds until something falls due, by the store's clock, for a worker that has nothing to do till then."""
    due = tx.runs.next_due(now=tx.now)
    return None if due is None else elapsed_ms(tx.now, due)
