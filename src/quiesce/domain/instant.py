"""Instants and durations as whole numbers: microseconds since the Unix epoch, and milliseconds.

Integers compare and add exactly on every store; a float would not. Nothing here reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NewType

Instant = NewType("Instant", int)
"""Microseconds since 1970-01-01T00:00:00Z."""


def after_ms(instant: Instant, duration_ms: float) -> Instant:
    """Return the instant `duration_ms` milliseconds later."""
    return Instant(instant + round(duration_ms * 1000))


def elapsed_ms(start: Instant, end: Instant) -> float:
    """Return the milliseconds from `start` to `end`; negative if `end` comes first."""
    return (end - start) / 1000


def to_iso(instant: Instant) -> str:
    """Return RFC 3339 text in UTC, with microseconds."""
    return datetime.fromtimestamp(instant / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
