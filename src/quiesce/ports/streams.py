"""Stream ledgers, inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quiesce.domain.ids import RunId
from quiesce.domain.streams import Glance, StreamEvent, StreamState


class Streams(Protocol):
    """Rows of events, and one row per run for its delivery state."""

    def open(self, run_id: RunId) -> None:
        """Begin the ledger of a run, at number 0."""

    def state(self, run_id: RunId) -> StreamState | None:
        """Return the delivery state of a run."""

    def states(self, run_ids: Collection[RunId]) -> dict[RunId, StreamState]:
        """Return the delivery states of several runs."""

    def glances(self, run_ids: Collection[RunId]) -> dict[RunId, Glance]:
        """Return where several runs stand, in one statement. Runs that do not exist are left out."""

    def append_many(self, events: Sequence[StreamEvent]) -> None:
        """Store events. One that is stored already with the same chain value is passed over.

        Raises `InvariantBroken` if a number is taken by other content: a holder's numbers are its own.
        """

    def reserve(self, run_id: RunId, upto: int) -> None:
        """Record that numbers up to `upto` may be shown. Never lowers the bound."""

    def freeze(self, run_id: RunId, seq: int, *, exact: bool) -> None:
        """Record F, once: the first record stands."""

    def read(self, run_id: RunId, *, after: int, limit: int) -> list[StreamEvent]:
        """Return stored events with a number above `after`, ascending."""

    def count_state_bearing(self, run_id: RunId, *, after: int) -> int:
        """Count stored state-bearing data events with a number above `after`."""
