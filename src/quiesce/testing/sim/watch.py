"""What must hold after every commit, and at every contact with the outside: checked there and then, from the rows alone.

The watch remembers the rows of the last commit and looks only at those that were replaced, so it costs little. It judges
by rules of its own, written down again from the design and not taken from the code under test: a watch that asked
`Run.admits` whether a write was admissible would be as wrong as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quiesce.domain import operations, runs
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import Position, RunId, WorkerId
from quiesce.domain.instant import Instant
from quiesce.domain.limits import Limits
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind, OperationStatus
from quiesce.domain.runs import Durability, Run, RunStatus
from quiesce.domain.streams import EventKind, StreamState, first_chain, gap_range, next_chain
from quiesce.domain.workers import Worker
from quiesce.ports.clock import Clock
from quiesce.stores.memory.state import State
from quiesce.stores.memory.store import CommitHooks, MemoryStore
from quiesce.testing.sim.outside import Request

_FOR_LIFE: Final = (
    "id",
    "thread_id",
    "number",
    "tenant",
    "subject",
    "key",
    "fingerprint",
    "agent",
    "input",
    "bindings",
    "parent_id",
    "root_id",
    "deadline_at",
    "durability",
    "visibility",
    "created_at",
)
_OPEN: Final = (OperationStatus.DISPATCHED, OperationStatus.UNKNOWN)


class WatchedStore(MemoryStore):
    """The memory store, with its rows shown to whoever judges them."""

    def __init__(self, clock: Clock, watch: Watch, limits: Limits) -> None:
        super().__init__(clock, limits=limits, hooks=CommitHooks(after_commit=lambda: watch.look(self._state)))

    @property
    def state(self) -> State:
        """The rows as they are."""
        return self._state

    def now(self) -> Instant:
        """Return the instant by which leases and timers are judged."""
        return self._clock.now()


class Watch:
    """Looks at every commit. `fail` is told of the first thing that does not hold; `mark` of what was seen to happen."""

    def __init__(self, clock: Clock, fail: Callable[[str], None], mark: Callable[[str], None]) -> None:
        self.commits = 0
        self.note: Callable[[str], None] | None = None
        """Is told what each commit has changed, if anybody wants to know."""
        self._clock = clock
        self._fail = fail
        self._mark = mark
        self._state = State()
        self._runs: dict[RunId, Run] = {}
        self._workers: dict[WorkerId, Worker] = {}
        self._operations: dict[RunId, dict[Position, Operation]] = {}
        self._streams: dict[RunId, StreamState] = {}
        self._announced: dict[tuple[str, int], int] = {}
        """(key, try) → the commit of its dispatch mark."""
        self._tries: dict[str, int] = {}
        self._ended: dict[RunId, int] = {}
        """Run → the commit of its C."""
        self._established: set[RunId] = set()
        self._published: set[RunId] = set()
        self._effects: dict[RunId, int] = {}
        self._answered: dict[tuple[RunId, bytes], int] = {}
        """(run, arguments) → the commit that stored the result of the step or call."""

    # -- the outside -------------------------------------------------------------------------------------------------------

    def tries_announced(self, key: str) -> int:
        """Return how many tries under a key have their durable dispatch mark."""
        return self._tries.get(key, 0)

    def see_request(self, request: Request) -> None:
        """A request leaves: its dispatch mark is durable (RR-09), and was so before an end of its run (RR-29)."""
        self._tell(f"  request {request.key} try {request.try_number}")
        announced = self._announced.get((request.key, request.try_number))
        what = f"try {request.try_number} of {request.key} ({request.policy})"
        self.require(announced is not None, f"{what} left without its durable dispatch mark")
        self.require(request.key == f"{request.run_id}:{request.position}", f"{what}: one key for one position")
        ended = self._ended.get(request.run_id)
        if ended is not None and announced is not None:
            self.require(announced < ended, f"{what} left after the end of its run was accepted")
            self._mark("in flight at C")
        run = self._state.runs.get(request.run_id)
        if run is not None and run.status is RunStatus.RUNNING and self._tries[request.key] > request.try_number:
            self._mark("request of a stale holder")

    def see_step(self, run_id: RunId, label: str, before: str) -> None:
        """A step begins: not behind an operation whose end was stored after the stop of its run (C09).

        One that was stored before the stop may be followed by a step after it, until the holder has heard. So may any, where
        results are not stored at once.
        """
        run = self._state.runs.get(run_id)
        ended = self._ended.get(run_id)
        if run is None or ended is None or run.durability is not Durability.SYNC:
            return
        stored = max(self._answered.get((run_id, arguments), 0) for arguments in _forms(before))
        self.require(stored <= ended, f"run {run_id}: step {label} began behind {before}, which ended after the stop")
        self._mark("step begun behind the stop")

    def see_effect(self, request: Request) -> None:
        """Something happens outside: at most once where that is promised (C56), and paid for (RR-19)."""
        self._tell(f"  effect under {request.key} by try {request.try_number}")
        effects = self._effects_under(request)
        if request.policy is not EffectPolicy.PURE:
            self.require(effects == 1, f"{request.key} ({request.policy}) happened {effects} times")
        run = self._state.runs.get(request.run_id)
        while run is not None:
            done = self._effects[run.id] = self._effects.get(run.id, 0) + 1
            paid = run.budget.of("tool_calls")
            self.require(paid.used + paid.reserved >= done, f"run {run.id}: {done} effects, {paid.used}+{paid.reserved} paid")
            run = self._state.runs.get(run.parent_id) if run.parent_id else None

    def _effects_under(self, request: Request) -> int:
        key = RunId(f"effects under {request.key}")
        self._effects[key] = self._effects.get(key, 0) + 1
        return self._effects[key]

    # -- a commit ----------------------------------------------------------------------------------------------------------

    def look(self, state: State) -> None:
        """Judge what a commit has changed."""
        self.commits += 1
        self._state = state
        now = self._clock.now()
        for run in state.runs:
            old = self._runs.get(run.id)
            if run.id not in self._published:
                self._see_operations(run.id)
                self._see_stream(run.id)
            if old is not run:
                self._tell(f"run {run.id} {run.status} fence={run.fence} attempt={run.attempt} {run.worker_id}")
                self._see_run(old, run, now)
                self._runs[run.id] = run
            if run.id not in self._published:
                self._see_boundary(run)
        self._workers = state.workers.as_dict()

    def require(self, holds: bool, text: str) -> None:
        """Report what does not hold."""
        if not holds:
            self._fail(text)

    def _tell(self, text: str) -> None:
        if self.note is not None:
            self.note(text)

    # -- runs --------------------------------------------------------------------------------------------------------------

    def _see_run(self, old: Run | None, run: Run, now: Instant) -> None:
        if old is None:
            self.require(run.status is RunStatus.PENDING and run.fence == 0, f"run {run.id} begins as {run.status}")
            self.require(run.parent_id is None or run.parent_id < run.id, "a child's id is greater than its parent's")
            return
        for name in _FOR_LIFE:
            self.require(getattr(old, name) == getattr(run, name), f"run {run.id}: {name} has changed")
        self.require(old.status not in runs.TERMINAL or _has_same_end(old, run), f"terminal run {run.id} was written to")
        self._see_status(old, run)
        self._see_holder(old, run, now)
        if old.budget != run.budget:
            self._see_budget(old, run)

    def _see_status(self, old: Run, run: Run) -> None:
        if old.status is run.status:
            return
        direct = runs.TRANSITIONS[old.status]
        through = runs.TRANSITIONS[RunStatus.SETTLING] if RunStatus.SETTLING in direct else frozenset[RunStatus]()
        self.require(run.status in direct | through, f"run {run.id} went from {old.status} to {run.status}")
        if run.status is RunStatus.WAITING:
            for wait in run.waits:
                self._mark(f"parked: {wait.kind}")

    def _see_holder(self, old: Run, run: Run, now: Instant) -> None:
        """One holder at a time: a claim raises the fence, and takes from nobody whose lease holds (RR-03, RR-04)."""
        self.require(run.fence >= old.fence, f"run {run.id}: fence fell from {old.fence} to {run.fence}")
        if run.attempt == old.attempt:
            is_same = run.worker_id in (old.worker_id, None)
            self.require(is_same, f"run {run.id} changed hands without a claim")
            return
        self.require(run.attempt == old.attempt + 1 and run.fence == old.fence + 1, f"run {run.id}: a claim raises by one")
        if old.status is RunStatus.RUNNING and old.worker_id is not None:
            holder = self._workers.get(old.worker_id)
            is_live = holder is not None and now < holder.lease_expires_at
            self.require(not is_live, f"run {run.id} was taken from a live holder")
            self._mark("taken over")
        still_open = [a.number for a in self._state.attempts.of(run.id) if a.end is None]
        self.require(still_open == [run.attempt], f"run {run.id}: open attempts {still_open}")

    def _see_budget(self, old: Run, run: Run) -> None:
        children = [r for r in self._state.runs if r.parent_id == run.id]
        parent = self._state.runs.get(run.parent_id) if run.parent_id else None
        for was in old.budget.allowances:
            now = run.budget.of(was.unit)
            self.require(now.limit == was.limit, f"run {run.id}: the limit of {was.unit} has changed")
            self.require(now.used >= was.used, f"run {run.id}: used {was.unit} fell from {was.used} to {now.used}")
        for a in run.budget.allowances:
            self.require(a.reserved >= 0, f"run {run.id}: {a}")
            self.require(a.limit is None or a.used + a.reserved <= a.limit, f"run {run.id} is over its limit: {a}")
            below = [c.budget.of(a.unit) for c in children]
            is_covered = a.used >= sum(b.used for b in below) and a.reserved >= sum(b.reserved for b in below)
            self.require(is_covered, f"run {run.id} carries less {a.unit} than its children: {a}, {below}")
            if parent is not None:
                above = parent.budget.of(a.unit)
                is_covered = above.used >= a.used and above.reserved >= a.reserved
                self.require(is_covered, f"run {run.id} used more {a.unit} than was taken from its parent: {a}, {above}")

    # -- operations --------------------------------------------------------------------------------------------------------

    def _see_operations(self, run_id: RunId) -> None:
        seen = self._operations.setdefault(run_id, {})
        for operation in self._state.operations.of(run_id):
            old = seen.get(operation.position)
            if old is not operation:
                seen[operation.position] = operation
                self._tell(f"  {operation.kind} {operation.name} {operation.key} {operation.status} tries={len(operation.tries)}")
                self._see_operation(old, operation)

    def _see_operation(self, old: Operation | None, new: Operation) -> None:
        what = f"{new.kind} {new.name} at {new.key}"
        is_same = old is not None and old.status is new.status
        self.require(is_same or _may_become(old, new), f"{what} went from {old.status if old else None} to {new.status}")
        begins = new.status in (OperationStatus.SEALED, OperationStatus.DISPATCHED)
        is_late = new.run_id in self._ended
        self.require(not (begins and is_late and not is_same), f"{what}: {new.status} after the end of its run was accepted")
        self.require(new.run_id not in self._established, f"{what} changed after P")
        if new.has_result and (old is None or not old.has_result):
            self._answered[new.run_id, new.arguments] = self.commits
        if old is not None:
            facts = ("kind", "name", "fingerprint", "arguments", "policy")
            self.require(all(getattr(old, f) == getattr(new, f) for f in facts), f"{what}: what it is has changed")
            self.require(len(new.tries) >= len(old.tries), f"{what}: tries were forgotten")
            if old.has_result:
                is_kept = (old.result, old.result_kind, old.used) == (new.result, new.result_kind, new.used)
                self.require(is_kept, f"{what}: a committed result was rewritten")
        if new.kind is OperationKind.CALL and new.status is OperationStatus.DISPATCHED:
            self._announced.setdefault((new.key, len(new.tries)), self.commits)
            self._tries[new.key] = max(self._tries.get(new.key, 0), len(new.tries))

    # -- streams -----------------------------------------------------------------------------------------------------------

    def _see_stream(self, run_id: RunId) -> None:
        new = self._state.streams.get(run_id)
        old = self._streams.get(run_id)
        if new is old or new is None:
            return
        self._streams[run_id] = new
        seq, chain = (old.stored_seq, old.chain) if old else (0, first_chain(run_id))
        if old is not None and old.frozen_seq is not None:
            self.require(new.frozen_seq == old.frozen_seq, f"run {run_id}: F moved from {old.frozen_seq} to {new.frozen_seq}")
            self.require(new.stored_seq <= old.frozen_seq, f"run {run_id}: event {new.stored_seq} was stored beyond F")
        events = self._state.events.of(run_id)
        while seq < new.stored_seq:
            number = next((n for n in range(seq + 1, new.stored_seq + 1) if events.get(n) is not None), None)
            event = None if number is None else events.get(number)
            if event is None:
                self._fail(f"run {run_id}: the ledger says {new.stored_seq} and holds {seq}")
                return
            is_gap = event.kind is EventKind.GAP and gap_range(event) == (seq + 1, event.seq - 1)
            self.require(is_gap or event.seq == seq + 1, f"run {run_id}: {event.kind} {event.seq} behind {seq}")
            chain = next_chain(chain, event.seq, event.kind, event.payload)
            self.require(event.chain == chain, f"run {run_id}: the chain breaks at {event.seq}")
            seq = event.seq
            self._mark(f"event: {event.kind}")
        self.require(chain == new.chain, f"run {run_id}: the ledger's chain is not that of its events")

    # -- the boundary ------------------------------------------------------------------------------------------------------

    def _see_boundary(self, run: Run) -> None:
        """C before F before P before T, each of its own run (TR-58, TR-59)."""
        state = self._state
        c, p, t = state.occurrences.get(run.id), state.outcomes.get(run.id), state.receipts.get(run.id)
        is_ending = run.status is RunStatus.SETTLING or run.status in runs.TERMINAL
        self.require((c is not None) == is_ending, f"run {run.id} is {run.status}, and C {'is' if c else 'is not'} recorded")
        self.require((t is not None) == (run.status in runs.TERMINAL), f"run {run.id}: {run.status} and T do not agree")
        if c is None:
            return
        self._ended.setdefault(run.id, self.commits)
        stream = state.streams.get(run.id)
        if p is not None:
            is_frozen = stream is not None and stream.frozen_seq is not None
            self.require(is_frozen, f"run {run.id}: P is recorded and F is not")
            self.require((p.run_id, p.occurrence_id) == (run.id, c.id), f"run {run.id}: P does not name its C")
            self._established.add(run.id)
        if t is not None:
            is_own = p is not None and (t.run_id, t.occurrence_id, t.outcome_id) == (run.id, c.id, p.id)
            self.require(is_own and t.cause is c.cause, f"run {run.id}: T does not name its own C and P")
            self.require(t.status is run.status, f"run {run.id} is {run.status}, its receipt says {t.status}")
            self.require(f"terminal:{run.id}" in state.outbox, f"run {run.id}: its end is not in the outbox")
            expected = self._unresolved_below(run.id)
            found = {str(o["key"]) for o in t.unresolved}
            self.require(found == expected, f"run {run.id}: unresolved are {expected}, the receipt lists {found}")
            self._published.add(run.id)

    def _unresolved_below(self, run_id: RunId) -> set[str]:
        """Return the keys of calls of a tree whose try has left, with nothing stored that says what came of it (TR-64)."""
        tree, found = [run_id], set[str]()
        while tree:
            here = tree.pop()
            tree += [r.id for r in self._state.runs if r.parent_id == here]
            found |= {o.key for o in self._state.operations.of(here) if _is_unresolved(o)}
        return found


def _forms(label: str) -> tuple[bytes, bytes]:
    """Return what the act of a label has as its arguments on record: as a step, and as a call."""
    return canonical({"args": [label], "kwargs": {}}), canonical({"label": label})


def _may_become(old: Operation | None, new: Operation) -> bool:
    """Return whether one commit may lead from one row to the other: by one transition, or by two that it carries at once.

    A result and its consumption may be stored together; a probe's "absent" and the next dispatch, too.
    """
    legal = operations.TRANSITIONS[old.status if old else None]
    if new.status is OperationStatus.CONSUMED:
        return new.status in legal or OperationStatus.COMMITTED in legal
    is_probed = new.policy is EffectPolicy.PROBE and old is not None and old.status is OperationStatus.UNKNOWN
    return new.status in legal or (is_probed and new.status is OperationStatus.DISPATCHED)


def _is_unresolved(operation: Operation) -> bool:
    is_effect = operation.kind is OperationKind.CALL and operation.policy is not EffectPolicy.PURE
    return is_effect and operation.status in _OPEN


def _has_same_end(old: Run, new: Run) -> bool:
    """Return whether a terminal run is as it was, but for units that its descendants still move."""
    names: Mapping[str, object] = {f: getattr(old, f) for f in ("status", "fence", "worker_id", "attempt", "waits", "ended_at")}
    return all(getattr(new, name) == value for name, value in names.items())
