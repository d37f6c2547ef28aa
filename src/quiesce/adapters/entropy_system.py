"""Random bytes from the operating system."""

from __future__ import annotations

import os


class SystemEntropy:
    """Implements `ports.clock.Entropy`. Safe from any thread and after a fork."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        """Return `size` random bytes."""
        return os.urandom(size)
