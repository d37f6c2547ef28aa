"""Occurrences, persistence outcomes and receipts over named queries.

A receipt is stored as the canonical bytes of the document that it is, digest included; the columns beside them only find
it. Two numbers of its frontier are not part of that document, so the frontier is stored with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from quiesce.domain.boundary import (
    Actor,
    CancelMode,
    CancelScope,
    Cause,
    Frontier,
    Gap,
    GapKind,
    Occurrence,
    PersistenceOutcome,
    Reason,
    TerminalDurability,
)
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import OccurrenceId, ReceiptId, RunId, ThreadId
from quiesce.domain.resume import Policy, ResumePolicy, SameRun
from quiesce.domain.runs import RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Queries, Row


class SqlTerminal:
    """Implements `ports.terminal.Terminal`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add_occurrence(self, occurrence: Occurrence) -> bool:
        """See the port. The actor's words are free text: stored as bytes, which can hold any character."""
        added = self._queries.run(
            "add_occurrence",
            id=occurrence.id,
            run_id=occurrence.run_id,
            cause=occurrence.cause.value,
            reason=occurrence.reason.value,
            actor=encode(occurrence.actor.to_json()),
            text=occurrence.text.encode(),
            command_key=occurrence.command_key,
            mode=occurrence.mode.value,
            scope=occurrence.scope.value,
            grace_ms=occurrence.grace_ms,
            origin_id=occurrence.origin_id,
            never_started=occurrence.never_started,
            at=occurrence.at,
        )
        return added == 1

    def occurrence(self, run_id: RunId) -> Occurrence | None:
        """See the port."""
        return self.occurrences([run_id]).get(run_id)

    def occurrences(self, run_ids: Collection[RunId]) -> dict[RunId, Occurrence]:
        """See the port."""
        rows = self._queries.many_of("occurrences_of_runs", [{"run_id": run_id} for run_id in dict.fromkeys(run_ids)])
        return {found.run_id: found for found in map(_occurrence_of, rows)}

    def add_outcome(self, outcome: PersistenceOutcome) -> bool:
        """See the port."""
        added = self._queries.run(
            "add_outcome",
            id=outcome.id,
            run_id=outcome.run_id,
            occurrence_id=outcome.occurrence_id,
            frontier=encode(asdict(outcome.frontier)),
            durability=outcome.durability.value,
            gap=encode(outcome.gap.to_json()),
            cleanup_attempted=outcome.cleanup_attempted,
            cleanup_completed=outcome.cleanup_completed,
            escalated=outcome.escalated,
            established_by=outcome.established_by,
            at=outcome.at,
        )
        return added == 1

    def outcome(self, occurrence_id: OccurrenceId) -> PersistenceOutcome | None:
        """See the port."""
        row = self._queries.one("outcome_of_occurrence", occurrence_id=occurrence_id)
        return None if row is None else _outcome_of(row)

    def add_receipt(self, receipt: TerminalReceipt) -> bool:
        """See the port."""
        added = self._queries.run(
            "add_receipt",
            id=receipt.id,
            run_id=receipt.run_id,
            thread_id=receipt.thread_id,
            occurrence_id=receipt.occurrence_id,
            outcome_id=receipt.outcome_id,
            previous_digest=receipt.previous_digest,
            digest=receipt.digest,
            published_at=receipt.published_at,
            frontier=encode(asdict(receipt.frontier)),
            body=canonical(receipt.to_json()),
        )
        return added == 1

    def receipt(self, run_id: RunId) -> TerminalReceipt | None:
        """See the port."""
        return _maybe_receipt(self._queries.one("receipt_of_run", run_id=run_id))

    def receipt_by_id(self, receipt_id: ReceiptId) -> TerminalReceipt | None:
        """See the port."""
        return _maybe_receipt(self._queries.one("receipt_by_id", id=receipt_id))

    def last_of_thread(self, thread_id: ThreadId) -> TerminalReceipt | None:
        """See the port."""
        return _maybe_receipt(self._queries.one("last_receipt_of_thread", thread_id=thread_id))


def receipt_from_json(body: Mapping[str, Any], frontier: Frontier) -> TerminalReceipt:
    """Read back `TerminalReceipt.to_json`, given the frontier of which the document shows a part."""
    return TerminalReceipt(
        id=body["receipt_id"],
        run_id=body["run_id"],
        thread_id=body["thread_id"],
        attempt=body["attempt"],
        occurrence_id=body["occurrence_id"],
        outcome_id=body["outcome_id"],
        cause=Cause(body["terminal_cause"]),
        reason=Reason(body["terminal_reason"]),
        reason_text=body["reason_text"],
        actor=Actor.from_json(body["actor"]),
        status=RunStatus(body["terminal_status"]),
        checkpoint_id=body["last_checkpoint_id"],
        frontier=frontier,
        durability=TerminalDurability(body["terminal_durability"]),
        gap=gap_from_json(body["gap"]),
        cleanup_attempted=body["cleanup_attempted"],
        cleanup_completed=body["cleanup_completed"],
        escalated=body["escalated"],
        scope=CancelScope(body["cancel_scope"]),
        never_started=body["never_started"],
        unresolved=tuple(body["unresolved_operations"]),
        unconsumed=tuple(body["unconsumed_results"]),
        artifacts=tuple(body["artifacts"]),
        usage=body["usage"],
        policy=ResumePolicy(
            rule=body["resume_rule"],
            policy=Policy(body["resume_policy"]),
            same_run=SameRun(body["same_run_may_continue"]),
            admissible=body["admissible"],
        ),
        h1=body["durable_state_digest"],
        h2=body["visible_state_digest_at_abort"],
        h2_exact=body["visible_state_digest_exact"],
        store_durability=body["store_durability"],
        previous_digest=body["previous_receipt_digest"],
        published_at=body["published_at"],
        digest=body["terminal_receipt_digest"],
    )


def gap_from_json(row: Mapping[str, Any]) -> Gap:
    """Read back `Gap.to_json`."""
    return Gap(
        kind=GapKind(row["kind"]),
        first_seq=row["first_seq"],
        last_seq=row["last_seq"],
        state_bearing=row["state_bearing"],
        stored_through=row["stored_through"],
    )


def _maybe_receipt(row: Row | None) -> TerminalReceipt | None:
    return None if row is None else receipt_from_json(decode(row[1]), Frontier(**decode(row[0])))


def _occurrence_of(row: Row) -> Occurrence:
    id_, run_id, cause, reason, actor, text, command_key, mode, scope, grace_ms, origin_id, never_started, at = row
    return Occurrence(
        id=id_,
        run_id=run_id,
        cause=Cause(cause),
        reason=Reason(reason),
        actor=Actor.from_json(decode(actor)),
        text=text.decode(),
        command_key=command_key,
        mode=CancelMode(mode),
        scope=CancelScope(scope),
        grace_ms=grace_ms,
        origin_id=origin_id,
        never_started=bool(never_started),
        at=at,
    )


def _outcome_of(row: Row) -> PersistenceOutcome:
    id_, run_id, occurrence_id, frontier, durability, gap, attempted, completed, escalated, established_by, at = row
    return PersistenceOutcome(
        id=id_,
        run_id=run_id,
        occurrence_id=occurrence_id,
        frontier=Frontier(**decode(frontier)),
        durability=TerminalDurability(durability),
        gap=gap_from_json(decode(gap)),
        cleanup_attempted=bool(attempted),
        cleanup_completed=bool(completed),
        escalated=bool(escalated),
        established_by=established_by,
        at=at,
    )
