"""The SQLite store: one writer thread, one reader thread, one file.

Every write of the process goes through the writer thread, so a commit is shared by all that has gathered; decisions and
write values are applied in the order in which they were handed in. Reads see a snapshot of their own and wait for nobody.
Other processes write to the same file: they are waited for up to the busy timeout, and noticed by the file's data version.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from quiesce.domain.errors import InvariantBroken, StoreReadOnly, StoreUnavailable
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.clock import Clock
from quiesce.ports.store import Capabilities, Transaction
from quiesce.stores.notifier import LocalNotifier
from quiesce.stores.sql.group_writer import DecisionJob, GroupWriter, Job, WriteJob
from quiesce.stores.sql.queries import Meter
from quiesce.stores.sql.transaction import SqlTransaction
from quiesce.stores.sqlite.clock import MachineTime
from quiesce.stores.sqlite.connection import SqliteQueries
from quiesce.stores.sqlite.opening import open_file
from quiesce.stores.sqlite.outcomes import translated
from quiesce.stores.sqlite.settings import SqliteSettings
from quiesce.stores.sqlite.writer import SqliteWriter

T = TypeVar("T")

_LOOK_MS: Final = 10.0
"""How often the file is asked for commits of other processes while somebody waits on a bell."""
_LOOK_MS_PER_BELL: Final = 0.1
"""A foreign commit rings every bell: with many of them it is looked for less often, so that waking stays cheap."""


class SqliteStore:
    """Implements `ports.store.Store`. Make it on any thread; use it from any number of event loops and threads."""

    def __init__(
        self,
        settings: SqliteSettings,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        machine: MachineTime | None = None,
    ) -> None:
        """Open the file, bring its schema up to date and start the threads. Blocks; raises as `opening.open_file`.

        `clock` replaces the machine's clock; `machine` its readings.
        """
        self.capabilities = Capabilities(
            name="sqlite", survives_process=True, shared_by_processes=True, durability=settings.durability
        )
        self.limits = limits
        self._about = str(settings.path)
        self._meter = Meter()
        self._connection, reading, anchored = open_file(settings, machine or MachineTime())
        self._read_clock = (clock or anchored).now
        self.notifier = LocalNotifier(on_waiting=self._wake)
        self._writing = SqliteWriter(
            self._connection,
            read_clock=self._read_clock,
            notifier=self.notifier,
            meter=self._meter,
            about=self._about,
        )
        self._data_version = self._writing.data_version()
        self._reading = SqliteQueries(reading)
        self._reader = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="quiesce-reader")
        self._writer: GroupWriter[Job] = GroupWriter(
            self._writing.commit, name="quiesce-writer", batch_max=limits.write_batch_max, idle=self._look
        )
        self._is_closed = False

    @property
    def counters(self) -> Counters:
        """See the port."""
        return self._meter.counters

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writer.submit(DecisionJob(fn, future))
        return await future

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._writer.submit(DecisionJob(fn, future))
        return future.result()

    async def write(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self._writer.submit(WriteJob(write, future))
        return await future

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """See the port. Raises `InvariantBroken` if `fn` writes."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, fn)

    async def close(self) -> None:
        """See the port."""
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """The same for a thread without an event loop."""
        self._is_closed = True
        self._writer.close()
        self._reader.shutdown(wait=True)
        self._connection.close()
        self._reading.connection.close()

    def _read(self, fn: Callable[[Transaction], T]) -> T:
        queries = self._reading
        try:
            queries.control("BEGIN")
            try:
                return fn(SqlTransaction(queries, self._read_clock))
            finally:
                queries.control("ROLLBACK")
                statements, _ = queries.take_counts()
                self._meter.add(statements, reads=1)
        except (sqlite3.Error, UnicodeEncodeError) as error:
            known = translated(error, about=self._about)
            if isinstance(known, StoreReadOnly):
                raise InvariantBroken("a read must not write") from error
            raise known from error

    def _wake(self) -> None:
        self._writer.wake()

    def _look(self) -> float | None:
        """Ring every bell if another process has committed; return the seconds until the next look, None for never.

        Runs on the writer thread: the version that its connection sees is not changed by its own commits.
        """
        waiting = self.notifier.waiting
        if not waiting:
            return None
        try:
            version = self._writing.data_version()
        except sqlite3.Error:
            version = self._data_version  # a hint that fails is a hint that is late
        if version != self._data_version:
            self._data_version = version
            self.notifier.ring_all()
        return max(_LOOK_MS, waiting * _LOOK_MS_PER_BELL) / 1000
