"""One transaction of a SQL store: the aggregates over its queries, its one instant, and what it rings.

Knows nothing of how it is committed. `now` is read when it is first asked for and stays the same from then on.
"""

from __future__ import annotations

from collections.abc import Callable

from quiesce.domain.instant import Instant
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.stores.apply import apply_writes
from quiesce.stores.sql.checkpoints import SqlCheckpoints
from quiesce.stores.sql.evidence import SqlEvidence
from quiesce.stores.sql.operations import SqlOperations
from quiesce.stores.sql.outbox import SqlOutbox
from quiesce.stores.sql.queries import Queries
from quiesce.stores.sql.runs import SqlRuns
from quiesce.stores.sql.streams import SqlStreams
from quiesce.stores.sql.terminal import SqlTerminal
from quiesce.stores.sql.threads import SqlThreads
from quiesce.stores.sql.workers import SqlWorkers


class SqlTransaction:
    """Implements `ports.store.Transaction`."""

    def __init__(self, queries: Queries, read_clock: Callable[[], Instant]) -> None:
        self._read_clock = read_clock
        self._now: Instant | None = None
        self.runs = SqlRuns(queries)
        self.threads = SqlThreads(queries)
        self.workers = SqlWorkers(queries)
        self.operations = SqlOperations(queries)
        self.streams = SqlStreams(queries)
        self.checkpoints = SqlCheckpoints(queries)
        self.terminal = SqlTerminal(queries)
        self.evidence = SqlEvidence(queries)
        self.outbox = SqlOutbox(queries)
        self.rung: dict[str, None] = {}

    @property
    def now(self) -> Instant:
        """See the port."""
        if self._now is None:
            self._now = self._read_clock()
        return self._now

    def apply(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        (outcome,) = apply_writes(self, [write])
        return outcome

    def ring(self, topic: str) -> None:
        """See the port. A topic rings once per transaction."""
        self.rung[topic] = None
