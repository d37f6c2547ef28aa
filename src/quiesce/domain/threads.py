"""Threads: an ordered series of runs with one head, and what a new message does while the head is busy.

Keeps: runs of a thread are numbered in the order of their submission; one of them at a time has its turn, the *head*. Runs
behind the head are queued: they wait, hold nothing, and take their turn when the head's boundary allows it
(`continuations.py`). A run that never had its turn never was the head. Knows nothing of policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation. The receipt chain runs through it."""

    id: ThreadId
    tenant: str
    created_at: Instant
    runs: int = 0
    """Runs submitted so far; the number of the newest."""
    head_run_id: RunId | None = None
    """The run that has, or had last, its turn."""
    queued: int = 0
    """Unfinished runs behind the head. Kept here so that the end of a run asks no more than it must."""


class OnBusy(StrEnum):
    """What becomes of a new message while the thread has an unfinished run."""

    REJECT = "reject"
    """It is refused (`ThreadBusy`); nothing is stored."""
    ENQUEUE = "enqueue"
    """It waits for its turn, in the order of submission."""
    INTERRUPT = "interrupt"
    """Every unfinished run of the thread is cancelled (`superseded`), and it takes its turn behind their boundaries."""
    ROLLBACK = "rollback"
    """The same, and the new run goes on from what the interrupted head was built on. Moves the head; deletes nothing."""

    @property
    def supersedes(self) -> bool:
        """Whether what is unfinished is cancelled."""
        return self in (OnBusy.INTERRUPT, OnBusy.ROLLBACK)
