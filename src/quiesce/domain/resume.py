"""What may follow a terminal boundary: one pure function over cause, durability, gap and the state of operations.

Used twice and never stored as authority: the receipt carries its answer as advice, and whoever uses it asks again with the
newest facts. It depends on nothing else, in particular not on how a stream closed (TR-39).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.domain.boundary import Cause, GapKind, TerminalDurability


class ToolState(StrEnum):
    """Where the operations of a run stand, as far as the policy asks."""

    IDLE = "idle"
    SEALED = "sealed"
    COMMITTED_UNCONSUMED = "committed_unconsumed"
    OUTCOME_UNKNOWN = "outcome_unknown"


class Policy(StrEnum):
    """What a continuation needs."""

    NONE = "none"
    """No boundary yet: behaves as block; only the settlement may go on."""
    ALLOW = "allow"
    RECONCILE = "reconcile"
    RESTART = "restart"
    BLOCK = "block"


class SameRun(StrEnum):
    """Whether the run itself may get another attempt."""

    NO = "no"
    YES = "yes"
    OUTCOME_OWNER = "if the outcome owner says so"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """The answer of `resume_policy`: rule, policy, whether the same run may go on, and what is admissible in words."""

    rule: str
    policy: Policy
    same_run: SameRun
    admissible: str


_BY_CAUSE: Final[Mapping[Cause, tuple[tuple[str, str], tuple[str, str], tuple[str, str], SameRun]]] = {
    Cause.COMPLETED: (
        ("R3", "terminal readback; new run on the thread"),
        ("R4", "attach the delta as provenance; then new run"),
        ("R5", "new run from the last checkpoint only with acceptance naming what was lost"),
        SameRun.NO,
    ),
    Cause.EXPLICIT_CANCEL: (
        ("R6", "new run on the thread; this run never continues; unconsumed results are listed, not consumed"),
        ("R7", "show and attach the partial evidence; then new run"),
        ("R8", "new run from the last checkpoint; acceptance names number range and digest given up"),
        SameRun.NO,
    ),
    Cause.TRANSPORT_INTERRUPTED: (
        ("R9", "continue at its position; the client rejoins by number"),
        ("R10", "replay the stored delta to the client, record, continue"),
        ("R11", "with acceptance, from the last checkpoint; the step runs again from its start"),
        SameRun.YES,
    ),
    Cause.FAILED: (
        ("R12", "another attempt if the outcome owner says so; else new run"),
        ("R13", "delta kept as partial evidence; another attempt if the outcome owner says so, else new run"),
        ("R14", "with acceptance; another attempt if the outcome owner says so, else new run"),
        SameRun.OUTCOME_OWNER,
    ),
}


def resume_policy(cause: Cause, durability: TerminalDurability | None, gap: GapKind, tools: ToolState) -> ResumePolicy:
    """Decide what may follow a terminal boundary: ordered rules R0…R14, first match wins.

    Pure and total; `durability` None means that no outcome is established. Depends on cause and facts only, never on how
    a stream closed (TR-39). The expanded table is checked in the tests, row by row.
    """
    if durability is None:
        return ResumePolicy(
            rule="R0", policy=Policy.NONE, same_run=SameRun.NO, admissible="no receipt yet: finish settlement; nothing else"
        )
    if gap is GapKind.CONTRADICTS:
        return ResumePolicy(
            rule="R1", policy=Policy.BLOCK, same_run=SameRun.NO, admissible="inspect; reconcile by an explicit record"
        )
    if tools is ToolState.OUTCOME_UNKNOWN:
        return ResumePolicy(
            rule="R2",
            policy=Policy.BLOCK,
            same_run=SameRun.NO,
            admissible="read the tool's receipt again; reconcile; no dispatch; report what is known",
        )
    clean, recoverable, lost, same_run = _BY_CAUSE[cause]
    match gap:
        case GapKind.NONE:
            return ResumePolicy(rule=clean[0], policy=Policy.ALLOW, same_run=same_run, admissible=clean[1])
        case GapKind.RECOVERABLE:
            return ResumePolicy(rule=recoverable[0], policy=Policy.RECONCILE, same_run=same_run, admissible=recoverable[1])
        case GapKind.PART_LOST | GapKind.LOST:
            return ResumePolicy(rule=lost[0], policy=Policy.RESTART, same_run=same_run, admissible=lost[1])


def tool_state(statuses: list[tuple[bool, str]]) -> ToolState:
    """Fold (may have acted, status) of all operations to what the policy asks; the gravest wins."""
    if any(unknown for unknown, _ in statuses):
        return ToolState.OUTCOME_UNKNOWN
    if any(status == "committed" for _, status in statuses):
        return ToolState.COMMITTED_UNCONSUMED
    if any(status in ("sealed", "dispatched") for _, status in statuses):
        return ToolState.SEALED
    return ToolState.IDLE
