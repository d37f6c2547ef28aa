"""Contradictions: a client that saw something else than what is stored says so, and a person decides (R1).

    contradict ──▶ recorded: the policy of the run's boundary is block, whatever else is known of it
        resolve ──▶ a decision with grounds: the policy is asked again without it

Keeps: only what the ledger itself shows to differ is recorded, by the comparison that everybody can make (`comparison.py`);
the receipt stays as it was, and the policy at use takes the records into account (G-35). The same contradiction is recorded
once, also after it was resolved; another one blocks anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quiesce.domain.boundary import Actor
from quiesce.domain.canonical import canonical
from quiesce.domain.comparison import Mark, Relation
from quiesce.domain.errors import NotFound, Refused
from quiesce.domain.evidence import STREAM, Evidence, EvidenceKind, Verdict, open_contradictions
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.comparison import compare_tx
from quiesce.runtime.turns import first_in_line, lock_threads_tx, next_turns_tx

_FACTS: Final = ("seen", "stored", "agreed_through", "diverged_at", "never_left")
"""What of a comparison is recorded: what was seen, what is stored, and where they part."""


def contradict_tx(tx: Transaction, run_id: RunId, seen: Sequence[Mark], *, actor: Actor, tenant: str) -> Evidence:
    """Record that what a client saw differs from what is stored, and where. From then on nothing builds on the run's boundary.

    Raises `NotFound`, `InvalidInput`, or `Refused` if what was seen does not differ: then nothing is recorded.
    """
    _lock(tx, run_id, tenant)
    if not seen:
        raise Refused("nothing was seen, so nothing differs", run_id=run_id)
    compared = compare_tx(tx, run_id, seen, tenant=tenant)
    if compared.result.relation is not Relation.DIVERGED:
        raise Refused(
            f"what was seen of run {run_id} does not contradict what is stored: {compared.result.relation}",
            run_id=run_id,
            relation=str(compared.result.relation),
        )
    facts = {name: value for name, value in compared.to_json().items() if name in _FACTS}
    record = _record(tx, run_id, EvidenceKind.CONTRADICTION, Verdict.CANNOT_TELL, actor, facts)
    known = [other for other in tx.evidence.of_run(run_id) if _says_the_same(other, record)]
    return known[0] if known else tx.evidence.add(record)


def resolve_tx(tx: Transaction, run_id: RunId, grounds: str, *, actor: Actor, tenant: str) -> Evidence:
    """Record a person's decision that what contradicts the run's stream does not stand in the way any more, and why.

    What is known now may be all that the next run of the thread waits for. Raises `NotFound`, or `Refused` if nothing is open.
    """
    threads = _lock(tx, run_id, tenant)
    open_ones = open_contradictions(tx.evidence.of_run(run_id))
    if not open_ones:
        raise Refused(f"nothing contradicts the stream of run {run_id}, or it is resolved", run_id=run_id)
    body = {"grounds": grounds, "answers": [record.number for record in open_ones]}
    decision = tx.evidence.add(_record(tx, run_id, EvidenceKind.DECISION, Verdict.GIVE_UP, actor, body))
    next_turns_tx(tx, threads)
    return decision


def _lock(tx: Transaction, run_id: RunId, tenant: str) -> dict[ThreadId, Thread]:
    """Lock the run's thread, by which continuing and contradicting have one order; and who is first in its queue."""
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    threads = lock_threads_tx(tx, [run])
    tx.runs.lock_many({run_id}.union(*(first_in_line(tx, thread) for thread in threads.values())))
    return threads


def _record(tx: Transaction, run_id: RunId, kind: EvidenceKind, verdict: Verdict, actor: Actor, body: object) -> Evidence:
    return Evidence(
        run_id=run_id, position=STREAM, number=0, kind=kind, verdict=verdict, actor=actor, body=canonical(body), at=tx.now
    )


def _says_the_same(one: Evidence, other: Evidence) -> bool:
    return (one.position, one.kind, one.actor, one.body) == (other.position, other.kind, other.actor, other.body)
