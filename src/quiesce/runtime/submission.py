"""Submission: a run exists, durably, before anybody is told so (G-24, C57).

Keeps: the same idempotency key with the same content gives the same run back, whatever happened to the first answer; with
other content it is a conflict that names both. Question, bindings, deadline and budget are fixed here, for life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import digest_of
from quiesce.domain.disconnects import DisconnectPolicy
from quiesce.domain.errors import IdempotencyConflict, InvalidInput
from quiesce.domain.ids import Fence, RunId, ThreadId
from quiesce.domain.instant import Instant, after_ms, to_iso
from quiesce.domain.limits import Limits
from quiesce.domain.runs import Durability, Run, RunStatus
from quiesce.domain.streams import Visibility
from quiesce.domain.texts import check_text
from quiesce.domain.threads import Thread
from quiesce.ports.notifier import WORK
from quiesce.ports.store import Transaction
from quiesce.runtime.disconnects import watch_clients_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.placement import TurnRequest, place_tx

TIMEOUT_MS_MAX: Final = 366 * 86_400_000
"""A year: a run that may take longer says so by an absolute deadline, or has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request to run an agent. `input` and `bindings` are canonical JSON."""

    agent: str
    input: bytes
    bindings: bytes = b"{}"
    thread_id: ThreadId | None = None
    key: str | None = None
    tenant: str = "local"
    subject: str = "local"
    deadline_at: Instant | None = None
    timeout_ms: int | None = None
    """A deadline counted from the submission, by the store's clock: the same in every retry under one key."""
    budget: Budget = field(default_factory=Budget)
    durability: Durability = Durability.SYNC
    visibility: Visibility = Visibility.STORE_FIRST
    turn: TurnRequest = field(default_factory=TurnRequest)
    disconnect: DisconnectPolicy = field(default_factory=DisconnectPolicy)

    def fingerprint(self) -> str:
        """Return the digest of the fields that give the request its meaning (CC-14)."""
        return digest_of(
            {
                "agent": self.agent,
                "input": self.input.decode(),
                "bindings": self.bindings.decode(),
                "thread_id": self.thread_id,
                "subject": self.subject,
                "deadline_at": self.deadline_at,
                "timeout_ms": self.timeout_ms,
                "budget": {a.unit: a.limit for a in self.budget.allowances},
                "durability": str(self.durability),
                "visibility": str(self.visibility),
                **self.turn.facts(),
                **self.disconnect.facts(),
            }
        )

    def check(self, limits: Limits) -> None:
        """Raise `InvalidInput` for fields from outside that break a limit."""
        checks: Mapping[str, tuple[str | None, int]] = {
            "agent": (self.agent, limits.name_chars_max),
            "key": (self.key, limits.key_chars_max),
            "thread_id": (self.thread_id, limits.name_chars_max),
            "tenant": (self.tenant, limits.name_chars_max),
            "subject": (self.subject, limits.name_chars_max),
        }
        for name, (value, chars_max) in checks.items():
            check_text(name, value, chars_max)
        self.disconnect.check()
        if self.timeout_ms is not None and self.deadline_at is not None:
            raise InvalidInput(field="timeout_ms", value=self.timeout_ms, rule="cannot go with deadline_at")
        if self.timeout_ms is not None and not 0 < self.timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidInput(field="timeout_ms", value=self.timeout_ms, rule=f"must be 1 to {TIMEOUT_MS_MAX}")


def submit_tx(
    tx: Transaction, env: Environment, wanted: Submission, *, run_id: RunId, thread_id: ThreadId, parent: Run | None = None
) -> Run:
    """Store a run and return it: pending with its turn taken, or queued behind the head; or the run that its key made before.

    A new run of a thread builds on the boundary of the one before: under a record, or not at all. Raises
    `IdempotencyConflict`, `ThreadBusy`, `ContinuationRefused`, `InvalidInput`; nothing is stored then.
    """
    if wanted.key is not None and (known := tx.runs.by_key(wanted.tenant, wanted.key)) is not None:
        return _same_or_conflict(known, wanted)
    thread_id = wanted.thread_id or thread_id
    tx.threads.insert(Thread(id=thread_id, tenant=wanted.tenant, created_at=tx.now))
    thread = tx.threads.lock(thread_id)
    if thread is None or thread.tenant != wanted.tenant:
        raise InvalidInput(field="thread_id", value=thread_id, rule="belongs to somebody else")
    if wanted.key is not None and (known := tx.runs.by_key(wanted.tenant, wanted.key)) is not None:
        return _same_or_conflict(known, wanted)  # stored by another process while this one waited for the thread
    run = _new_run(wanted, run_id=run_id, thread=thread, parent=parent, now=tx.now)
    run, thread = place_tx(tx, env, thread, run, wanted.turn)
    tx.runs.insert(run)
    tx.streams.open(run.id)
    watch_clients_tx(tx, env, run, wanted.disconnect)
    tx.threads.save(replace(thread, runs=run.number))
    tx.ring(WORK)
    return run


def _same_or_conflict(known: Run, wanted: Submission) -> Run:
    if known.fingerprint == wanted.fingerprint():
        return known
    raise IdempotencyConflict(
        f"key {wanted.key!r} already names run {known.id} (agent {known.agent!r}), whose content differs; "
        "use another key for another request",
        key=wanted.key,
        run_id=known.id,
        stored_fingerprint=known.fingerprint,
        offered_fingerprint=wanted.fingerprint(),
    )


def _new_run(wanted: Submission, *, run_id: RunId, thread: Thread, parent: Run | None, now: Instant) -> Run:
    own = wanted.deadline_at if wanted.timeout_ms is None else after_ms(now, wanted.timeout_ms)
    deadlines = [d for d in (own, parent.deadline_at if parent else None) if d is not None]
    if wanted.deadline_at is not None and wanted.deadline_at <= now:
        raise InvalidInput(field="deadline_at", value=to_iso(wanted.deadline_at), rule="lies in the past")
    return Run(
        id=run_id,
        thread_id=thread.id,
        number=thread.runs + 1,
        tenant=wanted.tenant,
        subject=wanted.subject,
        key=wanted.key,
        fingerprint=wanted.fingerprint(),
        agent=wanted.agent,
        input=wanted.input,
        bindings=wanted.bindings,
        parent_id=parent.id if parent else None,
        root_id=parent.root_id if parent else run_id,
        status=RunStatus.PENDING,
        fence=Fence(0),
        worker_id=None,
        attempt=0,
        drain_fence=None,
        settle_at=None,
        waits=(),
        due_at=None,
        deadline_at=min(deadlines, default=None),
        durability=wanted.durability,
        visibility=wanted.visibility,
        budget=wanted.budget,
        created_at=now,
        ended_at=None,
    )
