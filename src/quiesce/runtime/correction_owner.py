"""Corrections as an owner of the control channel: whether a person's words reach a running agent is decided here (NO-11, NO-16).

    correct ──▶ queued ──▶ applied at the run's next safe boundary | withdrawn | returned with the receipt of the run's end

Keeps: an accepted correction is kept for its run and for no other, neither a child nor a later run of the thread (C04); it
is applied at most once, and if the run ends first it comes back with the receipt that says so (C07). Accepted means kept,
never applied: what became of it stands in the run's mailbox (CC-69).

It wakes nobody: a run that waits for something else takes it at its next boundary.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from quiesce.domain.commands import Kind, Target
from quiesce.domain.deliveries import Command
from quiesce.domain.mailbox import EntryId, EntryKind
from quiesce.domain.runs import Run
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.environment import Environment
from quiesce.runtime.mailbox import arrive_tx, withdraw_entry_tx
from quiesce.runtime.owners import Decision, Owner, accepted, rejected
from quiesce.runtime.run_owner import OwnerOfRuns, RunOwner, arrival_of

CORRECT: Final = Kind(name="correct")
WITHDRAW: Final = Kind(name="withdraw")


class _CorrectPayload(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _WithdrawPayload(msgspec.Struct, forbid_unknown_fields=True):
    correction: str


def correct_command(
    run_id: str, text: str, *, producer: str, producer_key: str, subject: str, tenant: str = "local"
) -> CommandRequest:
    """Return the command that gives a running agent a person's words."""
    return CommandRequest(
        kind=CORRECT,
        target=Target(owner=CorrectionOwner.name, id=run_id),
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        payload={"text": text},
        tenant=tenant,
    )


def withdraw_command(
    run_id: str, correction: str, *, producer: str, producer_key: str, subject: str, tenant: str = "local"
) -> CommandRequest:
    """Return the command that takes back a correction, by its id, before it is applied."""
    return CommandRequest(
        kind=WITHDRAW,
        target=Target(owner=CorrectionOwner.name, id=run_id),
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        payload={"correction": correction},
        tenant=tenant,
    )


class CorrectionOwner(OwnerOfRuns):
    """Decides about corrections of running agents."""

    name: ClassVar[str] = "correction"
    kinds: ClassVar[tuple[Kind, ...]] = (CORRECT, WITHDRAW)

    def answer(self, tx: Transaction, command: Command, run: Run) -> Decision:
        """Keep a correction for its run, or take one back; or a refusal that says why."""
        if command.intent.kind == CORRECT:
            said = msgspec.json.decode(command.intent.payload, type=_CorrectPayload)
            return accepted(f"correction {arrive_tx(tx, self._env, arrival_of(command, EntryKind.CORRECTION, said.text)).id}")
        asked = msgspec.json.decode(command.intent.payload, type=_WithdrawPayload)
        seen = tx.mailbox.get(EntryId(asked.correction))
        if seen is None or (seen.run_id, seen.kind) != (run.id, EntryKind.CORRECTION):
            return rejected("no such correction")
        return accepted(f"correction {withdraw_entry_tx(tx, seen.id, tenant=run.tenant).id}")


def owners_of_runs(env: Environment) -> list[Owner]:
    """Return the owners that every worker brings along."""
    return [RunOwner(env), CorrectionOwner(env)]
