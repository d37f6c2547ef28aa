"""The Run as an owner of the control channel: a staged cancel or wake reaches it, and it alone decides (NO-08, CC-05).

A cancel from a process that reaches the store needs no command: `ControlService.cancel` asks the run directly, and so does
`ControlService.wake`. A command is for a real hand-over: a cancel that is staged in somebody's own transaction, beside the
row that says why.

Keeps: what it answers is C, the admission of an end, never that the run has ended (TR-46); a run that had ended is a
definite refusal and no failure (G-36, G-38); another tenant's run does not exist. The run's own receipt proves what became
of it, never the state of a queue (CC-69).
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope
from quiesce.domain.canonical import Json, parse
from quiesce.domain.commands import Kind, Target
from quiesce.domain.deliveries import AdmissionReceipt, Command
from quiesce.domain.errors import InvalidInput, Refused, RunEnded, StoreError, required
from quiesce.domain.ids import RunId
from quiesce.domain.mailbox import EntryKind
from quiesce.domain.runs import Run
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelAdmission, CancelRequest, cancel_tx
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.disconnects import CLIENT_LEFT, request_of
from quiesce.runtime.environment import Environment
from quiesce.runtime.mailbox import Arrival, arrive_tx
from quiesce.runtime.owners import Decision, Delivery, LocalOwner, accepted, rejected
from quiesce.runtime.settlement import settle_abandoned

CANCEL: Final = Kind(name="cancel", is_barrier=False, overtakes=True)
"""Monotone and idempotent: it waits for no earlier command of its run, and a full scope still takes it."""


WAKE: Final = Kind(name="wake", is_barrier=False)
"""Wakes of different names have nothing to do with each other; those of one name are taken in the order of their arrival."""

Permission = Callable[[Command, Run], bool]
"""Whether a command's subject may do this to a run: the application's own rule. A tenant's runs exist for nobody else anyway."""


class _CancelPayload(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""
    mode: CancelMode = CancelMode.NOW
    scope: CancelScope = CancelScope.TREE
    grace_ms: int | None = None


def cancel_command(
    run_id: str,
    *,
    producer: str,
    producer_key: str,
    subject: str,
    reason: str = "",
    mode: CancelMode = CancelMode.NOW,
    scope: CancelScope = CancelScope.TREE,
    grace_ms: int | None = None,
    tenant: str = "local",
) -> CommandRequest:
    """Return the command that cancels a run; stage it wherever the decision to cancel is stored."""
    return CommandRequest(
        kind=CANCEL,
        target=Target(owner=RunOwner.name, id=run_id),
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        payload={"reason": reason, "mode": str(mode), "scope": str(scope), "grace_ms": grace_ms},
        tenant=tenant,
    )


class _WakePayload(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: msgspec.Raw = msgspec.Raw(b"null")


def wake_command(
    run_id: str, name: str, value: Json = None, *, producer: str, producer_key: str, subject: str, tenant: str = "local"
) -> CommandRequest:
    """Return the command that wakes a run which waits, or will wait, for `name`; `run.wait_for(name)` returns `value`."""
    return CommandRequest(
        kind=WAKE,
        target=Target(owner=RunOwner.name, id=run_id),
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        payload={"name": name, "value": value},
        tenant=tenant,
    )


class OwnerOfRuns(LocalOwner):
    """Base of the owners whose targets are runs: what they refuse alike. Override `answer`."""

    def __init__(self, env: Environment, may: Permission | None = None) -> None:
        self._env = env
        self._may = may

    def decide(self, tx: Transaction, command: Command) -> Decision:
        """Refuse for a run that does not exist for this tenant, a subject that may not, or what cannot be read; else answer."""
        run = tx.runs.lock(RunId(command.target.id))
        if run is None or run.tenant != command.intent.tenant:
            return rejected("no such run")
        if self._may is not None and not self._may(command, run):
            return rejected(f"subject {command.intent.subject!r} may not {command.intent.kind.name} this run")
        try:
            return self.answer(tx, command, run)
        except RunEnded as ended:
            return rejected(ended.message, effect_ref=f"receipt {ended.details['receipt_id']}")
        except Refused as refusal:
            return rejected(refusal.message)
        except (InvalidInput, msgspec.ValidationError) as error:
            return rejected(f"the command cannot be read: {error}")

    @abstractmethod
    def answer(self, tx: Transaction, command: Command, run: Run) -> Decision:
        """Decide about a command to a run that is locked."""


class RunOwner(OwnerOfRuns):
    """Decides about commands to runs."""

    name: ClassVar[str] = "run"
    kinds: ClassVar[tuple[Kind, ...]] = (CANCEL, WAKE, CLIENT_LEFT)

    def answer(self, tx: Transaction, command: Command, run: Run) -> Decision:
        """Admit a cancel or a client's leaving (C·X), or keep a wake; or a refusal that says why."""
        if command.intent.kind == WAKE:
            return self._wake(tx, command)
        if command.intent.kind == CLIENT_LEFT:
            meant = request_of(tx, command, run)
            return meant if isinstance(meant, Decision) else _decision(tx, run, cancel_tx(tx, self._env, meant))
        asked = msgspec.json.decode(command.intent.payload, type=_CancelPayload)
        request = CancelRequest(
            run_id=run.id,
            actor=Actor(kind=ActorKind.USER, name=command.intent.subject),
            key=command.key,
            text=asked.reason,
            mode=asked.mode,
            scope=asked.scope,
            grace_ms=asked.grace_ms,
            tenant=command.intent.tenant,
        )
        request.check(self._env)
        return _decision(tx, run, cancel_tx(tx, self._env, request))

    def _wake(self, tx: Transaction, command: Command) -> Decision:
        asked = msgspec.json.decode(command.intent.payload, type=_WakePayload)
        arrival = arrival_of(command, EntryKind.WAKE, parse(bytes(asked.value)), asked.name)
        return accepted(f"wake {arrive_tx(tx, self._env, arrival).id}")

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """See `Owner`. Where nobody holds a run that it ends, the settlement is finished here, behind the admission (C10)."""
        receipt = await super().admit(env, delivery)
        with contextlib.suppress(StoreError):  # it is admitted; whoever comes next finishes it
            await settle_abandoned(env, limit=env.limits.sweep_batch_max)
        return receipt


def arrival_of(command: Command, kind: EntryKind, value: Json, name: str = "") -> Arrival:
    """Return what a command brings to its run, under the command's own identity."""
    return Arrival(
        run_id=RunId(command.target.id),
        kind=kind,
        name=name,
        value=value,
        key=command.key,
        subject=command.intent.subject,
        tenant=command.intent.tenant,
    )


def _decision(tx: Transaction, before: Run, admission: CancelAdmission) -> Decision:
    """Say what the cancel did: whom it reached or hastened, or why there was nothing left to reach."""
    if admission.reached:
        reached = required(tx.terminal.occurrence(admission.reached[0]), "a run that was fenced has its occurrence")
        return accepted(f"occurrence {reached.id}")
    run = required(tx.runs.get(admission.run_id), "a run whose cancel was answered exists")
    if run.settle_at != before.settle_at:
        return accepted(f"occurrence {_id(admission)}")
    ended = admission.receipt
    if ended is not None:
        return rejected(f"already terminal: {run.status}", effect_ref=f"receipt {ended.id}")
    return rejected("already settling: an end was accepted before", effect_ref=f"occurrence {_id(admission)}")


def _id(admission: CancelAdmission) -> str:
    return "" if admission.occurrence is None else admission.occurrence.id
