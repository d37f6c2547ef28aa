"""The driver's connection beneath one of SQLAlchemy's, whose transaction SQLAlchemy knows to have begun.

A statement through SQLAlchemy comes first: it begins the transaction as its own bookkeeping, events and isolation level have
it, so that its commit and rollback are those of what is staged. SQLAlchemy is no dependency: this module is imported only
for objects of its making.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_BEGIN: Final = "SELECT 1"


def driver_connection(connection: Connection | Session) -> object:
    """Return the connection of the driver."""
    core = connection.connection() if isinstance(connection, Session) else connection
    core.exec_driver_sql(_BEGIN).close()
    return core.connection.driver_connection


async def driver_connection_async(connection: AsyncConnection | AsyncSession) -> object:
    """The same for the asynchronous kind."""
    from sqlalchemy.ext.asyncio import AsyncSession  # an extra of SQLAlchemy, which its synchronous half does without

    core = await connection.connection() if isinstance(connection, AsyncSession) else connection
    await core.exec_driver_sql(_BEGIN)
    return (await core.get_raw_connection()).driver_connection
