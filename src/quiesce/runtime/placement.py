"""Placement: where a new run stands in its thread. At once, in the queue, or nowhere.

Keeps: one run at a time has its turn, and a new one only by a record (`turns.py`); what a message does to a busy thread is
its caller's word (`OnBusy`), and the default refuses it. An interrupt is a cancel like any other: each superseded run has its
own receipt, and the new run waits for the boundary of the head. A refusal says which policy applies, why, and what would do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.canonical import Json
from quiesce.domain.continuations import Carry, Choice, OnGap, StandingPolicy, Withheld
from quiesce.domain.errors import CapacityExhausted, ContinuationRefused, InvalidInput, ThreadBusy, required
from quiesce.domain.ids import ReceiptId
from quiesce.domain.runs import Run
from quiesce.domain.texts import word_of
from quiesce.domain.threads import OnBusy, Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelRequest, cancel_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.trees import descendants
from quiesce.runtime.turns import PolicyNow, enqueue_tx, message_policy, policy_now, take_turn_tx


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """How a new run asks for its turn."""

    on_busy: OnBusy = OnBusy.REJECT
    choice: Choice | None = None
    """A choice about the receipt of the thread's last run."""
    on_gap: OnGap | None = None
    """A choice ahead, said with the message itself, about a boundary that may not be there yet."""
    carry: Carry = Carry.KEEP_PARTIAL
    """What `on_gap` carries over."""

    def facts(self) -> dict[str, Json]:
        """Return what of it gives a submission its meaning."""
        choice = self.choice
        return {
            "on_busy": str(self.on_busy),
            "on_gap": None if self.on_gap is None else str(self.on_gap),
            "carry": str(self.carry if choice is None else choice.carry),
            "accept": None if choice is None else choice.receipt_id,
            "policy": None if choice is None or choice.policy is None else str(choice.policy),
        }


def request_turn(
    *,
    accept: str | None = None,
    policy: OnGap | str | None = None,
    carry: Carry | str = Carry.KEEP_PARTIAL,
    basis: str | None = None,
    on_busy: OnBusy | str = OnBusy.REJECT,
) -> TurnRequest:
    """Make a request of words from outside. With `accept` it is a choice about that receipt, without one it is said ahead.

    Raises `InvalidInput`.
    """
    on_gap = None if policy is None else word_of(OnGap, "policy", policy)
    kept, busy = word_of(Carry, "carry", carry), word_of(OnBusy, "on_busy", on_busy)
    if accept is not None:
        choice = Choice(receipt_id=ReceiptId(accept), policy=on_gap, carry=kept, basis=basis)
        return TurnRequest(on_busy=busy, choice=choice, carry=kept)
    if basis is not None:
        raise InvalidInput(field="basis", value=basis, rule="goes with accept, the receipt that it is about")
    return TurnRequest(on_busy=busy, on_gap=on_gap, carry=kept)


def place_tx(tx: Transaction, env: Environment, thread: Thread, run: Run, wanted: TurnRequest) -> tuple[Run, Thread]:
    """Give a new run its turn, or a place in the queue; return both as they are then, not stored yet."""
    head = tx.runs.get(thread.head_run_id) if thread.head_run_id else None
    said = None if wanted.on_gap is None else message_policy(run, wanted.on_gap, wanted.carry)
    if head is None:
        if wanted.choice is not None:
            rule = f"names a receipt, and thread {thread.id} has no run yet"
            raise InvalidInput(field="accept", value=wanted.choice.receipt_id, rule=rule)
        return run, replace(thread, head_run_id=run.id)
    if head.is_terminal and not thread.queued:
        if wanted.on_busy is OnBusy.ROLLBACK and said is None and wanted.choice is None:
            said = message_policy(run, OnGap.RESTART, Carry.ROLLBACK)
        answer = take_turn_tx(tx, head, run, choice=wanted.choice, said=said)
        if isinstance(answer, Withheld):
            raise refusal(tx, thread, head, answer)
        return run, replace(thread, head_run_id=run.id)
    if wanted.choice is not None and not head.is_terminal:
        rule = f"names a receipt, and run {head.id}, which has its turn, is {head.status}; say on_gap for what is to come"
        raise InvalidInput(field="accept", value=wanted.choice.receipt_id, rule=rule)
    if wanted.on_busy is OnBusy.REJECT:
        raise _busy(tx, thread, head)
    if thread.queued >= env.limits.thread_queue_max:
        raise CapacityExhausted(f"thread {thread.id} has {thread.queued} queued runs, the most it may have", thread_id=thread.id)
    return _queue_tx(tx, env, thread, head, run, wanted, said)


def _queue_tx(
    tx: Transaction, env: Environment, thread: Thread, head: Run, run: Run, wanted: TurnRequest, said: StandingPolicy | None
) -> tuple[Run, Thread]:
    """Queue a new run; where it interrupts, what is unfinished before it is cancelled in the same transaction."""
    if wanted.choice is not None:
        said = _ahead(tx, head, run, wanted.choice)
    elif wanted.on_busy is OnBusy.ROLLBACK and said is None:
        said = message_policy(run, OnGap.RESTART, Carry.ROLLBACK)
    if wanted.on_busy.supersedes:
        _supersede_tx(tx, env, thread, head, run)
    queued = enqueue_tx(tx, thread, run, said)
    return queued, replace(thread, queued=thread.queued + 1)


def _ahead(tx: Transaction, head: Run, run: Run, choice: Choice) -> StandingPolicy:
    """Turn a choice about the head's receipt into one that is kept until the run's turn: the head stays the same till then."""
    receipt = tx.terminal.receipt(head.id)
    if receipt is None or receipt.id != choice.receipt_id or choice.policy is None:
        rule = f"must be the receipt of the thread's head, run {head.id}, with a policy"
        raise InvalidInput(field="accept", value=choice.receipt_id, rule=rule)
    return message_policy(run, choice.policy, choice.carry)


def _supersede_tx(tx: Transaction, env: Environment, thread: Thread, head: Run, run: Run) -> None:
    """Cancel every unfinished run of a locked thread, with what runs below it: `superseded`, by the new run's key."""
    queued = [tx.runs.get(run_id) for run_id in tx.threads.queue(thread.id, limit=thread.queued)]
    unfinished = [r for r in (head, *queued) if r is not None and not r.is_terminal]
    tx.runs.lock_many({below.id for r in unfinished for below in (r, *descendants(tx, r.id))})
    for superseded in unfinished:
        request = CancelRequest(
            run_id=superseded.id,
            actor=Actor(kind=ActorKind.USER, name=run.subject),
            key=f"superseded:{run.id}",
            text=f"superseded by run {run.id}",
            reason=Reason.SUPERSEDED,
            tenant=run.tenant,
        )
        cancel_tx(tx, env, request)


def _busy(tx: Transaction, thread: Thread, head: Run) -> ThreadBusy:
    if not head.is_terminal:
        return ThreadBusy(
            f"thread {thread.id} has run {head.id}, which is {head.status}; wait for its end, cancel it, or say what a new "
            f"message does meanwhile (on_busy={', '.join(OnBusy)})",
            thread_id=thread.id,
            run_id=head.id,
            status=str(head.status),
        )
    first = required(tx.runs.get(tx.threads.queue(thread.id, limit=1)[0]), "a queued run exists")
    return ThreadBusy(
        f"thread {thread.id} has {thread.queued} queued runs; the first, {first.id}, waits for a choice about the receipt of "
        f"run {head.id} (continue_thread without a message, or `quiesce continue`)",
        thread_id=thread.id,
        run_id=first.id,
        status=str(first.status),
    )


def refusal(tx: Transaction, thread: Thread, head: Run, withheld: Withheld) -> ContinuationRefused:
    """Say which policy applies to a thread, why, and what the caller can do."""
    receipt = required(tx.terminal.receipt(head.id), "a run that has ended has its receipt")
    now = policy_now(tx, receipt)
    return ContinuationRefused(
        f"thread {thread.id}: its last run ended with resume policy {now.policy.policy}. {withheld.why}. "
        f"{_advice(now, withheld)}",
        thread_id=thread.id,
        receipt_id=receipt.id,
        policy=str(now.policy.policy),
        rule=now.policy.rule,
        admissible=now.policy.admissible,
        basis=now.basis,
        gap=receipt.gap.to_json(),
        choices=[str(policy) for policy in withheld.needs],
        unresolved=[{"run_id": run_id, "operation": position} for run_id, position in now.unresolved],
    )


def _advice(now: PolicyNow, withheld: Withheld) -> str:
    if withheld.needs:
        return "Choose: continue with accept=<receipt> and policy=" + " or ".join(withheld.needs)
    if now.unresolved:
        run_id, position = now.unresolved[0]
        return f"First find out what became of operation {position} of run {run_id} (quiesce reconcile), or start a new thread"
    return "Read the receipt again, or start a new thread"
