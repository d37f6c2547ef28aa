"""Builders of valid domain records, for tests.

A `Samples` makes ids and instants that ascend in the order of making, without a clock and without randomness: two of them
make equal records. A builder takes what tests vary most; for the rest there is `dataclasses.replace`. Records in later
states come from the domain's own transitions, so no builder can make what the product cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypedDict, Unpack

from quiesce.domain.boundary import (
    CAUSE_OF,
    STATUS_OF,
    Actor,
    ActorKind,
    CancelMode,
    CancelScope,
    Frontier,
    Occurrence,
    PersistenceOutcome,
    Reason,
    measure,
)
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import canonical, digest, digest_of
from quiesce.domain.checkpoints import Checkpoint, h1_of_nothing
from quiesce.domain.evidence import ArtifactReceipt, Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import CheckpointId, Fence, OccurrenceId, OutcomeId, Position, ReceiptId, RunId, ThreadId, WorkerId
from quiesce.domain.ids import uuid7 as make_uuid7
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus, ResultKind, fingerprint
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.resume import ToolState, resume_policy
from quiesce.domain.runs import Durability, Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import Draft, StreamEvent, Visibility, first_chain
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import Thread
from quiesce.domain.workers import Attempt, Worker
from quiesce.testing.clock import START

AGENT: Final = "sampler"
TENANT: Final = "acme"
USER: Final = Actor(kind=ActorKind.USER, name="ada")
_SETTLED: Final = (OperationStatus.COMMITTED, OperationStatus.CONSUMED)


class RunFields(TypedDict, total=False):
    """What tests vary of a run."""

    thread_id: ThreadId
    parent: Run
    number: int
    agent: str
    tenant: str
    limits: Amounts
    deadline_at: Instant


class Samples:
    """Makes records. Whatever it makes next is one millisecond younger than what it made before."""

    def __init__(self, start: Instant = START) -> None:
        self._start = start
        self._made = 0

    @property
    def now(self) -> Instant:
        """The instant of the record made last."""
        return after_ms(self._start, self._made)

    def id(self) -> str:
        """Make an id greater than all before."""
        self._made += 1
        return make_uuid7(self.now, self._made.to_bytes(10, "big"))

    def thread(self, *, tenant: str = TENANT) -> Thread:
        """Make an empty thread."""
        return Thread(id=ThreadId(self.id()), tenant=tenant, created_at=self.now)

    def worker(self, *, lease_ms: float = 30_000, name: str = "w") -> Worker:
        """Make a worker that has just started, with a lease of that length."""
        worker_id = WorkerId(self.id())
        return Worker(id=worker_id, name=name, started_at=self.now, lease_expires_at=after_ms(self.now, lease_ms))

    def run(self, **fields: Unpack[RunFields]) -> Run:
        """Make a pending run, on a thread of its own unless one is given."""
        parent = fields.get("parent")
        thread = fields.get("thread_id") or ThreadId(self.id())
        run_id = RunId(self.id())
        question = canonical({"question": f"number {self._made}"})
        return Run(
            id=run_id,
            thread_id=thread,
            number=fields.get("number", 1),
            tenant=fields.get("tenant", TENANT),
            subject=USER.name,
            key=None,
            fingerprint=digest(question),
            agent=fields.get("agent", AGENT),
            input=question,
            bindings=canonical({"model": "scripted"}),
            parent_id=parent.id if parent else None,
            root_id=parent.root_id if parent else run_id,
            status=RunStatus.PENDING,
            fence=Fence(0),
            worker_id=None,
            attempt=0,
            drain_fence=None,
            settle_at=None,
            waits=(),
            due_at=None,
            deadline_at=fields.get("deadline_at"),
            durability=Durability.SYNC,
            visibility=Visibility.STORE_FIRST,
            budget=Budget.of_limits(fields.get("limits")),
            created_at=self.now,
            ended_at=None,
        )

    def running(self, worker: Worker | None = None, **fields: Unpack[RunFields]) -> Run:
        """Make a run that a worker holds; `fields` as for `run`."""
        return self.run(**fields).claimed(worker.id if worker else WorkerId(self.id()))

    def waiting(self, due_at: Instant | None, **fields: Unpack[RunFields]) -> Run:
        """Make a run that waits for a timer, or for a child if there is no due time."""
        kind = WaitKind.CHILD if due_at is None else WaitKind.TIMER
        run = self.run(**fields).claimed(WorkerId(self.id()))
        return run.parked((Wait(kind=kind, subject=self.id(), position=Position("1"), due_at=due_at),))

    def settling(self, worker: Worker | None, settle_at: Instant, **fields: Unpack[RunFields]) -> Run:
        """Make a run whose end is accepted, with a drain open for `worker`, or for nobody."""
        run = self.run(**fields)
        return (run.claimed(worker.id) if worker else run).fenced_for_settlement(settle_at=settle_at)

    def attempt(self, run: Run, *, number: int = 1) -> Attempt:
        """Make an open attempt of a run."""
        worker_id = run.worker_id or WorkerId(self.id())
        return Attempt(
            run_id=run.id, number=number, fence=Fence(number), worker_id=worker_id, worker_name="w", opened_at=self.now
        )

    def operation(
        self,
        run: Run,
        position: str = "1",
        *,
        status: OperationStatus = OperationStatus.SEALED,
        kind: OperationKind = OperationKind.CALL,
        policy: EffectPolicy = EffectPolicy.ONCE,
        result: object = "done",
        reserved: Amounts | None = None,
        used: Amounts | None = None,
    ) -> Operation:
        """Make an operation; `result` counts for settled ones only."""
        has_result = status in _SETTLED
        arguments = canonical({"position": position})
        return Operation(
            run_id=run.id,
            position=Position(position),
            kind=kind,
            name="act",
            fingerprint=fingerprint(kind, "act", arguments),
            arguments=arguments,
            policy=policy,
            status=status,
            fence=run.fence,
            sealed_at=self.now,
            result_kind=ResultKind.OK if has_result else None,
            result=canonical(result) if has_result else None,
            settled_at=self.now if has_result else None,
            reserved=reserved or {},
            used=used or {},
        )

    def events(self, run: Run, *drafts: Draft, after: StreamEvent | None = None) -> tuple[StreamEvent, ...]:
        """Make events with consecutive numbers, chained to `after` or to the beginning of the stream."""
        seq, chain = (after.seq, after.chain) if after else (0, first_chain(run.id))
        made: list[StreamEvent] = []
        for draft in drafts:
            event = draft.sealed(run_id=run.id, seq=seq + 1, previous=chain, fence=run.fence, now=self.now)
            made.append(event)
            seq, chain = event.seq, event.chain
        return tuple(made)

    def texts(self, run: Run, *texts: str, after: StreamEvent | None = None) -> tuple[StreamEvent, ...]:
        """Make state-bearing events with these texts as payloads."""
        return self.events(run, *(Draft(channel="text", payload=canonical(t)) for t in texts), after=after)

    def checkpoint(
        self, run: Run, *, number: int = 1, parent: Checkpoint | None = None, state: object = None, covered_seq: int = 0
    ) -> Checkpoint:
        """Make a checkpoint."""
        checkpoint_id = CheckpointId(self.id())
        return Checkpoint(
            id=checkpoint_id,
            run_id=run.id,
            thread_id=run.thread_id,
            number=number,
            parent_id=parent.id if parent else None,
            state=canonical(state),
            covered_seq=covered_seq,
            is_final=False,
            fence=run.fence,
            created_at=self.now,
        )

    def artifact(self, run: Run, name: str = "report.md", *, content: bytes = b"report") -> ArtifactReceipt:
        """Make the receipt of a saved artifact."""
        self._made += 1
        return ArtifactReceipt(
            run_id=run.id,
            name=name,
            path=f"{run.id}/{name}",
            digest=digest(content),
            bytes=len(content),
            saved_at=self.now,
        )

    def evidence(self, run: Run, position: str = "1", *, body: object = None) -> Evidence:
        """Make a person's decision about an operation; the store numbers it."""
        self._made += 1
        return Evidence(
            run_id=run.id,
            position=Position(position),
            number=0,
            kind=EvidenceKind.DECISION,
            verdict=Verdict.HAPPENED,
            actor=USER,
            body=canonical(body),
            at=self.now,
        )

    def message(self, run: Run, *, topic: str = "run.ended", body: object = None) -> OutboxMessage:
        """Make an undelivered message."""
        message_id = self.id()
        return OutboxMessage.new(id=message_id, topic=topic, run_id=run.id, body=canonical(body), created_at=self.now)

    def occurrence(self, run: Run, *, reason: Reason = Reason.USER_CANCEL, text: str = "") -> Occurrence:
        """Make C."""
        occurrence_id = OccurrenceId(self.id())
        return Occurrence(
            id=occurrence_id,
            run_id=run.id,
            cause=CAUSE_OF[reason],
            reason=reason,
            actor=USER,
            text=text,
            command_key=digest_of([run.id, str(reason)]),
            mode=CancelMode.NOW,
            scope=CancelScope.RUN,
            grace_ms=5000,
            origin_id=None,
            never_started=run.attempt == 0,
            at=self.now,
        )

    def outcome(self, occurrence: Occurrence, frontier: Frontier | None = None) -> PersistenceOutcome:
        """Make P from what `measure` says of the frontier, by default one with nothing beyond the last checkpoint."""
        outcome_id = OutcomeId(self.id())
        numbers = frontier or make_frontier()
        durability, gap = measure(numbers)
        return PersistenceOutcome(
            id=outcome_id,
            run_id=occurrence.run_id,
            occurrence_id=occurrence.id,
            frontier=numbers,
            durability=durability,
            gap=gap,
            cleanup_attempted=True,
            cleanup_completed=True,
            escalated=False,
            established_by="holder",
            at=self.now,
        )

    def receipt(
        self,
        run: Run,
        occurrence: Occurrence,
        outcome: PersistenceOutcome,
        *,
        previous: TerminalReceipt | None = None,
        unresolved: tuple[Mapping[str, object], ...] = (),
    ) -> TerminalReceipt:
        """Make T, with its digest, chained to `previous`."""
        receipt = _undigested(ReceiptId(self.id()), self.now, run, occurrence, outcome)
        tools = ToolState.OUTCOME_UNKNOWN if unresolved else ToolState.IDLE
        chained = replace(
            receipt,
            unresolved=unresolved,
            policy=resume_policy(occurrence.cause, outcome.durability, outcome.gap.kind, tools),
            previous_digest=previous.digest if previous else None,
        )
        return replace(chained, digest=chained.h3())


def _undigested(
    receipt_id: ReceiptId, now: Instant, run: Run, occurrence: Occurrence, outcome: PersistenceOutcome
) -> TerminalReceipt:
    return TerminalReceipt(
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
        checkpoint_id=None,
        frontier=outcome.frontier,
        durability=outcome.durability,
        gap=outcome.gap,
        cleanup_attempted=outcome.cleanup_attempted,
        cleanup_completed=outcome.cleanup_completed,
        escalated=outcome.escalated,
        scope=occurrence.scope,
        never_started=occurrence.never_started,
        unresolved=(),
        unconsumed=(),
        artifacts=(),
        usage=run.budget.to_json(),
        policy=resume_policy(occurrence.cause, outcome.durability, outcome.gap.kind, ToolState.IDLE),
        h1=h1_of_nothing(run.id),
        h2=first_chain(run.id),
        h2_exact=True,
        store_durability="full",
        previous_digest=None,
        published_at=now,
    )


def make_frontier(
    *,
    covered: int = 0,
    stored: int = 0,
    emitted: int = 0,
    exact: bool = True,
    state_bearing_stored: int = 0,
    pending_writes: int = 0,
) -> Frontier:
    """Make a frontier; all numbers are 0 unless given."""
    return Frontier(
        covered_seq=covered,
        stored_seq=stored,
        emitted_seq=emitted,
        emitted_exact=exact,
        state_bearing_stored=state_bearing_stored,
        pending_writes=pending_writes,
    )
