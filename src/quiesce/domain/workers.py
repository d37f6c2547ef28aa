"""Workers and their leases.

A worker holds one lease for all runs that it advances, so a beat costs one write however many runs there are. A worker id
is made anew by each process start and never reused: two processes with the same configured name cannot be confused.
Expiry says that others may take over; it never proves that the holder has stopped. Fences decide, never names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quiesce.domain.ids import Fence, RunId, WorkerId
from quiesce.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that advances runs. `name` is for people."""

    id: WorkerId
    name: str
    started_at: Instant
    lease_expires_at: Instant
    is_draining: bool = False

    def is_live(self, now: Instant) -> bool:
        """Return whether the lease still holds at `now`. At the instant of expiry it no longer does."""
        return now < self.lease_expires_at


class Renewal(StrEnum):
    """How a renewal ended. Losing is an outcome, not an error."""

    RENEWED = "renewed"
    LOST = "lost"
    """The lease had expired and another process has removed the worker; its runs are no longer its own."""


class AttemptEnd(StrEnum):
    """Why an attempt ended."""

    ENDED = "ended"
    """The run ended under it."""
    PARKED = "parked"
    """The run waits and holds no process."""
    RELEASED = "released"
    """Handed back before expiry, work unfinished (shutdown)."""
    EXPIRED = "expired"
    """The holder was lost: its lease ran out, or the store failed it. A successor takes over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One holder's try to advance a run, opened by a claim with its own fence. Append-only history."""

    run_id: RunId
    number: int
    fence: Fence
    worker_id: WorkerId
    worker_name: str
    opened_at: Instant
    closed_at: Instant | None = None
    end: AttemptEnd | None = None
