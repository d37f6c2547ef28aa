"""Runs and all that belongs to them, on the other stores as on the oracle."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from quiesce.domain.boundary import Reason
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import Fence, Position
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import EffectPolicy, OperationStatus
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import Draft, EventKind
from quiesce.domain.threads import Thread
from quiesce.domain.workers import AttemptEnd, Worker
from quiesce.domain.writes import RunWrite
from quiesce.ports.store import Transaction
from quiesce.testing.conformance import everything_of
from quiesce.testing.samples import AGENT, TENANT, Samples
from tests.contract.differential import SideBySide, Url, compare, postgres_url, sqlite_url

numbers = st.integers(0, 5)
moments = st.integers(-1, 3).map(lambda n: 100 * n)
"""Milliseconds from now, coarse, so that one instant is often exactly another."""
positions = st.sampled_from(["1", "2"])
KINDS = ("events", "checkpoint", "artifact", "consumed", "reserve")
amounts = st.dictionaries(st.sampled_from(["calls", "tokens"]), st.integers(0, 3), max_size=2)


class Differential(SideBySide):
    """Runs and what belongs to them."""

    def __init__(self, url: Url) -> None:
        super().__init__(url)
        self.make = Samples()
        self.runs: list[Run] = []
        self.workers: list[Worker] = []
        self.now = self.make.now

    @initialize()
    def open(self) -> None:
        self.open_stores()
        self.start_worker(lease_ms=1000)
        self.submit(limits={"calls": 3}, parent=None, deadline=None)
        self.submit(limits=None, parent=0, deadline=100)
        self.claim(number=0, limit=2)

    def pick(self, number: int) -> Run:
        """Return a run as it is stored now."""
        run = self.runs[number % len(self.runs)]
        return self.stores[0].run(run.id)

    def saved(self, run: Run) -> None:
        def fn(tx: Transaction) -> None:
            tx.runs.lock(run.id)
            tx.runs.save(run)

        self.both(fn)

    @precondition(lambda self: len(self.runs) < 5)
    @rule(limits=st.none() | amounts, parent=st.none() | numbers, deadline=st.none() | moments)
    def submit(self, limits: dict[str, int] | None, parent: int | None, deadline: int | None) -> None:
        above = self.pick(parent) if parent is not None else None
        run = self.make.run(limits=limits or {})
        if above is not None:
            run = replace(run, parent_id=above.id, root_id=above.root_id)
        if deadline is not None:
            run = replace(run, deadline_at=after_ms(self.now, deadline))
        thread = Thread(id=run.thread_id, tenant=run.tenant, created_at=run.created_at)

        def fn(tx: Transaction) -> None:
            tx.threads.insert(thread)
            tx.runs.insert(run)
            tx.streams.open(run.id)

        self.both(fn)
        self.runs.append(run)

    @rule(lease_ms=moments)
    def start_worker(self, lease_ms: int) -> None:
        worker = replace(self.make.worker(), lease_expires_at=after_ms(self.now, lease_ms))
        self.both(lambda tx: tx.workers.insert(worker))
        self.workers.append(worker)

    @rule(number=numbers, lease_ms=moments)
    def renew(self, number: int, lease_ms: int) -> None:
        worker = self.workers[number % len(self.workers)]
        self.both(lambda tx: tx.workers.renew(worker.id, expires_at=after_ms(self.now, lease_ms)))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(number=numbers, is_removed=st.booleans())
    def retire(self, number: int, is_removed: bool) -> None:
        worker = self.workers[number % len(self.workers)]
        self.both(lambda tx: tx.workers.remove(worker.id) if is_removed else tx.workers.drain(worker.id))

    @rule(duration_ms=st.sampled_from([100, 200]))
    def wait(self, duration_ms: int) -> None:
        self.now = after_ms(self.now, duration_ms)

    @rule(number=numbers, limit=st.integers(1, 3))
    def claim(self, number: int, limit: int) -> None:
        worker = self.workers[number % len(self.workers)]

        def fn(tx: Transaction) -> list[Run]:
            taken = [run.claimed(worker.id) for run in tx.runs.claimable(agents=[AGENT], now=self.now, limit=limit)]
            tx.runs.save_many(taken)
            for run in taken:
                tx.runs.open_attempt(self.make.attempt(run, number=run.attempt))
            return taken

        self.both(fn)

    @rule(number=numbers, due_ms=st.none() | moments, end=st.sampled_from(AttemptEnd))
    def park(self, number: int, due_ms: int | None, end: AttemptEnd) -> None:
        run = self.pick(number)
        if run.status is RunStatus.RUNNING:
            due = None if due_ms is None else after_ms(self.now, due_ms)
            wait = Wait(kind=WaitKind.TIMER, subject="1", position=Position("1"), due_at=due)
            self.saved(run.parked((wait,)))
            self.both(lambda tx: tx.runs.close_attempt(run.id, run.attempt, end, self.now))

    @rule(number=numbers, settle_ms=moments, frozen=st.none() | st.integers(0, 4))
    def cancel(self, number: int, settle_ms: int, frozen: int | None) -> None:
        run = self.pick(number)
        occurrence = self.make.occurrence(run)
        if run.is_active:
            self.saved(run.fenced_for_settlement(settle_at=after_ms(self.now, settle_ms)))
        self.both(lambda tx: tx.terminal.add_occurrence(occurrence))
        if frozen is not None:
            self.both(lambda tx: tx.streams.freeze(run.id, frozen, exact=frozen % 2 == 0))

    @rule(number=numbers)
    def settle(self, number: int) -> None:
        run = self.pick(number)
        if run.status is RunStatus.SETTLING:
            occurrence = self.make.occurrence(run, reason=Reason.DEADLINE)
            self.both(lambda tx: tx.terminal.add_occurrence(occurrence))
            stored = self.both(lambda tx: tx.terminal.occurrence(run.id))
            assert stored is not None
            outcome = self.make.outcome(stored)
            previous = self.both(lambda tx: tx.terminal.last_of_thread(run.thread_id))
            receipt = self.make.receipt(run, stored, outcome, previous=previous)
            self.both(lambda tx: (tx.terminal.add_outcome(outcome), tx.terminal.add_receipt(receipt)))
            self.saved(run.ended(RunStatus.CANCELLED, self.now))

    @rule(
        number=st.integers(0, 1),
        position=positions,
        status=st.sampled_from(OperationStatus),
        reserved=amounts,
        used=amounts,
    )
    def act(self, number: int, position: str, status: OperationStatus, reserved: dict[str, int], used: dict[str, int]) -> None:
        run = self.pick(number)
        probe = EffectPolicy.PROBE
        row = self.make.operation(run, position, status=status, policy=probe, reserved=reserved, used=used)
        self.hand_in(run, RunWrite(run_id=run.id, fence=run.fence, operations=(row,)))

    @rule(
        number=numbers,
        age=st.sampled_from([0, 0, 0, 1, 2]),
        rows=st.sets(st.sampled_from(KINDS), min_size=1, max_size=3),
        position=positions,
        closes_step=st.booleans(),
    )
    def write(self, number: int, age: int, rows: set[str], position: str, closes_step: bool) -> None:
        run = self.pick(number)
        write = RunWrite(run_id=run.id, fence=Fence(run.fence - age), closes_step=closes_step)
        if "events" in rows:
            last = self.stores[0].read(lambda tx: tx.streams.read(run.id, after=0, limit=100))
            drafts = [Draft(channel="c", payload=canonical(n), kind=kind) for n, kind in enumerate(EventKind)][: age + 1]
            write = replace(write, events=self.make.events(run, *drafts, after=last[-1] if last else None))
        if "checkpoint" in rows:
            parent = self.stores[0].read(lambda tx: tx.checkpoints.last(run.id))
            following = self.make.checkpoint(run, number=parent.number + 1 if parent else 1, parent=parent)
            write = replace(write, checkpoints=(following,))
        if "artifact" in rows:
            write = replace(write, artifacts=(self.make.artifact(run, position),))
        if "consumed" in rows:
            write = replace(write, consumed=(Position(position),))
        if "reserve" in rows:
            write = replace(write, reserve_seq=number)
        self.hand_in(run, write)

    def hand_in(self, run: Run, write: RunWrite) -> None:
        """Write it twice at once, as a holder may whose first answer was lost."""
        ancestors = () if run.parent_id is None else (run.parent_id,)
        drawn = replace(write, ancestors=ancestors)
        expected, found = (store.write(drawn, drawn) for store in self.stores)
        assert found == expected

    @rule(number=numbers, position=positions)
    def decide(self, number: int, position: str) -> None:
        run = self.pick(number)
        evidence, message = self.make.evidence(run, position), self.make.message(run)
        self.both(lambda tx: tx.evidence.add(evidence))
        self.both(lambda tx: tx.outbox.append(message))

    @rule(limit=st.integers(1, 4))
    def deliver(self, limit: int) -> None:
        def fn(tx: Transaction) -> list[OutboxMessage]:
            messages = tx.outbox.pending(limit=limit)
            for message in messages[:1]:
                tx.outbox.mark_delivered(message.id, self.now)
            return messages

        self.both(fn)

    @rule(limit=st.integers(1, 4), status=st.sampled_from(RunStatus), before=numbers)
    def look(self, limit: int, status: RunStatus, before: int) -> None:
        bound = self.pick(before).id
        self.both(lambda tx: tx.runs.next_due(now=self.now))
        self.both(lambda tx: tx.workers.expired(now=self.now, limit=limit))
        self.both(lambda tx: tx.runs.page(tenant=TENANT, statuses=[status], before=bound, limit=limit))
        self.both(lambda tx: tx.runs.page(tenant=TENANT, statuses=[], before=bound, limit=limit))
        self.both(lambda tx: _by_id(tx.runs.unsettled(now=self.now, limit=100)))
        self.both(lambda tx: _by_id(tx.runs.overdue(now=self.now, limit=100)))

    @invariant()
    def both_hold_the_same(self) -> None:
        def everything(tx: Transaction) -> list[object]:
            return [
                everything_of(tx, [run.id for run in self.runs]),
                [tx.workers.get(worker.id) for worker in self.workers],
                [_derived(tx, run) for run in self.runs],
            ]

        self.both_read(everything)


def _by_id(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.id)


def _derived(tx: Transaction, run: Run) -> list[object]:
    """Return what a store computes about a run."""
    return [
        tx.runs.children(run.id),
        tx.runs.active_children(run.id),
        tx.runs.of_thread(run.thread_id, limit=5),
        tx.checkpoints.last(run.id),
        tx.streams.count_state_bearing(run.id, after=1),
        sorted(tx.operations.unresolved([run.id]), key=lambda o: o.position),
        tx.terminal.last_of_thread(run.thread_id),
    ]


def test_sqlite_does_what_the_oracle_does() -> None:
    compare(Differential, sqlite_url, examples=30)


def test_postgres_does_what_the_oracle_does(postgres_server: str) -> None:
    compare(Differential, postgres_url(postgres_server), examples=12)
