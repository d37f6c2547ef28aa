"""The publisher: hands messages of the outbox to a subscriber, at least once, and records that it did.

Keeps: what it does changes nothing of what the messages are about; a subscriber that fails, or never answers, changes no run,
no command and no receipt (NO-04, NO-06). Nobody is told inside a transaction: a message is taken for one attempt, told, and
its delivery recorded; who dies between is followed by another attempt, under the same id. Any number of publishers work side
by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from quiesce.domain.errors import StoreError
from quiesce.domain.instant import after_ms
from quiesce.domain.publication import Notice, OutboxMessage
from quiesce.ports.store import Transaction
from quiesce.runtime.background import call_body
from quiesce.runtime.environment import Environment

log = logging.getLogger("quiesce.publisher")

Subscriber = Callable[[Notice], Awaitable[None] | None]
BATCH: Final = 32


class Publisher:
    """Publishes to one subscriber until closed. `subscriber`: a function of one `Notice`; that it returns is its word for it."""

    def __init__(self, env: Environment, subscriber: Subscriber) -> None:
        self._env = env
        self._subscriber = subscriber
        self._loop: asyncio.Task[None] | None = None
        self.delivered = 0
        self.failed = 0

    async def start(self) -> None:
        """Begin to publish."""
        self._loop = asyncio.get_running_loop().create_task(self._attend(), name="publish")

    async def close(self) -> None:
        """Stop. What was being told is told again by whoever publishes next. Idempotent."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None

    async def pass_once(self) -> int:
        """Take what is due and tell it; return how many messages were taken."""
        env = self._env

        def take(tx: Transaction) -> list[OutboxMessage]:
            return tx.outbox.claim(now=tx.now, until=after_ms(tx.now, env.settings.command_lease_ms), limit=BATCH)

        messages = await env.store.transact(take)
        await asyncio.gather(*(self._tell(message) for message in messages))
        return len(messages)

    async def _tell(self, message: OutboxMessage) -> None:
        """Tell one message, within its claim, and record what came of that."""
        env = self._env
        try:
            async with asyncio.timeout(env.settings.command_lease_ms / 2000):
                await call_body(self._subscriber, (Notice.of(message),), {})
        except Exception as error:  # noqa: BLE001 - a subscriber may raise anything: then it was not told
            self.failed += 1
            log.warning("message %s, attempt %d: the subscriber raised %s", message.id, message.attempts, type(error).__name__)
            failure = type(error).__name__
            await env.store.transact(lambda tx: self._postpone(tx, message, failure))
            return
        await env.store.transact(lambda tx: tx.outbox.mark_delivered(message.id, tx.now))
        self.delivered += 1

    def _postpone(self, tx: Transaction, message: OutboxMessage, failure: str) -> None:
        settings = self._env.settings
        delay_ms = min(settings.defer_ms * 2 ** min(message.attempts, 20), settings.defer_ms_max)
        tx.outbox.postpone(message.id, attempts=message.attempts, due_at=after_ms(tx.now, delay_ms), failure=failure)

    async def _attend(self) -> None:
        env = self._env
        while True:
            try:
                if await self.pass_once() < BATCH:
                    await env.clock.sleep(env.settings.poll_ms)
            except StoreError as error:
                log.warning("publishing goes on later: %s", error.code)
                await env.clock.sleep(env.settings.defer_ms)
