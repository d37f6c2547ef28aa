"""Checkpoints: complete states at boundaries of completed steps, and H1, the digest over the last of them.

A checkpoint is written once and never changed (TR-32). Partial output never becomes one: only the agent's own call, or
the completion of the run, makes a checkpoint (TR-31). `covered_seq` says which stream events its content contains.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.canonical import canonical, digest, parse
from quiesce.domain.ids import CheckpointId, Fence, RunId, ThreadId
from quiesce.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A completed state of a run. `state` is canonical JSON; `number` counts from 1 within the run."""

    id: CheckpointId
    run_id: RunId
    thread_id: ThreadId
    number: int
    parent_id: CheckpointId | None
    state: bytes
    covered_seq: int
    is_final: bool
    fence: Fence
    created_at: Instant

    def h1(self) -> str:
        """Return the durable state digest H1: over checkpoint id, parent id, state and covered number (TR-12)."""
        return digest(
            canonical(
                {
                    "checkpoint_id": self.id,
                    "parent_id": self.parent_id,
                    "state": digest(self.state),
                    "covered_seq": self.covered_seq,
                }
            )
        )

    def to_json(self) -> dict[str, object]:
        """Return the checkpoint as reading verbs show it."""
        return {
            "checkpoint_id": self.id,
            "number": self.number,
            "parent_id": self.parent_id,
            "covered_seq": self.covered_seq,
            "is_final": self.is_final,
            "durable_state_digest": self.h1(),
            "state": parse(self.state),
        }


def h1_of_nothing(run_id: RunId) -> str:
    """Return H1 of a run without any checkpoint, so that the field is never empty."""
    return digest(canonical({"run_id": run_id, "checkpoint_id": None}))
