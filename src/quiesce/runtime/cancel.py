"""Cancel: the one verb. Its admission is C·X, one transaction over the run and whom its scope means.

Keeps: cancel against completion has one winner, the transaction that locks the run first (G-36). The answer to a cancel
says that it was admitted, never that the run has ended or what became durable (TR-46); the receipt says that, later. A
repeated key gets the first answer; another cancel of a run that already settles may only widen it (children, urgency).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from quiesce.domain.boundary import CAUSE_OF, Actor, ActorKind, CancelMode, CancelScope, Cause, Occurrence, Reason
from quiesce.domain.errors import InvalidInput, NotFound, required
from quiesce.domain.ids import OccurrenceId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.texts import check_text
from quiesce.ports.notifier import run_topic, worker_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.settlement import accept_end_tx, settle_deadline
from quiesce.runtime.trees import descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """What a caller asks. `key`: identity of this request; `grace_ms` None takes the setting."""

    run_id: RunId
    actor: Actor
    key: str
    text: str = ""
    reason: Reason = Reason.USER_CANCEL
    mode: CancelMode = CancelMode.NOW
    scope: CancelScope = CancelScope.TREE
    grace_ms: int | None = None
    tenant: str = "local"

    def check(self, env: Environment) -> None:
        """Raise `InvalidInput` for fields that break a limit."""
        check_text("reason", self.text, env.limits.text_chars_max, allow_empty=True)
        check_text("key", self.key, env.limits.key_chars_max)
        check_text("actor", self.actor.name, env.limits.name_chars_max)
        if self.grace_ms is not None and not 0 <= self.grace_ms <= 3_600_000:
            raise InvalidInput(field="grace_ms", value=self.grace_ms, rule="must be 0 to 3600000")
        if CAUSE_OF[self.reason] not in (Cause.EXPLICIT_CANCEL, Cause.TRANSPORT_INTERRUPTED):
            raise InvalidInput(field="reason", value=str(self.reason), rule="does not name a cancel")


class CancelVerdict(StrEnum):
    """How a cancel was admitted."""

    ACCEPTED = "accepted"
    ALREADY_ACCEPTED = "already_accepted"
    """The run already settles; this request may have widened it."""
    ALREADY_TERMINAL = "already_terminal"
    """The run had ended: nothing of it changed, and that is no failure (RR-28). Runs below it may have been reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAdmission:
    """The answer of a cancel: the AdmissionReceipt. Says nothing of durability (TR-46)."""

    verdict: CancelVerdict
    run_id: RunId
    occurrence: Occurrence | None
    receipt: TerminalReceipt | None
    reached: tuple[RunId, ...]
    """Runs that this request fenced, when it was first made, the run itself first."""

    def to_json(self) -> dict[str, object]:
        """Return the form that CLI and HTTP show."""
        return {
            "verdict": str(self.verdict),
            "run_id": self.run_id,
            "occurrence_id": self.occurrence.id if self.occurrence else None,
            "receipt_id": self.receipt.id if self.receipt else None,
            "reached": list(self.reached),
        }


def cancel_tx(tx: Transaction, env: Environment, request: CancelRequest) -> CancelAdmission:
    """Admit a cancel: record C, fence the run and its active descendants in the same decision (RR-29, RR-30).

    A scope that is a tree means what still runs below, also once the run itself has ended (C05). Raises `NotFound` for a run
    that this tenant does not have: never a silent success (C01).
    """
    seen = tx.runs.get(request.run_id)
    if seen is None or seen.tenant != request.tenant:
        raise NotFound("run", request.run_id, "nothing was cancelled")
    tree = _lock_tree(tx, seen, request.scope, env.limits.tree_runs_max)
    run = tree[0]
    grace_ms = env.settings.grace_ms if request.grace_ms is None else request.grace_ms
    settle_at = settle_deadline(tx.now, grace_ms, env.settings.drain_ms)
    if run.is_active:
        accept_end_tx(tx, run, _occurrence(env, tx.now, run, request, grace_ms), settle_at=settle_at)
    elif request.mode is CancelMode.NOW and not run.is_terminal:
        _hasten(tx, run, settle_at)
    origin = tx.terminal.occurrence(run.id)
    for child in tree[1:]:
        if child.is_active:
            ended = _child_occurrence(env, tx.now, child, run, request, grace_ms, origin)
            accept_end_tx(tx, child, ended, settle_at=settle_at)
    verdict = CancelVerdict.ALREADY_TERMINAL if run.is_terminal else CancelVerdict.ALREADY_ACCEPTED
    return _admission(tx, verdict, tree, request)


def _lock_tree(tx: Transaction, root: Run, scope: CancelScope, runs_max: int) -> list[Run]:
    """Lock the run and, for a tree, everything below it; the root first.

    The tree is read unlocked and looked at again once it is locked: a locked run spawns nothing, so it stops growing.
    """
    if scope is CancelScope.RUN:
        return list(tx.runs.lock_many([root.id]).values())
    ids = {root.id}
    while True:
        locked = tx.runs.lock_many(ids)
        grown = {root.id, *(run.id for run in descendants(tx, root.id))}
        if len(grown) > runs_max:
            raise InvalidInput(field="scope", value=len(grown), rule=f"one cancel reaches at most {runs_max} runs")
        if grown <= ids:
            return [locked[root.id], *(locked[i] for i in sorted(ids - {root.id}) if i in locked)]
        ids = grown


def _hasten(tx: Transaction, run: Run, settle_at: Instant) -> None:
    """Shorten a settlement that lets the step end: the holder, which sees it shortened, interrupts what it waits for."""
    occurrence = required(tx.terminal.occurrence(run.id), "a settling run has its occurrence")
    if run.settle_at is None or (occurrence.mode is CancelMode.NOW and run.settle_at <= settle_at):
        return
    tx.runs.save(replace(run, settle_at=min(settle_at, Instant(run.settle_at - 1))))
    if run.worker_id is not None:
        tx.ring(worker_topic(run.worker_id))
    tx.ring(run_topic(run.id))


def _occurrence(env: Environment, now: Instant, run: Run, request: CancelRequest, grace_ms: int) -> Occurrence:
    return Occurrence(
        id=OccurrenceId(env.new_id(now)),
        run_id=run.id,
        cause=CAUSE_OF[request.reason],
        reason=request.reason,
        actor=request.actor,
        text=request.text,
        command_key=request.key,
        mode=request.mode,
        scope=request.scope,
        grace_ms=grace_ms,
        origin_id=None,
        never_started=run.attempt == 0,
        at=now,
    )


def _child_occurrence(
    env: Environment,
    now: Instant,
    child: Run,
    root: Run,
    request: CancelRequest,
    grace_ms: int,
    origin: Occurrence | None,
) -> Occurrence:
    own = _occurrence(env, now, child, request, grace_ms)
    return replace(
        own,
        cause=Cause.EXPLICIT_CANCEL,
        reason=Reason.PARENT_CANCEL,
        actor=Actor(kind=ActorKind.RUN, name=root.id),
        origin_id=origin.id if origin else None,
    )


def _admission(tx: Transaction, verdict: CancelVerdict, tree: Sequence[Run], request: CancelRequest) -> CancelAdmission:
    """Make the answer. What a request did is told by its key on the occurrences, so a repetition gets the first answer."""
    run = tree[0]
    ends = tx.terminal.occurrences([member.id for member in tree])
    reached = tuple(m.id for m in tree if m.id in ends and _is_of(ends[m.id], request))
    return CancelAdmission(
        verdict=CancelVerdict.ACCEPTED if run.id in reached else verdict,
        run_id=run.id,
        occurrence=ends.get(run.id),
        receipt=tx.terminal.receipt(run.id),
        reached=reached,
    )


def _is_of(occurrence: Occurrence, request: CancelRequest) -> bool:
    return occurrence.command_key == request.key and occurrence.reason in (request.reason, Reason.PARENT_CANCEL)


def end_tx(tx: Transaction, env: Environment, run: Run, reason: Reason, text: str, actor: Actor, grace_ms: int) -> Run:
    """C·X of an end that is no cancel (deadline, budget, process lost) of a run locked by the caller."""
    occurrence = plain_occurrence(env, tx.now, run, reason, text, actor, grace_ms)
    return accept_end_tx(tx, run, occurrence, settle_at=settle_deadline(tx.now, grace_ms, env.settings.drain_ms))


def plain_occurrence(
    env: Environment, now: Instant, run: Run, reason: Reason, text: str, actor: Actor, grace_ms: int
) -> Occurrence:
    """Make the occurrence of an end that nobody requested by command: its key is the run's own."""
    return Occurrence(
        id=OccurrenceId(env.new_id(now)),
        run_id=run.id,
        cause=CAUSE_OF[reason],
        reason=reason,
        actor=actor,
        text=text[: env.limits.text_chars_max],
        command_key=f"end:{run.id}",
        mode=CancelMode.NOW,
        scope=CancelScope.RUN,
        grace_ms=grace_ms,
        origin_id=None,
        never_started=run.attempt == 0,
        at=now,
    )


def overdue_tx(tx: Transaction, env: Environment, *, limit: int) -> list[RunId]:
    """End runs whose deadline has passed and that nobody holds (a holder ends its own)."""
    clock = Actor(kind=ActorKind.SERVICE, name="clock")
    ended: list[RunId] = []
    for run in tx.runs.overdue(now=tx.now, limit=limit):
        if run.status is not RunStatus.SETTLING:
            end_tx(tx, env, run, Reason.DEADLINE, "the run's deadline has passed", clock, 0)
            ended.append(run.id)
    return ended
