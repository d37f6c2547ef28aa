"""Two stores side by side: the same calls in any order give the same answers and the same content.

The contracts ask for each promise by itself; this looks for sequences that nobody thought of. Records are made once and
handed to both stores; ids and instants ascend, so a difference found is shrunk to a few lines that can be replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from quiesce.bootstrap import open_store
from quiesce.domain.errors import InvariantBroken
from quiesce.ports.store import Store, Transaction
from quiesce.stores.memory import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.conformance import StoreUnderTest

T = TypeVar("T")
Url = Callable[[Path], str]


class SideBySide(RuleBasedStateMachine):
    """Does the same to an oracle and to another store. What to do are the rules of a subclass."""

    def __init__(self, url: Url) -> None:
        super().__init__()
        self.url = url
        self.directory = tempfile.TemporaryDirectory()

    def open_stores(self) -> None:
        """Open both, empty."""
        url = self.url(Path(self.directory.name))

        async def oracle(clock: ManualClock) -> Store:
            return MemoryStore(clock)

        async def other(clock: ManualClock) -> Store:
            return open_store(url, clock=clock)

        self.stores = [StoreUnderTest(oracle).__enter__(), StoreUnderTest(other).__enter__()]

    def teardown(self) -> None:
        for store in self.stores:
            store.__exit__(None, None, None)
        self.directory.cleanup()

    def both(self, fn: Callable[[Transaction], T]) -> T:
        """Decide the same on both stores; the answers are equal."""
        expected, found = (store.transact(fn) for store in self.stores)
        assert found == expected
        return expected

    def both_may_refuse(self, fn: Callable[[Transaction], T]) -> T | None:
        """The same, where both may find that a rule is broken: then nothing has changed, and the answer is None."""

        def ask(store: StoreUnderTest) -> T | None:
            try:
                return store.transact(fn)
            except InvariantBroken:
                return None

        expected, found = (ask(store) for store in self.stores)
        assert found == expected
        return expected

    def both_read(self, fn: Callable[[Transaction], T]) -> T:
        """Read the same of both stores; the answers are equal."""
        expected, found = (store.read(fn) for store in self.stores)
        assert found == expected
        return expected


def sqlite_url(directory: Path) -> str:
    """Return the URL of a store in this directory."""
    return f"sqlite:///{directory / 'store.db'}?synchronous=normal"


def postgres_url(server: str) -> Url:
    """Return how a schema of this server is named for a directory."""
    mark = "&" if "?" in server else "?"
    return lambda directory: f"{server}{mark}schema=differential_{directory.name}"


def compare(machine: Any, url: Url, *, examples: int) -> None:
    """Play a machine against the store at this URL."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
    )

    class OfThisStore(machine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(url)

    run_state_machine_as_test(OfThisStore, settings=profile)
