"""Write values: what a holder hands to the group writer, and how the store answers.

The hot path of a run (journal, stream, checkpoint) does not run transactions of its own. It describes rows with the fence
they are written under; the store applies what has gathered in one commit and answers each write by itself. A refused fence
refuses that run's rows only. Applying the same write twice changes nothing the second time, so that a write whose commit
answer was lost may simply be handed in again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.evidence import ArtifactReceipt
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.operations import Operation, OperationStatus
from quiesce.domain.runs import Admission
from quiesce.domain.streams import StreamEvent


class WriteOutcome(StrEnum):
    """How the store answered one write. Losing is a value."""

    APPLIED = "applied"
    EVIDENCE = "evidence"
    """Applied, and the run settles: an end was accepted, so nothing of the run may begin any more."""
    STALE = "stale"
    """The fence is no longer the run's: nothing of this write was applied."""
    OVER_BUDGET = "over_budget"
    """A reservation in it did not fit (own or an ancestor's): nothing of this write was applied."""

    @property
    def is_applied(self) -> bool:
        """Whether the rows are stored, whatever becomes of the run."""
        return self in (WriteOutcome.APPLIED, WriteOutcome.EVIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWrite:
    """Rows of one run under one fence: applied together or not at all.

    `operations` in the order of their making; the last row of a position wins. `ancestors`: ids of the runs whose budgets
    a reservation also draws on.
    """

    run_id: RunId
    fence: Fence
    operations: tuple[Operation, ...] = ()
    events: tuple[StreamEvent, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    artifacts: tuple[ArtifactReceipt, ...] = ()
    consumed: tuple[Position, ...] = ()
    """Positions whose stored result the agent's code has been given."""
    ancestors: tuple[RunId, ...] = ()
    reserve_seq: int | None = None
    """Show-first: numbers up to this one may be shown from now on."""
    closes_step: bool = False
    """After a cancel in mode `after_step`: these rows end the step that was allowed to finish, checkpoint included."""

    @property
    def moves_budget(self) -> bool:
        """Whether a row reserves or settles units."""
        return any(o.reserved or o.used for o in self.operations)

    def is_evidence(self) -> bool:
        """Whether a holder that a cancel has fenced out may still write this: nothing in it begins anything.

        Events that were emitted, results of what was dispatched; no seal, no dispatch, no consumption. A checkpoint only
        if it ends the step that the cancel let finish.
        """
        begins = (OperationStatus.SEALED, OperationStatus.DISPATCHED)
        return (
            not any(o.status in begins for o in self.operations)
            and not self.consumed
            and (self.closes_step or not self.checkpoints)
            and self.reserve_seq is None
        )

    def allowed_by(self, admission: Admission) -> bool:
        """Return whether what the run's fence grants covers this write."""
        match admission:
            case Admission.HOLDER:
                return True
            case Admission.EVIDENCE:
                return self.is_evidence()
            case Admission.STALE:
                return False


@dataclass(slots=True)
class Counters:
    """What a store did, counted where it happens; asserted in tests and published in the bench report."""

    commits: int = 0
    """Transactions that wrote and were committed."""
    statements: int = 0
    """Statements sent; on PostgreSQL about the round trips, less what was pipelined."""
    writes: int = 0
    """Write values applied, however few commits carried them."""
    transactions: int = 0
    """Decisions (`transact`) run, however few commits carried them."""
    reads: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    """Statements by query name."""
