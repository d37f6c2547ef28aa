"""Quiesce: durable run control for AI agents.

Runs that survive their process, side effects that are never repeated on a hope, and a cancel that leaves a provable
boundary. Start with `Quiesce`, `agent` and `tool`; `docs/architecture.md` shows the house.
"""

from quiesce.application import Quiesce, agent, tool
from quiesce.domain.boundary import CancelMode, CancelScope, Cause, Reason
from quiesce.domain.canonical import Json
from quiesce.domain.comparison import Mark, Relation, Seen
from quiesce.domain.continuations import Continuation
from quiesce.domain.errors import (
    BindingMismatch,
    BudgetExceeded,
    ContinuationRefused,
    IdempotencyConflict,
    InvalidInput,
    LeaseBusy,
    NotFound,
    OutcomeUnknown,
    QuestionExpired,
    QuiesceError,
    ReplayMismatch,
    SettlementPending,
    StepFailed,
    StoreError,
    ThreadBusy,
    ToolFailed,
)
from quiesce.domain.evidence import ArtifactReceipt, Verdict
from quiesce.domain.history import Turn
from quiesce.domain.operations import EffectPolicy, RetryPolicy
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import StreamEvent
from quiesce.domain.terminal import TerminalReceipt
from quiesce.handles import RunHandle
from quiesce.runtime.agent_loop import LoopResult, loop
from quiesce.runtime.children import ChildOutcome
from quiesce.runtime.context import Run
from quiesce.runtime.environment import Settings
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.readers import KeepAlive, StreamEnd, StreamStatus

__all__ = [
    "Absent",
    "ArtifactReceipt",
    "BindingMismatch",
    "BudgetExceeded",
    "Call",
    "CancelMode",
    "CancelScope",
    "Cause",
    "ChildOutcome",
    "Continuation",
    "ContinuationRefused",
    "EffectPolicy",
    "Happened",
    "IdempotencyConflict",
    "InvalidInput",
    "Json",
    "KeepAlive",
    "LeaseBusy",
    "LoopResult",
    "Mark",
    "NotFound",
    "OutcomeUnknown",
    "Policy",
    "QuestionExpired",
    "Quiesce",
    "QuiesceError",
    "Reason",
    "Relation",
    "ReplayMismatch",
    "RetryPolicy",
    "Run",
    "RunHandle",
    "RunStatus",
    "Seen",
    "Settings",
    "SettlementPending",
    "StepFailed",
    "StoreError",
    "StreamEnd",
    "StreamEvent",
    "StreamStatus",
    "TerminalReceipt",
    "ThreadBusy",
    "ToolFailed",
    "Turn",
    "Verdict",
    "agent",
    "loop",
    "tool",
]
