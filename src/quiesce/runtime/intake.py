"""How a run's own code takes what reached it from outside: wakes by name, corrections at a safe boundary.

Taking is one transaction under the run's lock: the entry is marked as applied and the operation that got it is journaled,
or neither. So each is applied exactly once, whatever dies: a replay reads the journal and takes nothing again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from quiesce.domain.canonical import Json, canonical, parse
from quiesce.domain.errors import InvalidInput, WaitTimedOut, required
from quiesce.domain.ids import Position
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.mailbox import EntryId, EntryKind, MailboxEntry
from quiesce.domain.operations import Operation, OperationKind, OperationStatus, ResultKind, fingerprint
from quiesce.domain.runs import Admission, Wait, WaitKind
from quiesce.domain.texts import check_text
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Transaction
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.points import SLEEP_SECONDS_MAX, fact
from quiesce.runtime.transacting import persist

_CORRECTIONS: Final = "corrections"
Choose = Callable[[Transaction], tuple[list[MailboxEntry], Operation | None]]
"""Which queued entries are taken, and the operation that tells of them; None for nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A person's words to a running agent, as the agent is given them."""

    id: EntryId
    text: str
    subject: str
    """Who said it."""
    arrived_at: Instant


async def perform_wait_for(attempt: Attempt, position: Position, name: str, seconds: float | None) -> Json:
    """Wait for a wake of this name, parked if that is long, and return its value; consumed exactly once.

    Raises `WaitTimedOut` if none came within `seconds` of when this was first reached.
    """
    journal = attempt.journal
    journal.check_open()
    check_text("name", name, attempt.env.limits.name_chars_max)
    if seconds is not None and not 0 <= seconds <= SLEEP_SECONDS_MAX:
        raise InvalidInput(field="timeout", value=seconds, rule=f"must be 0 to {SLEEP_SECONDS_MAX} seconds")
    arguments = canonical({"name": name, "timeout": seconds})
    operation = journal.expect(position, OperationKind.WAIT, name, fingerprint(OperationKind.WAIT, name, arguments))
    if operation is None:
        due = None if seconds is None else after_ms(await attempt.store_now(), seconds * 1000)
        done = fact(attempt, position, OperationKind.WAIT, name, arguments=arguments, result=b"null")
        operation = replace(done, status=OperationStatus.SEALED, due_at=due, result_kind=None, result=None, settled_at=None)
        await journal.put(operation)
    if not operation.has_result:
        operation = await _until_taken(attempt, operation, name)
    journal.consume(position)
    facts = parse(required(operation.result, "a stored result"))
    if operation.result_kind is ResultKind.ERROR or not isinstance(facts, dict):
        raise WaitTimedOut(f"no wake {name!r} came within {seconds} seconds", name=name, position=position)
    return facts["value"]


async def _until_taken(attempt: Attempt, sealed: Operation, name: str) -> Operation:
    """Wait, take, and wait again if another branch was quicker."""
    wait = Wait(kind=WaitKind.WAKE, subject=name, position=sealed.position, due_at=sealed.due_at)

    def choose(tx: Transaction) -> tuple[list[MailboxEntry], Operation | None]:
        fresh = replace(sealed, fence=attempt.run.fence, status=OperationStatus.COMMITTED, settled_at=tx.now)
        if came := tx.mailbox.queued(attempt.run.id, EntryKind.WAKE, name=name, limit=1):
            result = canonical({"wake": came[0].id, "value": parse(came[0].body)})
            return came, replace(fresh, result_kind=ResultKind.OK, result=result)
        if sealed.due_at is not None and sealed.due_at <= tx.now:
            return [], replace(fresh, result_kind=ResultKind.ERROR, result=canonical({"wake": None}))
        return [], None

    while True:
        await attempt.wait_until_over(wait)
        attempt.journal.check_open()
        if (taken := await _take(attempt, sealed.position, choose)) is not None:
            return taken


async def perform_corrections(attempt: Attempt, position: Position) -> list[Correction]:
    """Take the corrections that have reached the run since the last boundary, in the order of their arrival.

    Where there are none that is noted with the next write: it costs a look and no commit.
    """
    journal, env = attempt.journal, attempt.env
    journal.check_open()
    mark = fingerprint(OperationKind.CORRECTION, _CORRECTIONS, b"null")
    operation = journal.expect(position, OperationKind.CORRECTION, _CORRECTIONS, mark)
    if operation is None or not operation.has_result:
        limit = env.limits.corrections_batch_max

        def choose(tx: Transaction) -> tuple[list[MailboxEntry], Operation | None]:
            came = tx.mailbox.queued(attempt.run.id, EntryKind.CORRECTION, limit=limit)
            result = canonical([_told(entry) for entry in came])
            return came, fact(attempt, position, OperationKind.CORRECTION, _CORRECTIONS, arguments=b"null", result=result)

        came, operation = await attempt.read(choose)
        journal.check_open()
        if came:
            operation = await _take(attempt, position, choose)
        else:
            journal.hold(required(operation, "what there is not is noted too"))
    journal.consume(position)
    return corrections_of(required(operation, "a taken correction is journaled"))


def corrections_of(operation: Operation) -> list[Correction]:
    """Read back what a boundary took."""
    rows = parse(required(operation.result, "a stored result"))
    return [
        Correction(
            id=EntryId(str(row["id"])),
            text=str(row["text"]),
            subject=str(row["subject"]),
            arrived_at=Instant(int(str(row["arrived_at"]))),
        )
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def _told(entry: MailboxEntry) -> dict[str, Json]:
    return {"id": entry.id, "text": parse(entry.body), "subject": entry.subject, "arrived_at": entry.arrived_at}


async def _take(attempt: Attempt, position: Position, choose: Choose) -> Operation | None:
    """Take what is chosen and journal it, in one transaction; None if there is nothing to take yet.

    What rests on earlier rows of this attempt is stored behind them. Raises `Stopped` or `FenceLost` if the run may not go on.
    """
    journal = attempt.journal
    await journal.flush()
    attempt.env.crash.reach("intake.before")

    def take(tx: Transaction) -> tuple[bool, Operation | None]:
        run = tx.runs.lock(attempt.run.id)
        if run is None or run.admits(attempt.run.fence) is not Admission.HOLDER:
            return False, None
        known = tx.operations.get(run.id, position)
        if known is not None and known.has_result:
            return True, known  # this very decision, whose answer was lost
        entries, operation = choose(tx)
        if operation is None:
            return True, None
        last = tx.checkpoints.last(run.id)
        tx.mailbox.save_many([entry.applied(position, last.id if last else None, tx.now) for entry in entries])
        write = RunWrite(run_id=run.id, fence=attempt.run.fence, operations=(operation,))
        return tx.apply(write) is WriteOutcome.APPLIED, operation

    is_ours, operation = await persist(attempt.env, take)
    if not is_ours:
        await attempt.refused()
    attempt.env.crash.reach("intake.after")
    if operation is not None:
        journal.operations[position] = operation
    return operation
