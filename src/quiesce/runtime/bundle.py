"""A run's evidence in one JSON document: all that its receipt rests on, to be checked anywhere without the store.

A bundle holds the receipt and the receipts before it in its thread, C, P, every checkpoint with its state, every stored
event with its chain value, the journal without arguments and results (which may be private), and artifact receipts. Its
own digest covers all of it. Digests prove that nothing was changed since; they are no signature and prove no author.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.canonical import canonical, digest, parse
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.errors import InvalidInput, NotFound, SettlementPending, required
from quiesce.domain.ids import CheckpointId, Fence, Position, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.operations import OperationKind, OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.streams import EventKind, StreamEvent
from quiesce.ports.store import Transaction
from quiesce.runtime.trees import descendants

FORMAT: Final = "quiesce-bundle/1"
_THREAD_RECEIPTS_MAX: Final = 100
_EVENTS_PAGE: Final = 500
_LIMITS: Final = replace(DEFAULT_LIMITS, payload_bytes_max=2**40, payload_depth_max=DEFAULT_LIMITS.payload_depth_max + 20)

JsonObject = dict[str, object]
"""An object of JSON values. (`Json` is recursive, which the decoder cannot follow.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint with its state as JSON."""

    id: CheckpointId
    number: int
    parent_id: CheckpointId | None
    state: object
    covered_seq: int
    is_final: bool
    fence: Fence
    created_at: Instant

    def of_run(self, run_id: RunId, thread_id: ThreadId) -> Checkpoint:
        """Return the domain's record, of which the digest is taken."""
        return Checkpoint(
            id=self.id,
            run_id=run_id,
            thread_id=thread_id,
            number=self.number,
            parent_id=self.parent_id,
            state=canonical(self.state, limits=_LIMITS),
            covered_seq=self.covered_seq,
            is_final=self.is_final,
            fence=self.fence,
            created_at=self.created_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A stored event with its payload as JSON and its stored chain value."""

    seq: int
    kind: EventKind
    channel: str
    namespace: str
    operation: Position | None
    state_bearing: bool
    payload: object
    chain: str
    fence: Fence
    emitted_at: Instant

    def of_run(self, run_id: RunId) -> StreamEvent:
        """Return the domain's record."""
        return StreamEvent(
            run_id=run_id,
            seq=self.seq,
            kind=self.kind,
            channel=self.channel,
            namespace=self.namespace,
            operation=self.operation,
            state_bearing=self.state_bearing,
            payload=canonical(self.payload, limits=_LIMITS),
            chain=self.chain,
            fence=self.fence,
            emitted_at=self.emitted_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """An operation as receipts show it (`shown`), and what its part in them depends on."""

    position: Position
    kind: OperationKind
    status: OperationStatus
    may_have_acted: bool
    shown: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Everything that a receipt rests on."""

    run_id: RunId
    thread_id: ThreadId
    agent: str
    bindings: object
    attempt: int
    frozen_seq: int | None
    frozen_exact: bool | None
    receipt: JsonObject
    thread_receipts: list[JsonObject]
    """Receipts before this one in its thread, oldest first; at most the last hundred."""
    occurrence: Occurrence
    outcome: PersistenceOutcome
    checkpoints: list[CheckpointRow]
    events: list[EventRow]
    operations: list[OperationRow]
    evidence: list[JsonObject]
    artifacts: list[JsonObject]
    """Artifact receipts of the run and of all below it."""
    descendants: list[RunId]

    def to_json(self) -> JsonObject:
        """Return the document."""
        body = _document(self)
        return {**body, "bundle_digest": digest_of_document(body)}


def gather_tx(tx: Transaction, run_id: RunId, *, tenant: str = "local") -> Bundle:
    """Read a run's evidence in one view. Raises `NotFound`, or `SettlementPending` for a run without a receipt."""
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    receipt = tx.terminal.receipt(run_id)
    if receipt is None:
        raise SettlementPending(
            f"run {run_id} is {run.status}: without a receipt there is nothing to prove", run_id=run_id, status=str(run.status)
        )
    occurrence = required(tx.terminal.occurrence(run_id), "a receipt has its occurrence")
    stream = required(tx.streams.state(run_id), "a run's ledger is opened with it")
    below = [child.id for child in descendants(tx, run_id)]
    return Bundle(
        run_id=run_id,
        thread_id=run.thread_id,
        agent=run.agent,
        bindings=parse(run.bindings),
        attempt=run.attempt,
        frozen_seq=stream.frozen_seq,
        frozen_exact=stream.frozen_exact,
        receipt=_plain(receipt.to_json()),
        thread_receipts=_receipts_before(tx, run),
        occurrence=occurrence,
        outcome=required(tx.terminal.outcome(occurrence.id), "a receipt has its outcome"),
        checkpoints=[_checkpoint_row(c) for c in tx.checkpoints.of_run(run_id)],
        events=[_event_row(e) for e in _all_events(tx, run_id)],
        operations=[
            OperationRow(
                position=o.position, kind=o.kind, status=o.status, may_have_acted=o.may_have_acted, shown=_plain(o.to_json())
            )
            for o in tx.operations.of_run(run_id)
        ],
        evidence=[_plain({**e.to_json(), "body": parse(e.body)}) for e in tx.evidence.of_run(run_id)],
        artifacts=[_plain(a.to_json()) for a in tx.evidence.artifacts([run_id, *below])],
        descendants=below,
    )


def _receipts_before(tx: Transaction, run: Run) -> list[JsonObject]:
    thread = required(tx.threads.get(run.thread_id), "a run has its thread")
    newest_first = tx.runs.of_thread(run.thread_id, limit=thread.runs - run.number + 1 + _THREAD_RECEIPTS_MAX)
    earlier = [other for other in reversed(newest_first) if other.number < run.number]
    receipts = [tx.terminal.receipt(other.id) for other in earlier]
    return [_plain(receipt.to_json()) for receipt in receipts if receipt is not None]


def _all_events(tx: Transaction, run_id: RunId) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while page := tx.streams.read(run_id, after=events[-1].seq if events else 0, limit=_EVENTS_PAGE):
        events.extend(page)
    return events


def _checkpoint_row(c: Checkpoint) -> CheckpointRow:
    return CheckpointRow(
        id=c.id,
        number=c.number,
        parent_id=c.parent_id,
        state=parse(c.state),
        covered_seq=c.covered_seq,
        is_final=c.is_final,
        fence=c.fence,
        created_at=c.created_at,
    )


def _event_row(e: StreamEvent) -> EventRow:
    return EventRow(
        seq=e.seq,
        kind=e.kind,
        channel=e.channel,
        namespace=e.namespace,
        operation=e.operation,
        state_bearing=e.state_bearing,
        payload=parse(e.payload),
        chain=e.chain,
        fence=e.fence,
        emitted_at=e.emitted_at,
    )


def _document(bundle: Bundle) -> JsonObject:
    return {"format": FORMAT, **_plain(msgspec.to_builtins(bundle))}


def _plain(value: object) -> JsonObject:
    """Return an object of JSON values only: what a reader of the written document would get."""
    plain: JsonObject = json.loads(canonical(value, limits=_LIMITS))
    return plain


def digest_of_document(document: JsonObject) -> str:
    """Return the digest over a whole document but for the digest itself."""
    return digest(canonical({k: v for k, v in document.items() if k != "bundle_digest"}, limits=_LIMITS))


def read_document(text: str | bytes) -> JsonObject:
    """Return the JSON object of a bundle file. Raises `InvalidInput` for anything else."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidInput(field="bundle", value=str(error), rule="is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise InvalidInput(field="bundle.format", value=found, rule=f"must be {FORMAT}")
    return document


def bundle_of(document: JsonObject) -> Bundle:
    """Return the bundle that a document holds. Raises `InvalidInput` that names the field which does not fit."""
    try:
        return msgspec.convert(document, Bundle, dec_hook=_take_any)
    except msgspec.ValidationError as error:
        raise InvalidInput(field="bundle", value=document.get("run_id"), rule=f"does not fit {FORMAT}: {error}") from None


def _take_any(_: type, value: object) -> object:
    """Take what is annotated `object` as it stands: any JSON value."""
    return value
