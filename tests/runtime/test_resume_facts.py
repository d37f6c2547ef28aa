"""The whole decision table over stored facts: each row is stored as a run that ended so, and a next message is sent to it.

`tests/unit` holds the function against the table; here the same rows go the way of a message: read from the store, decided
under the thread's lock, and either recorded or refused with nothing stored.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import STATUS_OF, Cause, Frontier, Gap, GapKind, Reason, TerminalDurability
from quiesce.domain.continuations import Carry, Choice, OnGap
from quiesce.domain.errors import ContinuationRefused, Refused, ThreadBusy
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.operations import OperationStatus
from quiesce.domain.resume import Policy, ToolState, resume_policy
from quiesce.domain.runs import Run
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.submission import Submission, submit_tx
from quiesce.testing.samples import Samples, make_frontier
from tests.runtime.kit import Cluster, submission
from tests.unit.test_resume_policy import ROWS, Row

REASON = {
    Cause.COMPLETED: Reason.FINISHED,
    Cause.EXPLICIT_CANCEL: Reason.USER_CANCEL,
    Cause.TRANSPORT_INTERRUPTED: Reason.CLIENT_LEFT,
    Cause.FAILED: Reason.AGENT_ERROR,
}
STATUS = {
    ToolState.SEALED: OperationStatus.SEALED,
    ToolState.COMMITTED_UNCONSUMED: OperationStatus.COMMITTED,
    ToolState.OUTCOME_UNKNOWN: OperationStatus.UNKNOWN,
}
FRONTIER = {
    GapKind.NONE: make_frontier(covered=9, stored=9, emitted=9),
    GapKind.RECOVERABLE: make_frontier(covered=4, stored=9, emitted=9, state_bearing_stored=5),
    GapKind.PART_LOST: make_frontier(covered=4, stored=6, emitted=9, state_bearing_stored=2),
    GapKind.LOST: make_frontier(covered=4, stored=4, emitted=9),
    GapKind.CONTRADICTS: make_frontier(covered=4, stored=9, emitted=9, state_bearing_stored=5),
}
OFFERS: list[tuple[OnGap | None, Carry]] = [
    (None, Carry.KEEP_PARTIAL),
    (OnGap.RECONCILE, Carry.KEEP_PARTIAL),
    (OnGap.RECONCILE, Carry.ROLLBACK),
    (OnGap.RESTART, Carry.KEEP_PARTIAL),
    (OnGap.RESTART, Carry.ROLLBACK),
]
GRANTED: dict[Policy, dict[tuple[OnGap | None, Carry], Carry]] = {
    Policy.ALLOW: {offer: Carry.ROLLBACK if offer[1] is Carry.ROLLBACK else Carry.CHECKPOINT for offer in OFFERS},
    Policy.RECONCILE: {
        (OnGap.RECONCILE, Carry.KEEP_PARTIAL): Carry.KEEP_PARTIAL,
        (OnGap.RECONCILE, Carry.ROLLBACK): Carry.ROLLBACK,
        (OnGap.RESTART, Carry.KEEP_PARTIAL): Carry.CHECKPOINT,
        (OnGap.RESTART, Carry.ROLLBACK): Carry.ROLLBACK,
    },
    Policy.RESTART: {
        (OnGap.RESTART, Carry.KEEP_PARTIAL): Carry.CHECKPOINT,
        (OnGap.RESTART, Carry.ROLLBACK): Carry.ROLLBACK,
    },
    Policy.BLOCK: {},
    Policy.NONE: {},
}
"""What each policy grants to each offer, and what is carried then. Everything else is refused."""


async def _echo(_: object, text: str) -> str:
    return text


ECHO = declare_agent(_echo, name="echo")


def ended(tx: Transaction, make: Samples, row: Row) -> tuple[Run, TerminalReceipt | None]:
    """Store a thread whose only run ended as the row says."""
    cause, durability, gap, tools = row.facts
    thread = make.thread(tenant="local")
    run = make.run(thread_id=thread.id, tenant="local").claimed(make.worker().id)
    tx.threads.insert(thread)
    tx.runs.insert(run)
    tx.streams.open(run.id)
    if tools in STATUS:
        tx.operations.put_many([make.operation(run, status=STATUS[tools])])
    occurrence = make.occurrence(run, reason=REASON[cause])
    tx.terminal.add_occurrence(occurrence)
    tx.threads.save(replace(thread, runs=1, head_run_id=run.id))
    if durability is None:
        tx.runs.save(run.fenced_for_settlement(settle_at=tx.now))
        return run, None
    receipt = boundary(tx, make, run, FRONTIER[gap], durability, gap, row)
    tx.runs.save(run.ended(STATUS_OF[cause], tx.now))
    return run, receipt


def boundary(
    tx: Transaction, make: Samples, run: Run, frontier: Frontier, durability: TerminalDurability, gap: GapKind, row: Row
) -> TerminalReceipt:
    """Store P and T with these facts. What the numbers alone would give is overruled: the row says it."""
    occurrence = tx.terminal.occurrence(run.id)
    assert occurrence is not None
    bounds = {} if gap is GapKind.NONE else {"first_seq": frontier.covered_seq + 1, "last_seq": frontier.emitted_seq}
    outcome = replace(make.outcome(occurrence, frontier), durability=durability, gap=Gap(kind=gap, **bounds))
    tx.terminal.add_outcome(outcome)
    receipt = make.receipt(run, occurrence, outcome)
    policy = resume_policy(row.facts[0], durability, gap, row.facts[3])
    receipt = replace(receipt, durability=durability, gap=outcome.gap, policy=policy)
    receipt = replace(receipt, digest=receipt.h3())
    tx.terminal.add_receipt(receipt)
    return receipt


class _Undo(Exception):
    """Ends a trial, so that the next offer finds the same facts."""


def test_each_policy_has_its_rows() -> None:
    assert {row.policy for row in ROWS} == set(Policy)


@pytest.mark.req("TR-30", "TR-35", "TR-36", "TR-37", "TR-38", "TR-39", "TR-40", "TR-41")
@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: f"{offer[0]}-{offer[1]}")
async def test_a_message_goes_on_from_stored_facts_as_the_table_says(
    store: Store, cluster: Cluster, offer: tuple[OnGap | None, Carry]
) -> None:
    make = Samples()
    for row in ROWS:
        _offer(store, cluster, make, row, offer)


def _offer(store: Store, cluster: Cluster, make: Samples, row: Row, offer: tuple[OnGap | None, Carry]) -> None:
    """Store a row's facts, offer the choice to them, check what comes of it, and take everything back."""
    policy, carry = offer
    expected = GRANTED[row.policy].get(offer)

    def trial(tx: Transaction) -> None:
        run, receipt = ended(tx, make, row)
        choice = None if policy is None or receipt is None else Choice(receipt_id=receipt.id, policy=policy, carry=carry)
        wanted = submission(ECHO, "next", thread=run.thread_id, turn=TurnRequest(choice=choice))
        new_id = RunId(make.id())
        stored, refused = _submit(tx, cluster, wanted, new_id, ThreadId(make.id()))
        if isinstance(refused, ThreadBusy):
            assert row.policy is Policy.NONE
        elif refused is not None:
            assert expected is None, (row, refused)
            assert (refused.details["policy"], refused.details["rule"]) == (str(row.policy), row.rule)
            assert tx.runs.get(new_id) is None
            assert tx.continuations.of_thread(run.thread_id) == []
        else:
            assert expected is not None, row
            assert stored is not None
            assert receipt is not None
            record = tx.continuations.of_run(stored.id)
            assert record is not None
            found = (record.policy, record.rule, record.carry, record.receipt_id, record.head_run_id)
            assert found == (row.policy, row.rule, expected, receipt.id, run.id)
            assert record.base_run_id == (None if expected is Carry.ROLLBACK else run.id)
            has_lost = expected is not Carry.KEEP_PARTIAL and (row.policy is not Policy.ALLOW or expected is Carry.ROLLBACK)
            assert (record.gave_up is not None) == has_lost
        raise _Undo

    with pytest.raises(_Undo):
        store.transact_blocking(trial)


def _submit(
    tx: Transaction, cluster: Cluster, wanted: Submission, run_id: RunId, thread_id: ThreadId
) -> tuple[Run | None, Refused | None]:
    try:
        return submit_tx(tx, cluster.env, wanted, run_id=run_id, thread_id=thread_id), None
    except (ContinuationRefused, ThreadBusy) as refused:
        return None, refused
