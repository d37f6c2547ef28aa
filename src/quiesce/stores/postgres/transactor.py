"""Decisions and reads on pooled connections: run again while nothing has happened, within bounds.

Reconnecting is not the caller's business (C88): a connection that broke before its commit was sent is replaced and the
function run again. After a commit without an answer the caller is told that it is open, and asks by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
import psycopg_pool
from psycopg import errors

from quiesce.domain.errors import InvariantBroken, StoreReadOnly, StoreUnavailable
from quiesce.domain.instant import Instant
from quiesce.ports.store import Transaction
from quiesce.stores.postgres.connection import Connection, LendableConnection, configure, connect_options
from quiesce.stores.postgres.outcomes import translated
from quiesce.stores.postgres.patience import Patience
from quiesce.stores.postgres.session import CommitInDoubt, ConnectionLost, Done, Mode, NothingHappened, Session
from quiesce.stores.postgres.settings import PostgresSettings
from quiesce.stores.sql.queries import Meter, Row

T = TypeVar("T")

_CONFLICTS_MAX: Final = 10
_COLLISIONS_MAX: Final = 3
"""A unique violation that comes back with a fresh view is the caller's own doing."""
_SPARE: Final = 1
"""Connections beyond those of the executor's threads: for the lease keeper, which waits for no agent's decisions."""


class Transactor:
    """Owns the pool. Safe from any thread."""

    def __init__(self, settings: PostgresSettings, *, read_clock: Callable[[], Instant] | None, meter: Meter, about: str) -> None:
        self._settings = settings
        self._read_clock = read_clock
        self._meter = meter
        self._about = about
        self._pool: psycopg_pool.ConnectionPool[psycopg.Connection[Row]] = psycopg_pool.ConnectionPool(
            settings.conninfo,
            connection_class=LendableConnection,
            kwargs=connect_options(settings),
            configure=lambda connection: configure(connection, settings),
            min_size=1,
            max_size=settings.pool_size + _SPARE,
            timeout=settings.patience_ms / 1000,
            reconnect_timeout=settings.patience_ms / 1000,
            name="quiesce",
            open=True,
        )

    def run(self, fn: Callable[[Transaction], T], mode: Mode) -> Done[T]:
        """Run a function in a transaction. Raises as `ports.store.Store.transact`."""
        patience = Patience(self._settings.patience_ms)
        tries = 0
        while True:
            tries += 1
            try:
                return self._once(fn, mode)
            except ConnectionLost as lost:
                if patience.is_over:
                    raise translated(lost.__cause__ or lost, about=self._about) from lost
                self._pool.check()  # one broken connection seldom comes alone
            except NothingHappened as again:
                collided = isinstance(again.__cause__, errors.UniqueViolation)
                if tries >= (_COLLISIONS_MAX if collided else _CONFLICTS_MAX):
                    raise translated(again.__cause__ or again, about=self._about) from again

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._pool.close()

    def _once(self, fn: Callable[[Transaction], T], mode: Mode) -> Done[T]:
        try:
            connection: Connection = self._pool.getconn()
        except psycopg_pool.PoolTimeout as error:
            raise translated(error, about=self._about) from error
        try:
            return Session(connection, read_clock=self._read_clock, meter=self._meter).run(fn, mode)
        except CommitInDoubt as doubt:
            raise StoreUnavailable(
                f"{self._about}: the connection broke during the commit; whether it took place is open"
            ) from doubt
        except (psycopg.Error, UnicodeEncodeError) as error:
            known = translated(error, about=self._about)
            if mode is Mode.READ and isinstance(known, StoreReadOnly):
                raise InvariantBroken("a read must not write") from error
            raise known from error
        finally:
            self._pool.putconn(connection)
