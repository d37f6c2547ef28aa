"""What the tests of staging are written with: producers on every kind of connection, and a world that delivers.

A producer keeps orders in a table of its own, beside the store's in one database. Drivers differ in spelling and in what is
awaited; `Producer` hides that and nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import aiosqlite
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.commands import Intent, IntentId, Kind, Target
from quiesce.domain.deliveries import Command, TargetState
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.owners import Decision, Deliverer, Environment, LocalOwner, accepted
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.commands import CommandRequest, Staged
from quiesce.staging import stage_many, stage_many_async, supersede, supersede_async, withdraw, withdraw_async
from quiesce.stores.postgres import PostgresSettings

ANNOUNCE: Final = Kind(name="announce")
STOP: Final = Kind(name="stop", overtakes=True)


def request(key: str = "order 1", target: str = "1", *, kind: Kind = ANNOUNCE, **more: Any) -> CommandRequest:
    """A command to the owner of the world."""
    where = Target(owner="desk", id=target)
    return CommandRequest(kind=kind, target=where, producer="shop", producer_key=key, subject="ada", **more)


class Desk(LocalOwner):
    """Accepts everything and remembers what it was asked."""

    name: ClassVar[str] = "desk"
    kinds: ClassVar[tuple[Kind, ...]] = (ANNOUNCE, STOP)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def decide(self, tx: Transaction, command: Command) -> Decision:
        self.asked.append(command.intent.producer_key)
        return accepted("announced")


class World:
    """A store as its workers see it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def delivered(self) -> list[str]:
        """Deliver until nothing is due; return the producer keys of what was admitted now, in its order."""
        env = Environment(store=self.store, clock=SystemClock(), entropy=SystemEntropy())
        desk = Desk()
        deliverer = Deliverer(env, [desk])
        while await deliverer.pass_once():
            pass
        await deliverer.close()
        return desk.asked

    async def intent(self, key: str = "order 1") -> Intent | None:
        """What is stored under a producer key."""
        return await self.store.read(lambda tx: tx.intents.by_key("local", "shop", key))

    async def used(self, scope: str = "default") -> int:
        """How many places of a scope are taken."""
        room = await self.store.read(lambda tx: tx.intents.capacity("local", scope))
        return 0 if room is None else room.used


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Producer:
    """A connection of some kind, and the orders table that its rows go to."""

    def __init__(self, connection: Any, orders: str, schema: str) -> None:
        self.connection = connection
        self.orders = orders
        self.schema = schema

    @property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.connection.commit) or isinstance(self.connection, aiosqlite.Connection)

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement of the producer's own."""
        is_driver = type(self.connection).__module__.partition(".")[0] != "sqlalchemy"
        found = await _done(self.connection.execute(statement if is_driver else text(statement)))
        has_rows = found.description is not None if is_driver else found.returns_rows
        return [tuple(row) for row in await _done(found.fetchall())] if has_rows else []

    async def order(self, number: int = 1) -> None:
        """Write an order: the fact."""
        await self.run(f"INSERT INTO {self.orders} VALUES ({number})")  # noqa: S608

    async def numbers(self) -> list[int]:
        """The orders that this connection sees."""
        return [row[0] for row in await self.run(f"SELECT number FROM {self.orders} ORDER BY number")]  # noqa: S608

    async def stage(self, *wanted: CommandRequest, limits: Limits = DEFAULT_LIMITS) -> list[Staged]:
        """Stage in the transaction of the connection: the commands that announce the fact."""
        verb: Any = stage_many_async if self._is_async else stage_many
        staged: list[Staged] = await _done(verb(self.connection, wanted, schema=self.schema, limits=limits))
        return staged

    async def withdraw(self, intent_id: IntentId) -> Intent:
        verb: Any = withdraw_async if self._is_async else withdraw
        intent: Intent = await _done(verb(self.connection, intent_id, schema=self.schema))
        return intent

    async def supersede(self, target: Target, revision: int) -> TargetState:
        verb: Any = supersede_async if self._is_async else supersede
        state: TargetState = await _done(verb(self.connection, target, revision, schema=self.schema))
        return state

    async def commit(self) -> None:
        await _done(self.connection.commit())

    async def rollback(self) -> None:
        await _done(self.connection.rollback())


# -- every kind of connection ----------------------------------------------------------------------------------------------

Open = Callable[[str, bool], Awaitable[tuple[Any, Sequence[Any]]]]
"""From where it is, and whether each statement is to commit by itself, to a connection and what is to be closed after it."""


async def _sqlite3(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
    return _plain_sqlite(where, autocommit), ()


async def _psycopg(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
    return psycopg.connect(where, autocommit=autocommit), ()


async def _aiosqlite(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
    return await aiosqlite.connect(where, isolation_level=None if autocommit else "DEFERRED"), ()


async def _psycopg_async(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
    return await psycopg.AsyncConnection.connect(where, autocommit=autocommit), ()


def _plain_sqlite(where: str, autocommit: bool) -> sqlite3.Connection:
    return sqlite3.connect(where, isolation_level=None if autocommit else "DEFERRED")


def engine(driver: str, where: str, autocommit: bool = False) -> Engine:
    """An engine whose connections are closed when they are given back."""
    more: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    if driver == "sqlite":
        return create_engine(f"sqlite:///{where}", poolclass=NullPool, **more)
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(where), poolclass=NullPool, **more)


def async_engine(driver: str, where: str, autocommit: bool = False) -> AsyncEngine:
    """The same for the asynchronous kind."""
    more: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    if driver == "sqlite":
        return create_async_engine(f"sqlite+aiosqlite:///{where}", poolclass=NullPool, **more)

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(where)

    return create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool, **more)


def _alchemy(driver: str, *, is_session: bool) -> Open:
    async def connect(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
        made = engine(driver, where, autocommit)
        return (Session(made) if is_session else made.connect()), (made,)

    return connect


def _async_alchemy(driver: str, *, is_session: bool) -> Open:
    async def connect(where: str, autocommit: bool) -> tuple[Any, Sequence[Any]]:
        made = async_engine(driver, where, autocommit)
        return (AsyncSession(made) if is_session else await made.connect()), (made,)

    return connect


KINDS: Final[dict[str, tuple[str, Open]]] = {
    "sqlite3": ("sqlite", _sqlite3),
    "aiosqlite": ("sqlite", _aiosqlite),
    "psycopg": ("postgres", _psycopg),
    "psycopg async": ("postgres", _psycopg_async),
} | {
    f"sqlalchemy {kind} over {store}": (store, make(store, is_session=is_session))
    for store in ("sqlite", "postgres")
    for kind, make, is_session in (
        ("connection", _alchemy, False),
        ("session", _alchemy, True),
        ("async connection", _async_alchemy, False),
        ("async session", _async_alchemy, True),
    )
}
"""Every kind of connection that can be staged on, with the store that it belongs to."""


@contextlib.asynccontextmanager
async def producing(kind: str, url: str, *, autocommit: bool = False) -> AsyncIterator[Producer]:
    """A producer on a connection of this kind, to the database of the store at `url`."""
    store, connect = KINDS[kind]
    if store == "sqlite":
        where, orders, schema = url.removeprefix("sqlite:///"), "orders", "quiesce"
    else:
        settings = PostgresSettings.from_url(url)
        where, orders, schema = settings.conninfo, f"{settings.schema}.orders", settings.schema
    connection, more = await connect(where, autocommit)
    try:
        yield Producer(connection, orders, schema)
    finally:
        await _done(connection.close())
        for made in more:
            await _done(made.dispose())


async def make_orders(url: str) -> None:
    """Make the table of orders, in a transaction of its own."""
    kind = "sqlite3" if url.startswith("sqlite") else "psycopg"
    async with producing(kind, url) as producer:
        await producer.run(f"CREATE TABLE {producer.orders} (number INTEGER PRIMARY KEY)")
        await producer.commit()
