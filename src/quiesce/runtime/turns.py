"""Turns: a run of a thread begins only where the boundary before it allows it, under a record that says so.

Keeps: the policy is computed from the newest facts in the transaction that uses it; that transaction holds the thread's lock,
so head, queue and newest receipt cannot change beside it (a compare-and-set on head, receipt and basis, TR-30). One record
per turn, one turn per receipt. Whoever publishes a boundary, records a decision about an effect, or takes a run out of the
queue gives the next queued run its turn in the same transaction: nothing has to be remembered until later.

Knows nothing of how runs are submitted or ended. Lock order: threads, then runs by ascending id; the first of the queue are
locked together with what else is (`first_in_line`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quiesce.domain.boundary import Actor, ActorKind, GapKind
from quiesce.domain.canonical import digest_of
from quiesce.domain.continuations import (
    Carry,
    Choice,
    Continuation,
    Granted,
    OnGap,
    Scope,
    StandingPolicy,
    Withheld,
    given_up,
    permit,
)
from quiesce.domain.errors import required
from quiesce.domain.evidence import Evidence, EvidenceKind, Verdict, open_contradictions
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.resume import ResumePolicy, resume_policy, tool_state
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import Thread
from quiesce.ports.notifier import WORK, run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.trees import descendants

_SETTLING: Final = (EvidenceKind.DECISION, EvidenceKind.PROBE)
IN_LINE: Final = 2
"""Runs of a queue that one end can concern: the first, which may be the one that ends, and the one behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNow:
    """The policy of a boundary as of now, and a digest of the facts that it rests on."""

    policy: ResumePolicy
    basis: str
    unresolved: tuple[tuple[RunId, Position], ...]


def policy_now(tx: Transaction, receipt: TerminalReceipt) -> PolicyNow:
    """Ask for the policy again from the newest records: what was unknown at T may have been accounted for since (G-35).

    A client's contradiction that no decision has answered blocks, whatever the receipt's own gap (R1).
    """
    ids = [receipt.run_id, *(run.id for run in descendants(tx, receipt.run_id))]
    records = {run_id: tx.evidence.of_run(run_id) for run_id in ids}
    accounted = {run_id: _accounted_for(tx, run_id, records[run_id]) for run_id in ids}
    contradicted = [record.number for record in open_contradictions(records[receipt.run_id])]
    unresolved = [o for o in tx.operations.unresolved(ids) if o.position not in accounted[o.run_id]]
    tools = tool_state([(True, str(o.status)) for o in unresolved])
    gap = GapKind.CONTRADICTS if contradicted else receipt.gap.kind
    policy = resume_policy(receipt.cause, receipt.durability, gap, tools)
    open_ones = tuple((o.run_id, o.position) for o in unresolved)
    facts = {
        "receipt": receipt.digest,
        "rule": policy.rule,
        "unresolved": [list(place) for place in open_ones],
        "accounted_for": [[run_id, sorted(places)] for run_id, places in accounted.items() if places],
        "contradicted": contradicted,
    }
    return PolicyNow(policy=policy, basis=digest_of(facts), unresolved=open_ones)


def _accounted_for(tx: Transaction, run_id: RunId, records: Sequence[Evidence]) -> set[Position]:
    """Return the operations of a run whose own late answer, or what was found out or decided since its end, stands beside it.

    What was decided before has changed the operation itself; what became unknown again since then is not accounted for by it.
    """
    end = tx.terminal.occurrence(run_id)
    return {
        e.position
        for e in records
        if e.kind is EvidenceKind.LATE_RESULT
        or (e.kind in _SETTLING and e.verdict is not Verdict.CANNOT_TELL and end is not None and e.at >= end.at)
    }


def standing_for(tx: Transaction, run: Run) -> list[StandingPolicy]:
    """Return what is declared for a run's turn: with the message, for its thread, for its agent; the most specific first."""
    names = ((Scope.MESSAGE, run.id), (Scope.THREAD, run.thread_id), (Scope.AGENT, run.agent))
    found = [tx.continuations.standing(run.tenant, scope, name) for scope, name in names]
    return [policy for policy in found if policy is not None]


def message_policy(run: Run, on_gap: OnGap, carry: Carry) -> StandingPolicy:
    """Return the choice that was said with a message, before the boundary was there that it is about."""
    return StandingPolicy(
        tenant=run.tenant,
        scope=Scope.MESSAGE,
        name=run.id,
        number=1,
        on_gap=on_gap,
        carry=carry,
        declared_by=run.subject,
        declared_at=run.created_at,
    )


def take_turn_tx(
    tx: Transaction,
    head: Run,
    run: Run,
    *,
    choice: Choice | None = None,
    said: StandingPolicy | None = None,
    actor: Actor | None = None,
) -> Continuation | Withheld:
    """Let `run` build on the boundary of `head`, and record it; or say why it may not. The caller has locked the thread.

    `said`: a choice that came with the message and is stored nowhere. `actor`: who chose; by default who submitted the run.
    """
    receipt = tx.terminal.receipt(head.id)
    if receipt is None:
        return Withheld(why=f"run {head.id} is {head.status}: its boundary is not published yet")
    now = policy_now(tx, receipt)
    if choice is not None and choice.receipt_id != receipt.id:
        return Withheld(why=f"the choice is about receipt {choice.receipt_id}, and the thread's head has {receipt.id}")
    if choice is not None and choice.basis is not None and choice.basis != now.basis:
        return Withheld(why=f"the choice rests on facts {choice.basis}, and they are {now.basis} now")
    answer = permit(now.policy, choice, [*([said] if said is not None else []), *standing_for(tx, run)])
    if isinstance(answer, Withheld):
        return answer
    continuation = _record(tx, receipt, now, answer, run, actor or Actor(kind=ActorKind.USER, name=run.subject))
    tx.continuations.add(continuation)
    return continuation


def _record(tx: Transaction, receipt: TerminalReceipt, now: PolicyNow, answer: Granted, run: Run, actor: Actor) -> Continuation:
    base: RunId | None = receipt.run_id
    if answer.carry is Carry.ROLLBACK:
        before = tx.continuations.of_run(receipt.run_id)
        base = None if before is None else before.base_run_id
    return Continuation(
        run_id=run.id,
        thread_id=run.thread_id,
        tenant=run.tenant,
        head_run_id=receipt.run_id,
        receipt_id=receipt.id,
        rule=now.policy.rule,
        policy=now.policy.policy,
        basis=now.basis,
        carry=answer.carry,
        base_run_id=base,
        gave_up=given_up(receipt, answer.carry),
        standing=None if answer.standing is None else answer.standing.to_json(),
        actor=actor,
        at=tx.now,
    )


# -- the queue -----------------------------------------------------------------------------------------------------------


def first_in_line(tx: Transaction, thread: Thread) -> list[RunId]:
    """Return the queued runs that whoever ends a run of this locked thread must lock together with it."""
    return tx.threads.queue(thread.id, limit=IN_LINE) if thread.queued else []


def enqueue_tx(tx: Transaction, thread: Thread, run: Run, said: StandingPolicy | None) -> Run:
    """Put a new run behind the head of a locked thread; return it, waiting. The caller inserts it and saves the thread."""
    tx.threads.enqueue(thread.id, run.id, run.number)
    if said is not None:
        tx.continuations.declare(said)
    return replace(run, status=RunStatus.WAITING, waits=(_wait_for_turn(thread.id),))


def _wait_for_turn(thread_id: ThreadId) -> Wait:
    return Wait(kind=WaitKind.TURN, subject=thread_id, position=Position(""))


def leave_tx(tx: Transaction, thread: Thread, run_id: RunId) -> Thread:
    """Take an ended run out of the queue of a locked thread, if it is in it; return the thread, saved."""
    if not thread.queued or not tx.threads.dequeue(thread.id, run_id):
        return thread
    shorter = replace(thread, queued=thread.queued - 1)
    tx.threads.save(shorter)
    return shorter


def next_turn_tx(
    tx: Transaction, thread: Thread, *, choice: Choice | None = None, actor: Actor | None = None
) -> Continuation | Withheld | None:
    """Give the first queued run of a locked thread its turn, if the head has ended and its boundary allows it.

    The caller has locked what `first_in_line` names. None: there is nothing to give, or to nobody. Where a choice is needed
    the run goes on waiting, for that.
    """
    if not thread.queued or thread.head_run_id is None:
        return None
    head = required(tx.runs.get(thread.head_run_id), "the head of a thread exists")
    run = required(tx.runs.get(first_in_line(tx, thread)[0]), "a queued run exists")
    if not head.is_terminal or run.status is not RunStatus.WAITING:
        return None  # the run is being ended: its own boundary calls the next
    answer = take_turn_tx(tx, head, run, choice=choice, actor=actor)
    if isinstance(answer, Continuation):
        tx.threads.dequeue(thread.id, run.id)
        tx.threads.save(replace(thread, queued=thread.queued - 1, head_run_id=run.id))
        tx.runs.save(run.woken())
        tx.ring(WORK)
        tx.ring(run_topic(run.id))
        return answer
    receipt = required(tx.terminal.receipt(head.id), "a run that has ended has its receipt")
    waits = (Wait(kind=WaitKind.CHOICE, subject=receipt.id, position=Position("")),)
    if run.waits != waits:
        tx.runs.save(replace(run, waits=waits))
        tx.ring(run_topic(run.id))
    return answer


def lock_threads_tx(tx: Transaction, runs: Collection[Run]) -> dict[ThreadId, Thread]:
    """Lock the threads of some runs, in ascending order; before any run is locked."""
    found = {thread_id: tx.threads.lock(thread_id) for thread_id in sorted({run.thread_id for run in runs})}
    return {thread_id: thread for thread_id, thread in found.items() if thread is not None}


def next_turns_tx(tx: Transaction, threads: Mapping[ThreadId, Thread]) -> None:
    """Look at the queues of some locked threads again: something has become known that their policy rests on."""
    for thread in threads.values():
        next_turn_tx(tx, thread)
