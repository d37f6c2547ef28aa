"""What reaches a run from outside: decided under the run's lock, in one transaction, each with one definite answer.

Keeps: what is accepted is kept, whether the run waits already or not, so no wake is lost in between (C13); a run that has
ended takes nothing and says so with its receipt (C07); the same key with the same content is the same entry for ever.
Waking a run is its owner's own decision, made here as it is made where a child ends (NO-16); a correction wakes nobody, it
waits for the run's next safe boundary.

Used by the owners of the control channel and by the control service alike. How the run's code takes it: `intake.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.canonical import Json, canonical
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, InvalidInput, NotFound, Refused, RunEnded, required
from quiesce.domain.ids import RunId
from quiesce.domain.limits import Limits
from quiesce.domain.mailbox import EntryId, EntryKind, EntryStatus, MailboxEntry
from quiesce.domain.runs import Run, WaitKind
from quiesce.domain.texts import check_text
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import wake_tx
from quiesce.runtime.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What is to reach a run. `key`: identity of this request within the run. `name`: of a wake; "" for a correction."""

    run_id: RunId
    kind: EntryKind
    value: Json
    key: str
    subject: str
    name: str = ""
    tenant: str = "local"

    def check(self, limits: Limits) -> None:
        """Raise `InvalidInput` for a field that breaks a rule."""
        check_text("key", self.key, limits.key_chars_max)
        check_text("subject", self.subject, limits.name_chars_max)
        if self.kind is EntryKind.WAKE:
            check_text("name", self.name, limits.name_chars_max)
            return
        if not isinstance(self.value, str):
            raise InvalidInput(field="text", value=self.value, rule="must be text")
        check_text("text", self.value, limits.correction_chars_max)


def arrive_tx(tx: Transaction, env: Environment, wanted: Arrival) -> MailboxEntry:
    """Keep what reaches a run, and wake the run if it waits for that; return the entry, or the one that its key made before.

    A run that settles still keeps it: the receipt that is being made will return it. Raises `InvalidInput`, `NotFound` for a
    run that this tenant does not have, `RunEnded`, `IdempotencyConflict` or `CapacityExhausted`; nothing is stored then.
    """
    wanted.check(env.limits)
    body = canonical(wanted.value, field="value", limits=env.limits)
    run = tx.runs.lock(wanted.run_id)
    if run is None or run.tenant != wanted.tenant:
        raise NotFound("run", wanted.run_id, "nothing reached it")
    if (known := tx.mailbox.by_key(run.id, wanted.kind, wanted.key)) is not None:
        if (known.name, known.body) == (wanted.name, body):
            return known
        raise IdempotencyConflict(
            f"key {wanted.key!r} already names {known.kind} {known.id} of run {run.id} with other content; use another key",
            key=wanted.key,
            entry_id=known.id,
        )
    check_open(tx, run)
    if (queued := tx.mailbox.count_queued(run.id)) >= env.limits.mailbox_queued_max:
        raise CapacityExhausted(f"run {run.id} has {queued} wakes and corrections that it has not taken", queued=queued)
    entry = tx.mailbox.add(
        MailboxEntry(
            id=EntryId(env.new_id(tx.now)),
            run_id=run.id,
            number=0,
            kind=wanted.kind,
            name=wanted.name,
            key=wanted.key,
            subject=wanted.subject,
            body=body,
            arrived_at=tx.now,
        )
    )
    if entry.kind is EntryKind.WAKE:
        wake_tx(tx, run, lambda wait: wait.kind is WaitKind.WAKE and wait.subject == entry.name)
    tx.ring(run_topic(run.id))
    return entry


def check_open(tx: Transaction, run: Run) -> None:
    """Raise `RunEnded`, naming the receipt, if the run has ended."""
    if not run.is_terminal:
        return
    receipt = required(tx.terminal.receipt(run.id), "a terminal run has its receipt")
    raise RunEnded(
        f"run {run.id} has ended ({run.status}); receipt {receipt.id}",
        run_id=run.id,
        status=str(run.status),
        receipt_id=receipt.id,
    )


def withdraw_entry_tx(tx: Transaction, entry_id: EntryId, *, tenant: str) -> MailboxEntry:
    """Take back what the run has not taken yet. Withdrawing it twice changes nothing.

    Raises `NotFound`, or `Refused` that says what became of it instead.
    """
    seen = tx.mailbox.get(entry_id)
    run = None if seen is None else tx.runs.lock(seen.run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("correction or wake", entry_id, "nothing was withdrawn")
    entry = required(tx.mailbox.get(entry_id), "entries are kept")
    if entry.status is EntryStatus.WITHDRAWN:
        return entry
    if entry.status is not EntryStatus.QUEUED:
        at = f" at operation {entry.position}" if entry.position is not None else f" by receipt {entry.receipt_id}"
        raise Refused(f"{entry.kind} {entry.id} is {entry.status}{at} already", status=str(entry.status), position=entry.position)
    withdrawn = entry.withdrawn(tx.now)
    tx.mailbox.save_many([withdrawn])
    return withdrawn
