"""How long a server that is away is waited for. The only module of the store that reads this machine's clock.

Nothing durable depends on it: leases, timers and deadlines are judged by the server's clock.
"""

from __future__ import annotations

import time


class Patience:
    """A stretch of waiting that ends."""

    def __init__(self, duration_ms: float) -> None:
        self._ends_at = time.monotonic() + duration_ms / 1000

    @property
    def is_over(self) -> bool:
        """Whether the time has been used up."""
        return time.monotonic() >= self._ends_at

    def pause(self, duration_ms: float) -> None:
        """Block the calling thread, though not beyond the end."""
        time.sleep(max(0.0, min(duration_ms / 1000, self._ends_at - time.monotonic())))
