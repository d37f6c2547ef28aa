"""The three terminal facts in memory. Each is written once per run and never again."""

from __future__ import annotations

from collections.abc import Collection

from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.ids import OccurrenceId, ReceiptId, RunId, ThreadId
from quiesce.domain.terminal import TerminalReceipt
from quiesce.stores.memory.state import State


class MemoryTerminal:
    """Implements `ports.terminal.Terminal`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add_occurrence(self, occurrence: Occurrence) -> bool:
        """See the port."""
        if occurrence.run_id in self._state.occurrences:
            return False
        self._state.occurrences.put(occurrence.run_id, occurrence)
        return True

    def occurrence(self, run_id: RunId) -> Occurrence | None:
        """See the port."""
        return self._state.occurrences.get(run_id)

    def occurrences(self, run_ids: Collection[RunId]) -> dict[RunId, Occurrence]:
        """See the port."""
        return {run_id: found for run_id in run_ids if (found := self.occurrence(run_id)) is not None}

    def add_outcome(self, outcome: PersistenceOutcome) -> bool:
        """See the port."""
        if outcome.run_id in self._state.outcomes:
            return False
        self._state.outcomes.put(outcome.run_id, outcome)
        self._state.outcome_of.put(outcome.occurrence_id, outcome)
        return True

    def outcome(self, occurrence_id: OccurrenceId) -> PersistenceOutcome | None:
        """See the port."""
        return self._state.outcome_of.get(occurrence_id)

    def add_receipt(self, receipt: TerminalReceipt) -> bool:
        """See the port."""
        if receipt.run_id in self._state.receipts:
            return False
        self._state.receipts.put(receipt.run_id, receipt)
        self._state.receipt_by_id.put(receipt.id, receipt)
        self._state.last_receipt_of.put(receipt.thread_id, receipt)
        return True

    def receipt(self, run_id: RunId) -> TerminalReceipt | None:
        """See the port."""
        return self._state.receipts.get(run_id)

    def receipt_by_id(self, receipt_id: ReceiptId) -> TerminalReceipt | None:
        """See the port."""
        return self._state.receipt_by_id.get(receipt_id)

    def last_of_thread(self, thread_id: ThreadId) -> TerminalReceipt | None:
        """See the port."""
        return self._state.last_receipt_of.get(thread_id)
