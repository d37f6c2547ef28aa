"""Verification: every claim of a receipt, computed again from the facts it rests on.

Works on a `Bundle`, whether that was just read from the store or comes from a file, so both are checked by the same code.
Trusts nothing that can be computed: H1 from the last checkpoint's state, H2 from h(0) over every event, H3 from the
receipt's fields, durability and gap from the numbers, the policy from cause, gap and journal. Knows no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from quiesce.domain.boundary import STATUS_OF, measure
from quiesce.domain.canonical import ALGORITHM, digest
from quiesce.domain.checkpoints import h1_of_nothing
from quiesce.domain.errors import VerificationFailed
from quiesce.domain.operations import OperationKind, OperationStatus
from quiesce.domain.resume import resume_policy, tool_state
from quiesce.domain.streams import EventKind, first_chain, gap_range, next_chain
from quiesce.domain.terminal import digest_of_body
from quiesce.ports.artifacts import ArtifactFiles
from quiesce.runtime.bundle import Bundle, JsonObject, digest_of_document

_SETTLED: Final = (OperationStatus.COMMITTED, OperationStatus.CONSUMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was computed again. `about` says in words what holding means."""

    name: str
    ok: bool
    expected: object
    found: object
    about: str

    def to_json(self) -> dict[str, object]:
        """Return the form that `verify --json` shows."""
        return {"name": self.name, "ok": self.ok, "expected": self.expected, "found": self.found, "about": self.about}


def verify(bundle: Bundle) -> list[Check]:
    """Check a receipt against its evidence; every check is made, whatever the ones before it found."""
    return [make(bundle) for make in _CHECKS]


def verify_document(document: JsonObject) -> Check:
    """Check the digest that covers a whole bundle file."""
    return _same(
        "bundle_digest",
        "nothing in the file was changed since it was written",
        expected=digest_of_document(document),
        found=document.get("bundle_digest"),
    )


def verify_files(artifacts: Sequence[Mapping[str, object]], files: ArtifactFiles | None) -> list[Check]:
    """Compare saved files with the digests of their receipts. Reads and writes nothing else (RR-27)."""
    return [_file_check(artifact, files) for artifact in artifacts]


def require(checks: Sequence[Check], *, subject: str) -> None:
    """Raise `VerificationFailed` that names each failed check, if there is any."""
    failed = [check for check in checks if not check.ok]
    if failed:
        raise VerificationFailed(
            f"{subject}: " + "; ".join(f"{c.name}: expected {_short(c.expected)}, found {_short(c.found)}" for c in failed),
            failed=[check.to_json() for check in failed],
        )


def _file_check(artifact: Mapping[str, object], files: ArtifactFiles | None) -> Check:
    path = str(artifact.get("path"))
    data = files.read(path) if files is not None else None
    return _same(
        f"artifact {path}",
        "the saved file is there, as it was when its receipt was stored",
        expected=str(artifact.get("digest")),
        found="missing" if data is None else digest(data),
    )


# -- the receipt by itself -----------------------------------------------------------------------------------------------


def _receipt_digest(b: Bundle) -> Check:
    return _same(
        "receipt_digest",
        "H3: no field of the receipt was changed",
        expected=digest_of_body(b.receipt),
        found=b.receipt.get("terminal_receipt_digest"),
    )


def _algorithm(b: Bundle) -> Check:
    found = b.receipt.get("digest_algorithm")
    return _same("digest_algorithm", "digests are made the way this version makes them", expected=ALGORITHM, found=found)


def _thread_chain(b: Bundle) -> Check:
    """Each receipt of the thread is intact and names the one before it (TR-14, TR-16)."""
    receipts = [*b.thread_receipts, b.receipt]
    broken = [str(r.get("receipt_id")) for r in b.thread_receipts if digest_of_body(r) != r.get("terminal_receipt_digest")]
    broken += [
        str(later.get("receipt_id"))
        for earlier, later in pairwise(receipts)
        if later.get("previous_receipt_digest") != earlier.get("terminal_receipt_digest")
    ]
    if not b.thread_receipts and b.receipt.get("previous_receipt_digest") is not None:
        broken.append(str(b.receipt.get("receipt_id")))
    return _same("thread_chain", "each receipt of the thread names the one before it", expected=[], found=list(broken))


# -- C, P and T belong together -------------------------------------------------------------------------------------------


def _identity(b: Bundle) -> Check:
    return _fields(b, "identity", "the receipt is of this run", run_id=b.run_id, thread_id=b.thread_id, attempt=b.attempt)


def _occurrence(b: Bundle) -> Check:
    c = b.occurrence
    return _fields(
        b,
        "occurrence",
        "C is this run's own, and the receipt repeats it",
        run_id=c.run_id,
        occurrence_id=c.id,
        terminal_cause=str(c.cause),
        terminal_reason=str(c.reason),
        terminal_status=str(STATUS_OF[c.cause]),
        reason_text=c.text,
        actor=dict(c.actor.to_json()),
        cancel_scope=str(c.scope),
        never_started=c.never_started,
    )


def _outcome(b: Bundle) -> Check:
    p = b.outcome
    return _fields(
        b,
        "outcome",
        "P is this run's own, rests on that C, and the receipt repeats it",
        run_id=p.run_id,
        outcome_id=p.id,
        occurrence_id=p.occurrence_id,
        covered_seq=p.frontier.covered_seq,
        stored_seq=p.frontier.stored_seq,
        last_stream_seq_emitted=p.frontier.emitted_seq,
        last_stream_seq_durable=max(p.frontier.covered_seq, p.frontier.stored_seq),
        emitted_exact=p.frontier.emitted_exact,
        terminal_durability=str(p.durability),
        gap=p.gap.to_json(),
        cleanup_attempted=p.cleanup_attempted,
        cleanup_completed=p.cleanup_completed,
        escalated=p.escalated,
    )


# -- D: the durable state -------------------------------------------------------------------------------------------------


def _durable_state(b: Bundle) -> Check:
    """H1 over the last checkpoint, and that the receipt cites that one (TR-03, TR-12)."""
    last = b.checkpoints[-1].of_run(b.run_id, b.thread_id) if b.checkpoints else None
    return _fields(
        b,
        "durable_state",
        "H1: the last checkpoint's state is what the receipt calls durable",
        last_checkpoint_id=last.id if last else None,
        covered_seq=last.covered_seq if last else 0,
        durable_state_digest=last.h1() if last else h1_of_nothing(b.run_id),
    )


def _checkpoint_chain(b: Bundle) -> Check:
    parents = [None, *(c.id for c in b.checkpoints[:-1])]
    found: list[object] = [{"number": c.number, "parent_id": c.parent_id} for c in b.checkpoints]
    expected: list[object] = [{"number": n, "parent_id": parent} for n, parent in enumerate(parents, 1)] if b.checkpoints else []
    return _same("checkpoint_chain", "checkpoints follow each other without a hole", expected=expected, found=found)


# -- V: the visible stream ------------------------------------------------------------------------------------------------


def _visible_stream(b: Bundle) -> Check:
    """H2 from h(0) over every stored event, compared at each of them (TR-13)."""
    value = first_chain(b.run_id)
    broken: int | None = None
    for event in (row.of_run(b.run_id) for row in b.events):
        value = next_chain(value, event.seq, event.kind, event.payload)
        if value != event.chain and broken is None:
            broken = event.seq
    return _compare(
        "visible_stream",
        "H2: the stored events are those that were emitted, in that order",
        expected={"visible_state_digest_at_abort": value, "first_broken_event": None},
        found={"visible_state_digest_at_abort": b.receipt.get("visible_state_digest_at_abort"), "first_broken_event": broken},
    )


def _stream_numbers(b: Bundle) -> Check:
    """No number is missing that no event accounts for (ST-01)."""
    holes: list[object] = []
    last = 0
    for event in (row.of_run(b.run_id) for row in b.events):
        explained = event.kind is EventKind.GAP and gap_range(event)[0] <= last + 1
        if event.seq != last + 1 and not explained:
            holes.append(event.seq)
        last = event.seq
    return _same("stream_numbers", "every number is there or accounted for", expected=[], found=holes)


def _frontier(b: Bundle) -> Check:
    """The numbers of P, counted again in the ledger (TR-09)."""
    covered = b.checkpoints[-1].covered_seq if b.checkpoints else 0
    stored = b.events[-1].seq if b.events else 0
    beyond = [e for e in b.events if e.kind is EventKind.DATA and e.state_bearing and e.seq > covered]
    marks = [n for n, o in enumerate(b.operations, 1) if o.kind is OperationKind.CHECKPOINT]
    is_complete = bool(b.checkpoints) and b.checkpoints[-1].is_final
    pending = [] if is_complete else [o for o in b.operations[marks[-1] if marks else 0 :] if o.status in _SETTLED]
    f = b.outcome.frontier
    return _compare(
        "frontier",
        "P's numbers are those of the ledger and the journal",
        expected={
            "covered_seq": covered,
            "stored_seq": stored,
            "emitted_seq": max(b.frozen_seq or 0, covered),
            "emitted_exact": bool(b.frozen_exact),
            "state_bearing_stored": len(beyond),
            "pending_writes": len(pending),
            "visible_state_digest_exact": f.emitted_seq <= f.stored_seq,
        },
        found={
            "covered_seq": f.covered_seq,
            "stored_seq": f.stored_seq,
            "emitted_seq": f.emitted_seq,
            "emitted_exact": f.emitted_exact,
            "state_bearing_stored": f.state_bearing_stored,
            "pending_writes": f.pending_writes,
            "visible_state_digest_exact": b.receipt.get("visible_state_digest_exact"),
        },
    )


def _durability(b: Bundle) -> Check:
    durability, gap = measure(b.outcome.frontier)
    return _fields(
        b,
        "durability",
        "durability and gap follow from the numbers alone",
        terminal_durability=str(durability),
        gap=gap.to_json(),
    )


# -- what may follow ------------------------------------------------------------------------------------------------------


def _policy(b: Bundle) -> Check:
    durability, gap = measure(b.outcome.frontier)
    facts = [(o.may_have_acted, str(o.status)) for o in b.operations]
    tools = tool_state([*facts, *((True, "unknown") for _ in _listed(b, "unresolved_operations"))])
    policy = resume_policy(b.occurrence.cause, durability, gap.kind, tools)
    return _fields(
        b,
        "resume_policy",
        "what may follow was decided by the rule, from cause, gap and journal",
        resume_policy=str(policy.policy),
        resume_rule=policy.rule,
        same_run_may_continue=str(policy.same_run),
        admissible=policy.admissible,
    )


def _unresolved(b: Bundle) -> Check:
    """The run's own unknown effects are those of its journal; the others are of runs below it (TR-64)."""
    listed = _listed(b, "unresolved_operations")
    own = [o.shown for o in b.operations if o.may_have_acted]
    found = [o for o in listed if o.get("run_id") == b.run_id]
    strangers = [o for o in listed if o.get("run_id") not in {b.run_id, *b.descendants}]
    return _same("unresolved", "every effect that may have happened is listed", expected=own, found=[*found, *strangers])


def _unconsumed(b: Bundle) -> Check:
    kept: list[object] = [o.shown for o in b.operations if o.kind is OperationKind.CALL and o.status is OperationStatus.COMMITTED]
    found = b.receipt.get("unconsumed_results")
    return _same("unconsumed", "results that were stored and not used are listed", expected=kept, found=found)


def _artifacts(b: Bundle) -> Check:
    """The run's own artifacts are listed whole; none is listed that is not on record (RR-35)."""
    listed = _listed(b, "artifacts")
    own = [a for a in b.artifacts if a.get("run_id") == b.run_id]
    missing = [a.get("path") for a in own if a not in listed]
    invented = [a.get("path") for a in listed if a not in b.artifacts]
    return _same("artifacts", "saved artifacts are listed as they were saved", expected=[], found=[*missing, *invented])


_CHECKS: Final[tuple[Callable[[Bundle], Check], ...]] = (
    _receipt_digest,
    _algorithm,
    _thread_chain,
    _identity,
    _occurrence,
    _outcome,
    _durable_state,
    _checkpoint_chain,
    _visible_stream,
    _stream_numbers,
    _frontier,
    _durability,
    _policy,
    _unresolved,
    _unconsumed,
    _artifacts,
)


def _listed(b: Bundle, name: str) -> list[JsonObject]:
    value = b.receipt.get(name)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _fields(b: Bundle, name: str, about: str, **expected: object) -> Check:
    """Compare some fields of the receipt with what they should be."""
    return _compare(name, about, expected=expected, found={field: b.receipt.get(field) for field in expected})


def _compare(name: str, about: str, *, expected: Mapping[str, object], found: Mapping[str, object]) -> Check:
    """Compare field by field; of a failed check only the fields that differ are shown."""
    differing = [field for field in expected if expected[field] != found[field]]
    if not differing:
        return Check(name=name, ok=True, expected=dict(expected), found=dict(found), about=about)
    return Check(
        name=name,
        ok=False,
        expected={field: expected[field] for field in differing},
        found={field: found[field] for field in differing},
        about=about,
    )


def _same(name: str, about: str, *, expected: object, found: object) -> Check:
    return Check(name=name, ok=expected == found, expected=expected, found=found, about=about)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
