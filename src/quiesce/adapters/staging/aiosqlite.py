"""Staging on an `aiosqlite` connection: on its own thread, in its turn, as every statement of it.

A task that is cancelled does not interrupt it; the statements that follow on the connection find it done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from aiosqlite import Connection

from quiesce.adapters.staging import sqlite
from quiesce.domain.errors import StoreUnavailable
from quiesce.ports.commands import Staging

T = TypeVar("T")


async def run_async(connection: Connection, body: Callable[[Staging], T]) -> T:
    """Run `body` inside the connection's transaction. Raises what `body` raises, `Refused` or `StoreError`.

    The driver's public methods take statements only. What they all go through takes a function, and is used here.
    """
    try:
        beneath = connection._conn
    except ValueError as error:
        raise StoreUnavailable("the connection is closed; nothing was staged") from error
    value: T = await connection._execute(sqlite.run, beneath, body)  # type: ignore[no-untyped-call]
    return value
