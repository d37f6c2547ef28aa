"""What a dialect's connection offers to the aggregates: queries by name, with parameters by name.

Two kinds of batch exist besides the plain calls. `run_many` and `many_of` take one mapping per row; a dialect across a
network sends them as arrays in one statement, an embedded one runs the statement for each row. Either way their number of
round trips does not depend on the number of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quiesce.domain.writes import Counters

Row = tuple[Any, ...]
"""One row as the driver returns it; only the mapping functions of the aggregates look inside."""

Params = Mapping[str, object]


class Queries(Protocol):
    """Named queries inside one transaction. Errors are the driver's own; the store translates them where it commits."""

    def lend(self) -> object:
        """Return the driver's connection, on which nobody but the store ends the transaction from now on."""

    def one(self, query: str, /, **params: object) -> Row | None:
        """Return the first row, or None."""

    def many(self, query: str, /, **params: object) -> list[Row]:
        """Return all rows. A list among the parameters is one value: an array, or JSON text."""

    def run(self, query: str, /, **params: object) -> int:
        """Run a change; return the number of rows changed."""

    def run_many(self, query: str, rows: Sequence[Params], /) -> int:
        """Run a change for each row of parameters, in their order; return the number of rows changed."""

    def many_of(self, query: str, rows: Sequence[Params], /) -> list[Row]:
        """Return all rows found for any row of parameters."""


class Meter:
    """Keeps the counters of a store. Each connection counts for itself and reports once per transaction."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._lock = threading.Lock()

    def add(
        self, statements: Mapping[str, int], *, commits: int = 0, writes: int = 0, transactions: int = 0, reads: int = 0
    ) -> None:
        """Add what one transaction did. Safe from any thread."""
        with self._lock:
            counters = self.counters
            counters.commits += commits
            counters.writes += writes
            counters.transactions += transactions
            counters.reads += reads
            for name, count in statements.items():
                counters.statements += count
                counters.by_name[name] = counters.by_name.get(name, 0) + count
