"""The store under test, driven without `await`: an event loop of its own, a clock that stands still, and a few short cuts.

Knows only the ports. Contract tests are plain functions, so the suite needs no asyncio plugin and no agreement on one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Self, TypeVar

import pytest

from quiesce.domain.commands import Intent, IntentStatus
from quiesce.domain.deliveries import Command, EventId
from quiesce.domain.ids import RunId
from quiesce.domain.runs import Run
from quiesce.domain.threads import Thread
from quiesce.domain.workers import Worker
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
Opener = Callable[[ManualClock], Awaitable[Store]]


def proves(*ids: str) -> Callable[[F], F]:
    """Say which requirements a test proves; kept in its attribute `proves`."""

    def attach(test: F) -> F:
        test.__dict__["proves"] = ids
        return test

    return attach


class StoreContract:
    """Base of all contracts. The user of the suite supplies the fixture `store`."""

    @pytest.fixture
    def make(self) -> Samples:
        """Builders of records."""
        return Samples()


class StoreUnderTest:
    """A store with an event loop of its own. A context manager: opens the store, and closes it whatever happened."""

    def __init__(self, opener: Opener) -> None:
        self.clock = ManualClock()
        self._opener = opener
        self._runner = asyncio.Runner()
        self._store: Store | None = None

    def __enter__(self) -> Self:
        """Open the store."""
        self._store = self.wait_for(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the store and the loop."""
        try:
            self.wait_for(self.port.close())
        finally:
            self._runner.close()

    @property
    def port(self) -> Store:
        """The store itself."""
        if self._store is None:
            raise RuntimeError("use `with StoreUnderTest(...) as store`")
        return self._store

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the store's loop to its end."""
        return self._runner.run(coroutine)

    def reopen(self) -> None:
        """Close the store and open the same place again."""
        self.wait_for(self.port.close())
        self._store = self.wait_for(self._open())

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Run a decision."""
        return self.wait_for(self.port.transact(fn))

    def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run a read."""
        return self.wait_for(self.port.read(fn))

    def write(self, *writes: RunWrite) -> list[WriteOutcome]:
        """Hand in writes at the same time, so that a store which batches takes them in one commit."""

        async def hand_in() -> list[WriteOutcome]:
            return list(await asyncio.gather(*(self.port.write(w) for w in writes)))

        return self.wait_for(hand_in())

    def add(self, *runs: Run) -> None:
        """Store runs with their threads and empty ledgers."""

        def fn(tx: Transaction) -> None:
            for run in runs:
                tx.threads.insert(Thread(id=run.thread_id, tenant=run.tenant, created_at=run.created_at))
                tx.runs.insert(run)
                tx.streams.open(run.id)

        self.transact(fn)

    def add_workers(self, *workers: Worker) -> None:
        """Store workers."""

        def fn(tx: Transaction) -> None:
            for worker in workers:
                tx.workers.insert(worker)

        self.transact(fn)

    def save(self, *runs: Run) -> None:
        """Lock and save runs."""

        def fn(tx: Transaction) -> None:
            tx.runs.lock_many([run.id for run in runs])
            tx.runs.save_many(runs)

        self.transact(fn)

    def run(self, run_id: RunId) -> Run:
        """Return a stored run."""
        run = self.read(lambda tx: tx.runs.get(run_id))
        if run is None:
            raise LookupError(f"run {run_id} was not added")
        return run

    def stage(self, *intents: Intent) -> None:
        """Store intents with their places."""

        def fn(tx: Transaction) -> None:
            for intent in intents:
                kind = intent.kind
                tx.intents.take_place(intent.tenant, intent.scope, overtakes=kind.overtakes, bound=1000, reserve=0)
                tx.intents.insert(intent)

        self.transact(fn)

    def relay(self, *commands: Command) -> None:
        """Store commands, their targets, and their intents unless these are staged already."""

        def fn(tx: Transaction) -> None:
            for intent in sorted((command.intent for command in commands), key=lambda intent: intent.id):
                if tx.intents.lock(intent.id) is None:
                    tx.intents.insert(intent)
            tx.commands.lock_targets([command.target for command in commands])
            tx.commands.insert_many(commands)
            for command in commands:
                tx.intents.end([command.intent.id], IntentStatus.RELAYED, command.accepted_at)

        self.transact(fn)

    def deliver(self, *commands: Command) -> None:
        """Lock and save commands."""

        def fn(tx: Transaction) -> None:
            tx.commands.lock_many([command.event_id for command in commands])
            tx.commands.save_many(commands)

        self.transact(fn)

    def command(self, event_id: EventId) -> Command:
        """Return a stored command."""
        command = self.read(lambda tx: tx.commands.get(event_id))
        if command is None:
            raise LookupError(f"command {event_id} was not relayed")
        return command

    def everything_of(self, *runs: Run) -> dict[str, object]:
        """Return all that is stored of these runs."""
        return self.read(lambda tx: everything_of(tx, [run.id for run in runs]))

    async def _open(self) -> Store:
        return await self._opener(self.clock)


def everything_of(tx: Transaction, run_ids: Sequence[RunId]) -> dict[str, object]:
    """Return all that a store holds of these runs, read through the ports: equal for equal content on every store."""
    occurrences = tx.terminal.occurrences(run_ids)
    return {
        "runs": [tx.runs.get(i) for i in run_ids],
        "attempts": [tx.runs.attempts(i) for i in run_ids],
        "operations": [tx.operations.of_run(i) for i in run_ids],
        "streams": [tx.streams.state(i) for i in run_ids],
        "events": [_events_of(tx, i) for i in run_ids],
        "checkpoints": [tx.checkpoints.of_run(i) for i in run_ids],
        "occurrences": [occurrences.get(i) for i in run_ids],
        "outcomes": [tx.terminal.outcome(c.id) for i in run_ids if (c := occurrences.get(i)) is not None],
        "receipts": [tx.terminal.receipt(i) for i in run_ids],
        "artifacts": tx.evidence.artifacts(run_ids),
        "evidence": [tx.evidence.of_run(i) for i in run_ids],
    }


def _events_of(tx: Transaction, run_id: RunId) -> list[object]:
    state = tx.streams.state(run_id)
    return [] if state is None else list(tx.streams.read(run_id, after=0, limit=state.stored_seq))
