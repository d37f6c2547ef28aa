"""History: what a thread's runs left, read back with numbers, and what a new run may build on.

Keeps: a state is never shown without the number of the stream that it contains, nor an older state without saying that more
was seen (TR-28, ST-12); what was seen beyond a checkpoint is shown as partial, never as state (TR-31). What a run may build
on follows its own continuation record and nothing newer, so a run that is replayed reads the same again. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quiesce.domain.boundary import GapKind
from quiesce.domain.canonical import Json, digest_of, parse
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.continuations import Carry, OnGap, Withheld, permit
from quiesce.domain.errors import NotFound
from quiesce.domain.history import Partial, ThreadView, Turn
from quiesce.domain.ids import CheckpointId, RunId, ThreadId
from quiesce.domain.runs import Run
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.turns import policy_now, standing_for

PAGE: Final = 500


def thread_tx(tx: Transaction, thread_id: ThreadId, *, tenant: str) -> ThreadView:
    """Read a thread. Raises `NotFound`."""
    thread = _thread(tx, thread_id, tenant)
    run = tx.runs.get(thread.head_run_id) if thread.head_run_id else None
    head = None if run is None else turn_of(tx, run)
    receipt = None if run is None else tx.terminal.receipt(run.id)
    now = None if receipt is None else policy_now(tx, receipt)
    choices: tuple[OnGap, ...] = ()
    status = "idle"
    if run is not None and not run.is_terminal:
        status = "busy"
    elif run is not None and now is not None:
        answer = permit(now.policy, None, [policy for policy in standing_for(tx, run) if policy.name != run.id])
        if isinstance(answer, Withheld):
            status, choices = "choice", answer.needs
    queued = tuple(tx.threads.queue(thread.id, limit=thread.queued)) if thread.queued else ()
    basis = None if now is None else now.basis
    at = None if head is None else [head.run_id, head.checkpoint_id, head.emitted_seq]
    facts = [thread.runs, status, list(queued), basis, at]
    return ThreadView(
        thread_id=thread.id,
        version=digest_of(facts).rpartition(":")[2][:16],
        status=status,
        head=head,
        queued=queued,
        policy=None if now is None else now.policy,
        basis=basis,
        choices=choices,
        unresolved=() if now is None else now.unresolved,
    )


def history_tx(tx: Transaction, thread_id: ThreadId, *, tenant: str, limit: int) -> list[Turn]:
    """Read the newest turns of a thread, oldest first: all of them, whatever was built on. Raises `NotFound`."""
    thread = _thread(tx, thread_id, tenant)
    head_id = thread.head_run_id
    built_on = set() if head_id is None else {head_id, *(base_id for base_id, _ in _bases(tx, head_id))}
    runs = tx.runs.of_thread(thread_id, limit=limit)
    return [turn_of(tx, run, is_built_on=run.id in built_on) for run in reversed(runs)]


def past_of(tx: Transaction, run_id: RunId, *, limit: int) -> list[Turn]:
    """Return what a run builds on, oldest first: per its own record, so the same whenever it is asked.

    A turn comes with its partial output only if the run behind it was to keep that.
    """
    turns: list[Turn] = []
    for base_id, carry in _bases(tx, run_id):
        if len(turns) == limit:
            break
        run = tx.runs.get(base_id)
        if run is not None:
            turns.append(turn_of(tx, run, keeps_partial=carry is Carry.KEEP_PARTIAL))
    return turns[::-1]


def _bases(tx: Transaction, run_id: RunId) -> Iterator[tuple[RunId, Carry]]:
    """Walk back over what each run builds on, and what of it."""
    record = tx.continuations.of_run(run_id)
    while record is not None and record.base_run_id is not None:
        base_id, kept = record.base_run_id, record
        while kept.carry is Carry.ROLLBACK and (before := tx.continuations.of_run(kept.head_run_id)) is not None:
            kept = before  # a run that was rolled back had taken over this much of what stands before it
        yield base_id, kept.carry
        record = tx.continuations.of_run(base_id)


def turn_of(tx: Transaction, run: Run, *, is_built_on: bool = True, keeps_partial: bool = True) -> Turn:
    """Return one run as history shows it."""
    receipt = tx.terminal.receipt(run.id)
    last, durable = _durable(tx, run.id)
    covered = 0 if last is None else last.covered_seq
    emitted = _emitted(tx, run.id, receipt)
    return Turn(
        run_id=run.id,
        number=run.number,
        agent=run.agent,
        input=parse(run.input),
        status=run.status,
        cause=None if receipt is None else receipt.cause,
        receipt_id=None if receipt is None else receipt.id,
        result=_result(last),
        state=None if durable is None else parse(durable.state),
        checkpoint_id=None if last is None else last.id,
        cursor=covered,
        emitted_seq=emitted,
        is_behind=_is_behind(tx, run.id, covered, receipt),
        partial=_partial(tx, run.id, covered, emitted) if keeps_partial else None,
        continuation=tx.continuations.of_run(run.id),
        is_built_on=is_built_on,
    )


def _thread(tx: Transaction, thread_id: ThreadId, tenant: str) -> Thread:
    thread = tx.threads.get(thread_id)
    if thread is None or thread.tenant != tenant:
        raise NotFound("thread", thread_id)
    return thread


def _durable(tx: Transaction, run_id: RunId) -> tuple[Checkpoint | None, Checkpoint | None]:
    """Return a run's last checkpoint, and the one that holds the state its agent kept last."""
    last = tx.checkpoints.last(run_id)
    if last is None or not last.is_final:
        return last, last
    facts = parse(last.state)
    kept = facts.get("state_of") if isinstance(facts, dict) else None
    return last, tx.checkpoints.get(CheckpointId(kept)) if isinstance(kept, str) else None


def _result(last: Checkpoint | None) -> Json:
    facts = parse(last.state) if last is not None and last.is_final else None
    return facts.get("result") if isinstance(facts, dict) else None


def _emitted(tx: Transaction, run_id: RunId, receipt: TerminalReceipt | None) -> int:
    if receipt is not None:
        return max(receipt.frontier.emitted_seq, receipt.frontier.stored_seq)
    state = tx.streams.state(run_id)
    return 0 if state is None else max(state.stored_seq, state.reserved_seq)


def _is_behind(tx: Transaction, run_id: RunId, covered: int, receipt: TerminalReceipt | None) -> bool:
    """Say whether more was seen than the state contains: by the receipt once there is one, by what is stored until then."""
    if receipt is not None:
        return receipt.gap.kind is not GapKind.NONE
    return tx.streams.count_state_bearing(run_id, after=covered) > 0


def _partial(tx: Transaction, run_id: RunId, covered: int, emitted: int) -> Partial | None:
    """Collect what stands behind the last checkpoint; None if nothing state-bearing does."""
    events: list[StreamEvent] = []
    after, chain = covered, ""
    while page := tx.streams.read(run_id, after=after, limit=PAGE):
        for event in page:
            after, chain = event.seq, event.chain
            if event.kind is EventKind.SUPERSEDED:
                first, last = gap_range(event)
                events = [e for e in events if not first <= e.seq <= last]
            elif event.kind is EventKind.DATA and event.state_bearing:
                events.append(event)
    if not events:
        return None
    return Partial(run_id=run_id, first_seq=covered + 1, last_seq=max(emitted, after), digest=chain, events=tuple(events))
