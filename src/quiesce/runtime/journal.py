"""The journal of one attempt: what is stored of the run, and what this holder has yet to store.

Rows wait in a buffer and go out as one write value, one at a time and in order; whatever gathers meanwhile goes with the
next. Nothing leaves the process before the rows it rests on are durable: `flush` before a dispatch, and events are shown
by readers only from the store (or under numbers reserved there).

A write that is refused, or taken as evidence only, stops everything that waits until the attempt has looked why (`rule`).
If the run is lost, `FenceLost` is raised everywhere and nothing more is written. If a cancel has been admitted, the journal
drains: rows that are evidence of what already happened are still stored, rows that would begin something are dropped and
their callers told `Stopped`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.errors import (
    BudgetExceeded,
    FenceLost,
    InvalidInput,
    ReplayMismatch,
    Stopped,
    StoreBusy,
    StoreUnavailable,
)
from quiesce.domain.evidence import ArtifactReceipt
from quiesce.domain.ids import CheckpointId, Position
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.streams import (
    StreamEvent,
)
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.runtime.buffer import Buffer, begins
from quiesce.runtime.environment import Environment
from quiesce.runtime.past import Stored
from quiesce.runtime.stream_gate import StreamGate


class Journal:
    """Reads the past of a run and writes its present, under one fence."""

    def __init__(self, env: Environment, run: Run, stored: Stored, on_stale: Callable[[], None]) -> None:
        self._env = env
        self.run = run
        self.operations: dict[Position, Operation] = {o.position: o for o in stored.operations}
        self.checkpoint = stored.checkpoint
        self.ancestors = stored.ancestors
        self._on_stale = on_stale
        self._buffer = Buffer()
        self._lock = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._refused: set[Position] = set()
        self._verdict: asyncio.Future[bool] | None = None
        self.is_closed = False
        """No operation begins any more."""
        self.has_refused = False
        """The agent has asked for an operation since: what it returns after that may lack what that would have given it."""
        self.is_draining = False
        """A cancel is admitted: only evidence is stored."""
        self.may_close_step = False
        """The cancel lets the step under way end with its checkpoint."""
        self.gate = StreamGate(env, run, stored, self)

    # -- operations ----------------------------------------------------------------------------------------------------

    def expect(self, position: Position, kind: OperationKind, name: str, fingerprint: str) -> Operation | None:
        """Return what is stored at a position, or None. Raises `ReplayMismatch` if it is something else."""
        known = self.operations.get(position)
        if known is None:
            if len(self.operations) >= self._env.limits.operations_max:
                rule = f"a run has at most {self._env.limits.operations_max} operations; start a child or a new run"
                raise InvalidInput(field="operation", value=position, rule=rule)
            return None
        if (known.kind, known.name, known.fingerprint) == (kind, name, fingerprint):
            return known
        what = "arguments" if (known.kind, known.name) == (kind, name) else "operation"
        raise ReplayMismatch(
            f"run {self.run.id} at position {position}: the journal holds {known.kind} {known.name!r}, the code asks for "
            f"{kind} {name!r}"
            + (" with other arguments" if what == "arguments" else "")
            + ". Run it with the code that wrote the journal, or cancel it",
            position=position,
            journal={"kind": str(known.kind), "name": known.name, "fingerprint": known.fingerprint},
            code={"kind": str(kind), "name": name, "fingerprint": fingerprint},
            differs=what,
        )

    def has_ended(self, position: str) -> bool:
        """Return whether the operation at a position has its result; False where there is none."""
        known = self.operations.get(Position(position))
        return known is not None and known.has_result

    def check_open(self) -> None:
        """Raise if nothing may begin any more."""
        self.check_alive()
        if self.is_closed:
            self.has_refused = True
            raise Stopped

    def check_alive(self) -> None:
        """Raise what ended this holder's authority, if anything did."""
        if self._failure is not None:
            raise self._failure

    def hold(self, operation: Operation) -> None:
        """Keep a row for the next write."""
        self.operations[operation.position] = operation
        self._buffer.operations[operation.position] = operation

    async def put(self, operation: Operation) -> None:
        """Store a row and all that was held before it. Raises `BudgetExceeded` if its reservation was refused."""
        before = self.operations.get(operation.position)
        self.hold(operation)
        await self.flush()
        if operation.position in self._refused:
            self._refused.discard(operation.position)
            self._restore(operation.position, before)
            raise _over_budget(operation)
        if self.is_draining and begins(operation):
            self._restore(operation.position, before)
            raise Stopped

    def _restore(self, position: Position, before: Operation | None) -> None:
        self.operations.pop(position, None)
        if before is not None:
            self.operations[position] = before

    def consume(self, position: Position) -> None:
        """Note that the agent's code has been given this result; stored with the next write."""
        known = self.operations[position]
        if known.status is OperationStatus.COMMITTED:
            self.operations[position] = replace(known, status=OperationStatus.CONSUMED)
            self._buffer.consumed.append(position)

    def save_artifact(self, receipt: ArtifactReceipt) -> None:
        """Keep an artifact receipt for the next write."""
        self._buffer.artifacts.append(receipt)

    def make_checkpoint(self, state: bytes, *, is_final: bool) -> Checkpoint:
        """Make the next checkpoint, covering every event numbered so far, and keep it for the next write."""
        now = self._env.clock.now()
        self.checkpoint = Checkpoint(
            id=CheckpointId(self._env.new_id(now)),
            run_id=self.run.id,
            thread_id=self.run.thread_id,
            number=self.checkpoint.number + 1 if self.checkpoint else 1,
            parent_id=self.checkpoint.id if self.checkpoint else None,
            state=state,
            covered_seq=self.gate.seq,
            is_final=is_final,
            fence=self.run.fence,
            created_at=now,
        )
        self._buffer.checkpoints.append(self.checkpoint)
        return self.checkpoint

    def add_event(self, event: StreamEvent) -> int:
        """Keep a numbered event and have it stored soon; return how many wait by now."""
        self._buffer.events.append(event)
        self._env.crash.reach("emit.before")
        self.push()
        return len(self._buffer.events)

    async def reserve(self, upto: int) -> None:
        """Store that numbers up to this one may be shown from now on."""
        self._buffer.reserve_seq = upto
        await self.flush()

    # -- writing -------------------------------------------------------------------------------------------------------

    def push(self) -> None:
        """Have what is buffered stored soon, without waiting for it."""
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._flush_quietly(), name=f"flush {self.run.id}")

    async def _flush_quietly(self) -> None:
        try:
            while self._buffer and self._failure is None:
                await self.flush()
        except (FenceLost, Exception) as failure:  # noqa: BLE001 - kept, and raised where the agent next asks for something
            self._failure = self._failure or failure

    async def flush(self) -> None:
        """Store everything that is buffered; return once it is durable. Raises `FenceLost` when the fence is refused."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if not self._buffer:
                return  # the write before this one carried it
            buffer, self._buffer = self._buffer, Buffer()
            try:
                await self._hand_in(buffer)
            except asyncio.CancelledError:  # whoever waited is gone; the rows are not, and may be handed in twice
                self._buffer = buffer.followed_by(self._buffer)
                self.push()
                raise

    @property
    def is_writing(self) -> bool:
        """Whether rows are on their way to the store."""
        return self._lock.locked()

    async def rest(self) -> None:
        """Wait for the write under way; raise what ended this journal, if anything did."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure

    async def _hand_in(self, buffer: Buffer) -> None:
        only_evidence = self.is_draining
        if only_evidence:
            buffer.keep_only_evidence(with_checkpoint=self.may_close_step)
        if not buffer:
            return
        outcome = await self.persist(self.write_of(buffer))
        if outcome is WriteOutcome.OVER_BUDGET:
            await self._hand_in_apart(buffer)
            return
        if outcome is WriteOutcome.STALE:
            await self._when_stale(buffer, only_evidence=only_evidence)
            return
        if outcome is WriteOutcome.EVIDENCE:
            await self._when_settling()
        if buffer.events:
            self._env.crash.reach("emit.after")

    async def _hand_in_apart(self, buffer: Buffer) -> None:
        """Not all that these rows reserve fits: store those that reserve nothing, then each of the others that fits."""
        asking = {p: o for p, o in buffer.operations.items() if _reserves(o)}
        await self._hand_in(replace(buffer, operations={p: o for p, o in buffer.operations.items() if p not in asking}))
        if len(asking) == 1:
            self._refused |= asking.keys()
            return
        for position, operation in asking.items():
            await self._hand_in(Buffer(operations={position: operation}))

    async def _when_stale(self, buffer: Buffer, *, only_evidence: bool) -> None:
        """Wait for the attempt to find out what became of the run; then drain, or give up.

        What was handed in before the drain was ruled is handed in once more, as evidence.
        """
        if self._failure is None and not only_evidence and (self.is_draining or await self._ask_verdict()):
            await self._hand_in(buffer)
            return
        self._failure = self._failure or FenceLost()
        self._buffer = buffer.followed_by(self._buffer)  # stored by nobody: see `unstored`
        raise self._failure

    async def _when_settling(self) -> None:
        """The rows are stored, behind a stop: wait until the attempt has ruled before anybody goes on from them.

        So nothing begins behind an operation whose end was stored after the stop (C09).
        """
        if self._failure is None and not self.is_draining:
            await self._ask_verdict()

    async def _ask_verdict(self) -> bool:
        """Have the attempt look, and return what it rules: whether this journal drains."""
        self._verdict = asyncio.get_running_loop().create_future()
        self._on_stale()
        return await self._verdict

    def rule(self, *, drains: bool, may_close_step: bool = False) -> None:
        """Say what a refused write, past or to come, means: a drain, or the loss of the run."""
        self.is_draining = drains
        self.may_close_step = may_close_step
        self.is_closed = True
        if not drains:
            self._failure = self._failure or FenceLost()
        if self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(drains)

    def write_of(self, buffer: Buffer) -> RunWrite:
        """Make the write value of a buffer."""
        return RunWrite(
            run_id=self.run.id,
            fence=self.run.fence,
            operations=tuple(buffer.operations.values()),
            events=tuple(buffer.events),
            checkpoints=tuple(buffer.checkpoints),
            artifacts=tuple(buffer.artifacts),
            consumed=tuple(buffer.consumed),
            ancestors=self.ancestors if any(o.reserved or o.used for o in buffer.operations.values()) else (),
            reserve_seq=buffer.reserve_seq,
            closes_step=self.may_close_step,
        )

    def take(self) -> RunWrite:
        """Take what is buffered as a write value, to be applied with a decision."""
        buffer, self._buffer = self._buffer, Buffer()
        return self.write_of(buffer)

    def put_back(self, write: RunWrite) -> None:
        """Return rows whose decision was refused; a final checkpoint of an end that did not happen is dropped."""
        self._buffer.operations = {**{o.position: o for o in write.operations}, **self._buffer.operations}
        self._buffer.events = [*write.events, *self._buffer.events]
        self._buffer.artifacts = [*write.artifacts, *self._buffer.artifacts]
        self._buffer.checkpoints = [c for c in write.checkpoints if not c.is_final] + self._buffer.checkpoints

    async def persist(self, write: RunWrite) -> WriteOutcome:
        """Hand a write in until the store has answered. Applying it twice changes nothing, so a lost answer is asked again.

        The attempt does not fail because a connection did (C88); if the store stays away past the lease, the answer is
        `STALE` in the end.
        """
        delay_ms = 20.0
        while True:
            try:
                return await self._env.store.write(write)
            except (StoreUnavailable, StoreBusy):
                await self._env.clock.sleep(delay_ms)
                delay_ms = min(delay_ms * 2, 1000.0)

    def unstored(self) -> list[Operation]:
        """Return the answers of calls that never reached the store: what this holder knows and nobody else does."""
        return [o for o in self._buffer.operations.values() if o.kind is OperationKind.CALL and o.has_result]

    # -- the drain of a cancel -----------------------------------------------------------------------------------------

    async def drain(self) -> bool:
        """Store the evidence that waits. Returns False if the drain is closed: somebody else settles the run."""
        try:
            await self.flush()
            while self._buffer:  # what arrived during the write
                await self.flush()
        except FenceLost:
            return False
        return True


def _reserves(operation: Operation) -> bool:
    return bool(operation.reserved) and not operation.has_result


def _over_budget(operation: Operation) -> BudgetExceeded:
    return BudgetExceeded(
        f"run {operation.run_id}: {operation.kind} {operation.name!r} needs {dict(operation.reserved)}, which is more than "
        "what is left of its budget or of an ancestor's; nothing was dispatched",
        position=operation.position,
        needs=dict(operation.reserved),
    )
