"""The machine's clock, guarded: within a process it never goes back, and it never falls behind the wall clock.

Between two readings it advances by the monotonic clock at least. A wall clock set back is therefore not followed (an
expired lease stays expired, CC-37); one that jumps ahead, after a suspend for instance, is followed at once, so that a
process that slept agrees with those that were started meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time

from quiesce.domain.instant import Instant


class SystemClock:
    """Implements `ports.clock.Clock`. `now` may be called from any thread."""

    __slots__ = ("_ahead_ns", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        """Return the present instant; never smaller than what it returned before."""
        with self._lock:
            # Wall first: being interrupted between the two readings then errs on the side of not raising.
            wall_ns = time.time_ns()
            monotonic_ns = time.monotonic_ns()
            self._ahead_ns = max(self._ahead_ns, wall_ns - monotonic_ns)
            return Instant((monotonic_ns + self._ahead_ns) // 1000)

    async def sleep(self, duration_ms: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(duration_ms / 1000)
