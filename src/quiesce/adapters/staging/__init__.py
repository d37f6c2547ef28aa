"""Staging on the producer's own connection: the fact and the command that announces it, in one transaction (CC-20).

    with connection:                                        # the producer's transaction, on the store's database
        connection.execute("INSERT INTO orders ...")
        stage(connection, request)

What is staged is decided in `runtime/commands.py` and nowhere else; here, each family of drivers only lends it a connection.
Keeps: the transaction is the producer's. It must be open (a connection that commits each statement by itself is refused),
nothing here ends it, and an error leaves it as it was before the call, to be rolled back or gone on with. Nothing of the
connection's settings is different afterwards.

No driver is imported that the producer has not imported: one of its connections could not be here otherwise.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.adapters.staging import sqlite
from quiesce.domain.commands import Intent, IntentId, Target
from quiesce.domain.deliveries import TargetState
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import uuid7
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.ports.commands import Staging
from quiesce.runtime.commands import CommandRequest, Staged, stage_many_tx, supersede_tx, withdraw_tx

T = TypeVar("T")

DEFAULT_SCHEMA: Final = "quiesce"
"""Where a store on PostgreSQL has its tables, unless its URL says otherwise."""

_SUPPORTED: Final = (
    "cannot be staged on with {name}: it takes a sqlite3.Connection, a psycopg.Connection, or a SQLAlchemy Connection or "
    "Session over one of these drivers"
)
_SUPPORTED_ASYNC: Final = (
    "cannot be staged on with {name}: it takes a psycopg.AsyncConnection, an aiosqlite.Connection, or a SQLAlchemy "
    "AsyncConnection or AsyncSession over one of these drivers"
)


def stage(
    connection: object, request: CommandRequest, *, schema: str = DEFAULT_SCHEMA, limits: Limits = DEFAULT_LIMITS
) -> Staged:
    """Stage a command in the connection's transaction: it exists if and only if that commits.

    `schema`: where a store on PostgreSQL has its tables. The same producer key with the same meaning gives the first intent
    back. Raises `InvalidInput` (also for a connection of an unknown kind), `IdempotencyConflict` (same key, other meaning),
    `CapacityExhausted`, `Refused` (no transaction is open), `NotAStore`, `SchemaTooNew` or another `StoreError`. After any
    of them nothing was staged, and the transaction is as before the call unless the connection itself is lost.
    """
    (staged,) = stage_many(connection, [request], schema=schema, limits=limits)
    return staged


def stage_many(
    connection: object, requests: Sequence[CommandRequest], *, schema: str = DEFAULT_SCHEMA, limits: Limits = DEFAULT_LIMITS
) -> list[Staged]:
    """Stage several commands, in their order: all of them or none. Raises as `stage`.

    Scopes are locked in ascending order, so two producers that stage in the same scopes with one call each cannot block
    each other, in whatever order they name them.
    """
    return _run(connection, partial(_stage, requests, limits), schema, "stage")


def withdraw(connection: object, intent_id: IntentId, *, tenant: str = "local", schema: str = DEFAULT_SCHEMA) -> Intent:
    """Take back, in the connection's transaction, an intent that was not relayed yet. Twice changes nothing.

    Raises `NotFound`, `Refused` for one that was relayed or has expired, and what `stage` raises about connections.
    """
    return _run(connection, lambda tx: withdraw_tx(tx, intent_id, tenant=tenant), schema, "withdraw")


def supersede(connection: object, target: Target, revision: int, *, schema: str = DEFAULT_SCHEMA) -> TargetState:
    """Declare a target's next revision in the connection's transaction: commands for earlier ones lose their force.

    Raises `InvalidInput` for an earlier revision, and what `stage` raises about connections.
    """
    return _run(connection, lambda tx: supersede_tx(tx, target, revision), schema, "supersede")


async def stage_async(
    connection: object, request: CommandRequest, *, schema: str = DEFAULT_SCHEMA, limits: Limits = DEFAULT_LIMITS
) -> Staged:
    """`stage` on an asynchronous connection."""
    (staged,) = await stage_many_async(connection, [request], schema=schema, limits=limits)
    return staged


async def stage_many_async(
    connection: object, requests: Sequence[CommandRequest], *, schema: str = DEFAULT_SCHEMA, limits: Limits = DEFAULT_LIMITS
) -> list[Staged]:
    """`stage_many` on an asynchronous connection."""
    return await _run_async(connection, partial(_stage, requests, limits), schema, "stage_async")


async def withdraw_async(
    connection: object, intent_id: IntentId, *, tenant: str = "local", schema: str = DEFAULT_SCHEMA
) -> Intent:
    """`withdraw` on an asynchronous connection."""
    return await _run_async(connection, lambda tx: withdraw_tx(tx, intent_id, tenant=tenant), schema, "withdraw_async")


async def supersede_async(connection: object, target: Target, revision: int, *, schema: str = DEFAULT_SCHEMA) -> TargetState:
    """`supersede` on an asynchronous connection."""
    return await _run_async(connection, lambda tx: supersede_tx(tx, target, revision), schema, "supersede_async")


def _stage(requests: Sequence[CommandRequest], limits: Limits, tx: Staging) -> list[Staged]:
    entropy = SystemEntropy()
    return stage_many_tx(tx, requests, new_id=lambda: IntentId(uuid7(tx.now, entropy.token(10))), limits=limits)


def _run(connection: object, body: Callable[[Staging], T], schema: str, name: str) -> T:
    driver = connection
    if _is_a(connection, "sqlalchemy.engine.Connection", "sqlalchemy.orm.Session"):
        from quiesce.adapters.staging.sqlalchemy import driver_connection

        driver = driver_connection(connection)  # type: ignore[arg-type]
    if isinstance(driver, sqlite3.Connection):
        return sqlite.run(driver, body)
    if _is_a(driver, "psycopg.Connection"):
        from quiesce.adapters.staging import postgres

        return postgres.run(driver, body, schema)  # type: ignore[arg-type]
    raise _unsupported(driver, _SUPPORTED.format(name=name))


async def _run_async(connection: object, body: Callable[[Staging], T], schema: str, name: str) -> T:
    driver = connection
    if _is_a(connection, "sqlalchemy.ext.asyncio.AsyncConnection", "sqlalchemy.ext.asyncio.AsyncSession"):
        from quiesce.adapters.staging.sqlalchemy import driver_connection_async

        driver = await driver_connection_async(connection)  # type: ignore[arg-type]
    if _is_a(driver, "aiosqlite.Connection"):
        from quiesce.adapters.staging import aiosqlite

        return await aiosqlite.run_async(driver, body)  # type: ignore[arg-type]
    if _is_a(driver, "psycopg.AsyncConnection"):
        from quiesce.adapters.staging import postgres

        return await postgres.run_async(driver, body, schema)  # type: ignore[arg-type]
    raise _unsupported(driver, _SUPPORTED_ASYNC.format(name=name))


def _is_a(value: object, *classes: str) -> bool:
    """Whether it is an instance of one of these classes. What was never imported has no instances."""
    for name in classes:
        module, _, attribute = name.rpartition(".")
        found = getattr(sys.modules.get(module), attribute, None)
        if isinstance(found, type) and isinstance(value, found):
            return True
    return False


def _unsupported(connection: object, rule: str) -> InvalidInput:
    kind = type(connection)
    return InvalidInput(field="connection", value=f"{kind.__module__}.{kind.__qualname__}", rule=rule)
