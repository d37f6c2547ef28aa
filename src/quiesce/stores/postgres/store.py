"""The PostgreSQL store: decisions in parallel on a pool, write values through one group writer, a listener for bells.

Rows are locked in the order of `ports.store`; claims and sweeps pass over what others hold. Time is the server's, so leases
and timers of all machines are judged by one clock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

import psycopg

from quiesce.domain.errors import StoreUnavailable
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.clock import Clock
from quiesce.ports.store import Capabilities, Transaction
from quiesce.stores.notifier import LocalNotifier
from quiesce.stores.postgres.connection import connect
from quiesce.stores.postgres.listener import Listener
from quiesce.stores.postgres.opening import prepare
from quiesce.stores.postgres.outcomes import translated
from quiesce.stores.postgres.session import Mode
from quiesce.stores.postgres.settings import PostgresSettings
from quiesce.stores.postgres.transactor import Transactor
from quiesce.stores.postgres.writer import PostgresWriter
from quiesce.stores.sql.group_writer import GroupWriter, WriteJob
from quiesce.stores.sql.queries import Meter

T = TypeVar("T")


class PostgresStore:
    """Implements `ports.store.Store`. Make it on any thread; use it from any number of event loops and threads."""

    def __init__(self, settings: PostgresSettings, *, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None) -> None:
        """Bring the schema up to date and start the threads. Blocks.

        Raises `StoreUnavailable`, `SchemaTooNew`, `NotAStore`, `StoreReadOnly`. `clock` replaces the server's clock.
        """
        self._about = f"the schema {settings.schema}"
        self.capabilities = Capabilities(
            name="postgres", survives_process=True, shared_by_processes=True, durability=_prepared(settings, self._about)
        )
        self.limits = limits
        self._is_closed = False
        self._meter = Meter()
        read_clock = None if clock is None else clock.now
        self._transactor = Transactor(settings, read_clock=read_clock, meter=self._meter, about=self._about)
        self.notifier = LocalNotifier(on_waiting=self._listen)
        self.listener = Listener(settings, self.notifier)
        self._writing = PostgresWriter(
            settings, read_clock=read_clock, notifier=self.notifier, meter=self._meter, about=self._about
        )
        self._writer: GroupWriter[WriteJob] = GroupWriter(
            self._writing.commit, name="quiesce-writer", batch_max=limits.write_batch_max
        )
        self._threads = concurrent.futures.ThreadPoolExecutor(settings.pool_size, thread_name_prefix="quiesce-store")

    @property
    def counters(self) -> Counters:
        """See the port."""
        return self._meter.counters

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.transact_blocking, fn)

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        """See the port."""
        self._check_open()
        self._meter.add({}, transactions=1)
        done = self._transactor.run(fn, Mode.DECIDE)
        self.notifier.ring_all(done.rung)
        return done.value

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """See the port. Raises `InvariantBroken` if `fn` writes."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, fn)

    async def write(self, write: RunWrite) -> WriteOutcome:
        """See the port."""
        future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        self._writer.submit(WriteJob(write, future))
        return await future

    async def close(self) -> None:
        """See the port."""
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """The same for a thread without an event loop."""
        self._writer.close()
        self._writing.close()
        self._threads.shutdown(wait=True)
        self._is_closed = True
        self.listener.close()
        self._transactor.close()

    def _read(self, fn: Callable[[Transaction], T]) -> T:
        self._meter.add({}, reads=1)
        return self._transactor.run(fn, Mode.READ).value

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")

    def _listen(self) -> None:
        self.listener.start()


def _prepared(settings: PostgresSettings, about: str) -> str:
    try:
        with connect(settings) as connection:
            return prepare(connection, settings)
    except psycopg.Error as error:
        raise translated(error, about=about) from error
