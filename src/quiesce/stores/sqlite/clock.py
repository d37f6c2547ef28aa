"""The clock of a SQLite store: shared by all processes of the machine, and never stepping (C69, CC-37).

The file keeps an anchor: a wall-clock instant and the reading of the machine's monotonic clock that belongs to it. Every
process computes `now` from the anchor and the monotonic clock, so all of them agree on leases and timers, and setting the
wall clock forward or back moves nothing. The monotonic clock begins anew when the machine starts; the first process after
that writes a new anchor, not before any instant that the file knows.

The only module of the store that reads the machine's clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quiesce.domain.instant import Instant

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _boottime_us() -> int:
    """Return the monotonic clock that counts on while the machine sleeps, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return time.monotonic_ns() // 1000


def _wall_us() -> int:
    return time.time_ns() // 1000


def _boot_id() -> str:
    """Return what tells one start of the machine from the next; without it only a monotonic clock gone back does."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def pause(duration_ms: float) -> None:
    """Block the calling thread."""
    time.sleep(duration_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTime:
    """The readings of this machine, as functions, so that tests can bend them."""

    wall_us: Callable[[], int] = _wall_us
    monotonic_us: Callable[[], int] = _boottime_us
    boot_id: Callable[[], str] = _boot_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A wall-clock instant and the monotonic reading that belongs to it, within one run of the machine."""

    boot_id: str
    wall_us: int
    monotonic_us: int

    def holds(self, boot_id: str, monotonic_us: int) -> bool:
        """Return whether it was made since the machine started."""
        return self.boot_id == boot_id and self.monotonic_us <= monotonic_us


class AnchoredClock:
    """Implements the reading half of `ports.clock.Clock` from an anchor."""

    def __init__(self, anchor: Anchor, machine: MachineTime) -> None:
        self._offset_us = anchor.wall_us - anchor.monotonic_us
        self._monotonic_us = machine.monotonic_us

    def now(self) -> Instant:
        """Return the present instant, the same in every process that shares the anchor."""
        return Instant(self._offset_us + self._monotonic_us())


def make_anchor(machine: MachineTime, *, not_before_us: int) -> Anchor:
    """Make an anchor for this run of the machine; time that the file has seen does not come again."""
    return Anchor(
        boot_id=machine.boot_id(),
        wall_us=max(machine.wall_us(), not_before_us),
        monotonic_us=machine.monotonic_us(),
    )
