"""Children: runs started by a run. The parent's journal and the child come into being in one transaction.

A child's end is a fact of the child, read from its receipt and never copied into the parent's journal: a parent that is
resumed asks again and sees the child as it is (C25). A cancelled child is a value to its parent, not a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.boundary import Reason
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import required
from quiesce.domain.ids import Position, ReceiptId, RunId, ThreadId
from quiesce.domain.operations import Operation, OperationKind, fingerprint
from quiesce.domain.runs import Admission, RunStatus, Wait, WaitKind
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.codec import annotations_of, decode, encode
from quiesce.runtime.points import fact
from quiesce.runtime.registry import Agent
from quiesce.runtime.submission import Submission, submit_tx
from quiesce.runtime.transacting import persist


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """How a child ended: a value, whatever the end. `result` only if it completed."""

    run_id: RunId
    status: RunStatus
    reason: Reason
    receipt_id: ReceiptId
    result: object = None

    @property
    def is_ok(self) -> bool:
        """Whether the child completed."""
        return self.status is RunStatus.COMPLETED


class Child:
    """A handle on a child run."""

    def __init__(self, attempt: Attempt, position: Position, run_id: RunId, agent: Agent) -> None:
        self._attempt = attempt
        self._position = position
        self._agent = agent
        self.run_id = run_id

    async def outcome(self) -> ChildOutcome:
        """Return how the child ended; the parent parks if that takes long."""
        return await self._attempt.carry_out(self._outcome)

    async def _outcome(self) -> ChildOutcome:
        self._attempt.journal.check_open()
        await self._attempt.wait_until_over(Wait(kind=WaitKind.CHILD, subject=self.run_id, position=self._position))
        self._attempt.journal.check_open()
        return await self._attempt.read(self._read)

    def _read(self, tx: Transaction) -> ChildOutcome:
        receipt = required(tx.terminal.receipt(self.run_id), "a terminal run has its receipt")
        return ChildOutcome(
            run_id=self.run_id,
            status=receipt.status,
            reason=receipt.reason,
            receipt_id=receipt.id,
            result=read_result(tx, self.run_id, annotations_of(self._agent.fn).get("return")),
        )


def read_result(tx: Transaction, run_id: RunId, annotation: object = None) -> object:
    """Return what a completed run's agent returned; None for any other run."""
    last = tx.checkpoints.last(run_id)
    if last is None or not last.is_final:
        return None
    state = parse(last.state)
    value = state.get("result") if isinstance(state, dict) else None
    return decode(canonical(value), annotation, field="result")


async def spawn(attempt: Attempt, position: Position, agent: Agent, args: tuple[object, ...], budget: Amounts | None) -> Child:
    """Start a child, or find the one that this position started before."""
    journal = attempt.journal
    journal.check_open()
    attempt.know(agent)
    data = encode({"args": args, "kwargs": {}}, field=f"arguments of {agent.name}", limits=attempt.env.limits)
    arguments = canonical({"agent": agent.name, "input": parse(data), "budget": dict(budget or {})})
    name = f"spawn {agent.name}"
    known = journal.expect(position, OperationKind.CHILD, name, fingerprint(OperationKind.CHILD, name, arguments))
    if known is not None:
        journal.consume(position)
        return Child(attempt, position, _child_id(known), agent)
    attempt.env.crash.reach("spawn.before")
    child_id = RunId(attempt.env.new_id(after=attempt.run.id))
    operation = fact(attempt, position, OperationKind.CHILD, name, arguments=arguments, result=canonical({"run_id": child_id}))
    await journal.flush()
    wanted = Submission(
        agent=agent.name,
        input=data,
        bindings=canonical(dict(agent.bindings)),
        key=f"child:{operation.key}",
        tenant=attempt.run.tenant,
        subject=attempt.run.subject,
        budget=Budget.of_limits(budget),
        durability=attempt.run.durability,
        visibility=attempt.run.visibility,
    )
    if not await persist(attempt.env, lambda tx: _spawn_tx(tx, attempt, operation, wanted, child_id)):
        await attempt.refused()
    journal.operations[position] = operation
    attempt.env.crash.reach("spawn.after")
    journal.consume(position)
    return Child(attempt, position, child_id, agent)


def _spawn_tx(tx: Transaction, attempt: Attempt, operation: Operation, wanted: Submission, child_id: RunId) -> bool:
    parent = tx.runs.lock(attempt.run.id)
    if parent is None or parent.admits(attempt.run.fence) is not Admission.HOLDER:
        return False
    child = submit_tx(tx, attempt.env, wanted, run_id=child_id, thread_id=ThreadId(attempt.env.new_id(tx.now)), parent=parent)
    write = RunWrite(run_id=parent.id, fence=attempt.run.fence, operations=(operation,))
    return child.id == child_id and tx.apply(write) is WriteOutcome.APPLIED


def _child_id(operation: Operation) -> RunId:
    facts = parse(required(operation.result, "a stored child has its id"))
    return RunId(str(facts["run_id"])) if isinstance(facts, dict) else RunId("")
