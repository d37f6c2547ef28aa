"""Decisions that must not be lost to a passing trouble of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quiesce.domain.errors import StoreBusy, StoreUnavailable
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment

T = TypeVar("T")


async def persist(env: Environment, fn: Callable[[Transaction], T], *, read: bool = False) -> T:
    """Run an idempotent decision, or a read, until the store has answered (C88).

    A commit whose answer was lost is decided again: `fn` then finds what the first one stored. Fences make that safe; if
    the store stays away past the lease, `fn` finds that too.
    """
    delay_ms = 20.0
    while True:
        try:
            return await (env.store.read(fn) if read else env.store.transact(fn))
        except (StoreUnavailable, StoreBusy):
            await env.clock.sleep(delay_ms)
            delay_ms = min(delay_ms * 2, 1000.0)
