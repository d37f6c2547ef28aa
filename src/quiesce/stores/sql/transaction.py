"""One transaction of a SQL store: the aggregates over its queries, its one instant, and what it rings.

Knows nothing of how it is committed. `now` is read when it is first asked for and stays the same from then on;
`read_clock` reads again each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiesce.domain.instant import Instant
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.stores.apply import apply_writes
from quiesce.stores.sql.checkpoints import SqlCheckpoints
from quiesce.stores.sql.commands import SqlCommands
from quiesce.stores.sql.continuations import SqlContinuations
from quiesce.stores.sql.evidence import SqlEvidence
from quiesce.stores.sql.intents import SqlAdmissions, SqlIntents
from quiesce.stores.sql.interactions import SqlInteractions
from quiesce.stores.sql.mailbox import SqlMailbox
from quiesce.stores.sql.operations import SqlOperations
from quiesce.stores.sql.outbox import SqlOutbox
from quiesce.stores.sql.queries import Queries
from quiesce.stores.sql.runs import SqlRuns
from quiesce.stores.sql.schedules import SqlSchedules
from quiesce.stores.sql.streams import SqlStreams
from quiesce.stores.sql.terminal import SqlTerminal
from quiesce.stores.sql.threads import SqlThreads
from quiesce.stores.sql.workers import SqlWorkers


class SqlTransaction:
    """Implements `ports.store.Transaction`."""

    def __init__(
        self, queries: Queries, read_clock: Callable[[], Instant], *, read_now: Callable[[], Instant] | None = None
    ) -> None:
        """Run on these queries. `read_now` gives the transaction's instant where that is known without reading the clock."""
        self._queries = queries
        self._read_clock = read_clock
        self._read_now = read_now or read_clock
        self._now: Instant | None = None
        self.runs = SqlRuns(queries)
        self.threads = SqlThreads(queries)
        self.continuations = SqlContinuations(queries)
        self.workers = SqlWorkers(queries)
        self.operations = SqlOperations(queries)
        self.streams = SqlStreams(queries)
        self.checkpoints = SqlCheckpoints(queries)
        self.terminal = SqlTerminal(queries)
        self.evidence = SqlEvidence(queries)
        self.outbox = SqlOutbox(queries)
        self.intents = SqlIntents(queries)
        self.commands = SqlCommands(queries)
        self.admissions = SqlAdmissions(queries)
        self.mailbox = SqlMailbox(queries)
        self.interactions = SqlInteractions(queries)
        self.schedules = SqlSchedules(queries)
        self.rung: dict[str, None] = {}

    @property
    def now(self) -> Instant:
        """See the port."""
        if self._now is None:
            self._now = self._read_now()
        return self._now

    @property
    def connection(self) -> Any:
        """See the port."""
        return self._queries.lend()

    def read_clock(self) -> Instant:
        """See the port."""
        now = self.now
        return max(now, self._read_clock())

    def apply(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        (outcome,) = apply_writes(self, [write])
        return outcome

    def ring(self, topic: str) -> None:
        """See the port. A topic rings once per transaction."""
        self.rung[topic] = None
