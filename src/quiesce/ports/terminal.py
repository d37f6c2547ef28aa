"""Occurrences (C), persistence outcomes (P) and receipts (T), inside one transaction. Append-only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.ids import OccurrenceId, ReceiptId, RunId, ThreadId
from quiesce.domain.terminal import TerminalReceipt


class Terminal(Protocol):
    """Rows of the three terminal facts. `add_*` returns False, and changes nothing, if the run has one already."""

    def add_occurrence(self, occurrence: Occurrence) -> bool:
        """Record C."""

    def occurrence(self, run_id: RunId) -> Occurrence | None:
        """Return the accepted end of a run."""

    def occurrences(self, run_ids: Collection[RunId]) -> dict[RunId, Occurrence]:
        """Return the accepted ends of several runs."""

    def add_outcome(self, outcome: PersistenceOutcome) -> bool:
        """Record P."""

    def outcome(self, occurrence_id: OccurrenceId) -> PersistenceOutcome | None:
        """Return the outcome that names this C."""

    def add_receipt(self, receipt: TerminalReceipt) -> bool:
        """Record T."""

    def receipt(self, run_id: RunId) -> TerminalReceipt | None:
        """Return the receipt of a run."""

    def receipt_by_id(self, receipt_id: ReceiptId) -> TerminalReceipt | None:
        """Return a receipt."""

    def last_of_thread(self, thread_id: ThreadId) -> TerminalReceipt | None:
        """Return the newest receipt of a thread: the one that the next is chained to."""
