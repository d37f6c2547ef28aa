"""Transactions that meet: one stands still in the middle until it is told, and one is seen to wait for another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import psycopg

from quiesce.ports.store import Store, Transaction

BOUND_S = 30


class Undone(Exception):
    """Rolls a decision back."""


class Holding:
    """A decision that does something, and then stands still until the block ends: then it commits, or rolls back."""

    def __init__(self, store: Store, do: Callable[[Transaction], object], *, commits: bool = True) -> None:
        self._is_held, self._gate = threading.Event(), threading.Event()

        def hold(tx: Transaction) -> None:
            do(tx)
            self._is_held.set()
            assert self._gate.wait(BOUND_S)
            if not commits:
                raise Undone

        self._task = asyncio.ensure_future(store.transact(hold))

    async def __aenter__(self) -> Holding:
        assert await asyncio.to_thread(self._is_held.wait, BOUND_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gate.set()
        with contextlib.suppress(Undone):
            await self._task


async def until_somebody_waits(server: str) -> None:
    """Return once a backend waits for a row that another has locked."""

    def look() -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            waits = 0
            while not waits:
                row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
                waits = 0 if row is None else row[0]

    await asyncio.wait_for(asyncio.to_thread(look), BOUND_S)
