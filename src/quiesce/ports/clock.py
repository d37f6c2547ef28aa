"""The only sources of time and of randomness."""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.instant import Instant


class Clock(Protocol):
    """Time of this process. Leases and timers are judged by `Transaction.now`, not by this."""

    def now(self) -> Instant:
        """Return the present instant; never smaller than what it returned before."""

    async def sleep(self, duration_ms: float) -> None:
        """Suspend the calling task."""


class Entropy(Protocol):
    """Random bytes for ids and jitter."""

    def token(self, size: int) -> bytes:
        """Return `size` random bytes."""
