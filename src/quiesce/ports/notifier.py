"""The doorbell: hints that something changed. It may be lost, late or doubled; polling alone must suffice."""

from __future__ import annotations

from typing import Final, Protocol

WORK: Final = "work"
"""Topic: a run became claimable."""

COMMANDS: Final = "commands"
"""Topic: an intent was staged, or a command became claimable."""


def run_topic(run_id: str) -> str:
    """Topic: something of this run is new (events, status)."""
    return f"run:{run_id}"


def worker_topic(worker_id: str) -> str:
    """Topic: this worker is wanted (a cancel of one of its runs)."""
    return f"worker:{worker_id}"


class Bell(Protocol):
    """A registration on some topics. What rang since the last `wait` is remembered once."""

    async def wait(self, timeout_ms: float) -> bool:
        """Return True as soon as one of the topics rings, False after the timeout."""

    def close(self) -> None:
        """End the registration."""


class Notifier(Protocol):
    """Makes bells and rings them."""

    def bell(self, *topics: str) -> Bell:
        """Register on topics. Register first, then look, then wait: so nothing falls in between."""

    def ring(self, topic: str) -> None:
        """Ring in this process. Safe from any thread."""
