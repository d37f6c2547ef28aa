"""What an attempt's end is made of: how a settling run stands, why an agent's own end ends the run, and the last rows.

Questions only, asked of a row, a task and a journal; `execution.py` acts on the answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quiesce.domain.boundary import CancelMode, Reason
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import (
    BudgetExceeded,
    FenceLost,
    InvalidInput,
    OutcomeUnknown,
    ReplayMismatch,
    StepFailed,
    Stopped,
    StoreError,
    ToolFailed,
    required,
)
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.writes import RunWrite
from quiesce.ports.store import Transaction
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.codec import encode

_REASON_OF: tuple[tuple[type[BaseException], Reason], ...] = (
    (BudgetExceeded, Reason.BUDGET),
    (ReplayMismatch, Reason.REPLAY_MISMATCH),
    (ToolFailed, Reason.TOOL_ERROR),
    (StepFailed, Reason.TOOL_ERROR),
    (OutcomeUnknown, Reason.TOOL_ERROR),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """A run whose end is accepted, as its holder finds it: how long it may still drain."""

    mode: CancelMode
    grace_ms: float


def read_settling(tx: Transaction, mine: Run, drain_ms: int) -> Settling | RunStatus | None:
    """Return None if the run is still ours, how it settles if an end was accepted under our fence, else its status."""
    run = required(tx.runs.get(mine.id), "a claimed run exists")
    if run.status is RunStatus.RUNNING and run.fence == mine.fence:
        return None
    if run.status is not RunStatus.SETTLING or run.drain_fence != mine.fence or run.settle_at is None:
        return run.status
    occurrence = required(tx.terminal.occurrence(run.id), "a settling run has its occurrence")
    hastened = run.settle_at < occurrence.at + (occurrence.grace_ms + drain_ms) * 1000
    grace_ms = max(0.0, (run.settle_at - tx.now) / 1000 - drain_ms)
    return Settling(mode=CancelMode.NOW if hastened else occurrence.mode, grace_ms=grace_ms)


def reason_of(agent: asyncio.Task[object]) -> tuple[Reason | None, str]:
    """Return why the agent's own end ends the run; no reason if it ended for another's."""
    if agent.cancelled():
        return Reason.AGENT_ERROR, "the agent cancelled itself"
    error = agent.exception()
    if isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, Stopped | FenceLost)), error)
    if error is None:
        return Reason.FINISHED, ""
    if isinstance(error, Stopped | FenceLost):
        return None, ""
    if isinstance(error, StoreError):
        raise error  # not the agent's end: the store's trouble, and nothing can be stored of it
    reason = next((r for kind, r in _REASON_OF if isinstance(error, kind)), Reason.AGENT_ERROR)
    text = str(error) if reason is not Reason.AGENT_ERROR else f"{type(error).__name__}: {error}"
    return reason, text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def last_write(attempt: Attempt, agent: asyncio.Task[object], reason: Reason, text: str) -> tuple[RunWrite, Reason, str]:
    """Take the last rows. A completed run's result is its final checkpoint, which covers everything emitted."""
    journal = attempt.journal
    if reason is Reason.FINISHED:
        try:
            result = encode(agent.result(), field="result", limits=attempt.env.limits)
        except InvalidInput as error:  # what the agent returned has no stored form
            return journal.take(), Reason.AGENT_ERROR, str(error)
        state_of = journal.checkpoint.id if journal.checkpoint else None
        journal.make_checkpoint(canonical({"result": parse(result), "state_of": state_of}), is_final=True)
    return journal.take(), reason, text
