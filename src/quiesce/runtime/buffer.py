"""Rows of one attempt that wait for their next write: what has gathered since the last one, in the order of its making.

Knows nothing of stores and fences. What of it is evidence, and so outlives a stop, is said here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.evidence import ArtifactReceipt
from quiesce.domain.ids import Position
from quiesce.domain.operations import Operation, OperationKind, OperationStatus
from quiesce.domain.streams import StreamEvent


@dataclass(slots=True)
class Buffer:
    """Rows that wait for the next write."""

    operations: dict[Position, Operation] = field(default_factory=dict)
    events: list[StreamEvent] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    artifacts: list[ArtifactReceipt] = field(default_factory=list)
    consumed: list[Position] = field(default_factory=list)
    reserve_seq: int | None = None

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self.operations or self.events or self.checkpoints or self.artifacts or self.consumed or self.reserve_seq)

    def followed_by(self, later: Buffer) -> Buffer:
        """Return these rows with later ones behind them."""
        return Buffer(
            operations={**self.operations, **later.operations},
            events=[*self.events, *later.events],
            checkpoints=[*self.checkpoints, *later.checkpoints],
            artifacts=[*self.artifacts, *later.artifacts],
            consumed=[*self.consumed, *later.consumed],
            reserve_seq=self.reserve_seq if later.reserve_seq is None else later.reserve_seq,
        )

    def keep_only_evidence(self, *, with_checkpoint: bool) -> None:
        """Drop what would begin something. A checkpoint and its mark are one fact: neither is kept without the other."""
        self.operations = {p: o for p, o in self.operations.items() if not begins(o)}
        self.consumed.clear()
        self.reserve_seq = None
        if not with_checkpoint:
            self.checkpoints.clear()
            self.operations = {p: o for p, o in self.operations.items() if o.kind is not OperationKind.CHECKPOINT}


def begins(operation: Operation) -> bool:
    """Whether storing this row lets something begin: it is no evidence of what already happened."""
    return operation.status in (OperationStatus.SEALED, OperationStatus.DISPATCHED)
