"""Comparison of a run's surfaces, from the store or from an exported bundle: the same function over two ledgers.

Keeps: numbers, chain values and receipt are read in one view; it needs no process of the run, and changes nothing (TR-15).
What it finds is a fact about two surfaces, never an authority: what may follow an end is asked of the policy alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from quiesce.domain.comparison import Comparison, Ledger, Mark, Numbers, Relation, compare_seen, compare_surfaces
from quiesce.domain.errors import NotFound, invariant, required
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.runs import Run
from quiesce.domain.streams import EventKind, StreamState, Visibility, first_chain, gap_range
from quiesce.ports.store import Transaction
from quiesce.runtime.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison, with the numbers of D and V, and T if the run has ended.

    `seen`: the newest mark of the client; None if D was compared with V. `stored`: the mark of what is stored up to there.
    """

    run_id: RunId
    numbers: Numbers
    receipt_id: ReceiptId | None
    seen: Mark | None
    stored: Mark
    result: Comparison

    def to_json(self) -> dict[str, object]:
        """Return the form that `compare --json` shows."""
        return {
            "run_id": self.run_id,
            **self.result.to_json(),
            "seen": None if self.seen is None else self.seen.to_json(),
            "stored": self.stored.to_json(),
            "numbers": self.numbers.to_json(),
            "receipt_id": self.receipt_id,
        }


def compare_tx(tx: Transaction, run_id: RunId, seen: Sequence[Mark] = (), *, tenant: str = "local") -> Compared:
    """Compare what a client saw with what is stored; without marks, D with V. Raises `NotFound`, `InvalidInput`."""
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    receipt = tx.terminal.receipt(run_id)
    return _compared(_StoredLedger(tx, run), seen, None if receipt is None else (receipt.id, receipt.h2))


def compare_bundle(bundle: Bundle, seen: Sequence[Mark] = ()) -> Compared:
    """The same from an exported bundle, without the store. Raises `InvalidInput`.

    Takes the bundle's chain values as they stand: `verification.verify` says whether they are those of its events.
    """
    receipt = bundle.receipt
    t = (ReceiptId(str(receipt.get("receipt_id"))), str(receipt.get("visible_state_digest_at_abort")))
    return _compared(_BundleLedger(bundle), seen, t)


def _compared(ledger: Ledger, seen: Sequence[Mark], receipt: tuple[ReceiptId, str] | None) -> Compared:
    """Compare. A ledger that is not the one which the receipt was made of has diverged from it, whatever else agrees."""
    result = compare_seen(ledger, seen) if seen else compare_surfaces(ledger.numbers)
    last = ledger.numbers.stored_seq
    if not seen and receipt is not None and ledger.at(last).chain != receipt[1]:
        result = Comparison(relation=Relation.DIVERGED, diverged_at=last)
    newest = max(seen, key=lambda mark: mark.seq) if seen else None
    return Compared(
        run_id=ledger.run_id,
        numbers=ledger.numbers,
        receipt_id=None if receipt is None else receipt[0],
        seen=newest,
        stored=ledger.at(last if newest is None else newest.seq),
        result=result,
    )


def _bound(run: Run, state: StreamState) -> tuple[int, bool]:
    """Return the number above which nothing has left, and whether that is exact: F, or what has been stored or reserved."""
    if state.frozen_seq is not None:
        return state.frozen_seq, bool(state.frozen_exact)
    if run.visibility is Visibility.STORE_FIRST or state.reserved_seq <= state.stored_seq:
        return state.stored_seq, True
    return state.reserved_seq, False


class _StoredLedger:
    """Implements `domain.comparison.Ledger` over one transaction: each value costs a look at one event or two."""

    def __init__(self, tx: Transaction, run: Run) -> None:
        self._tx = tx
        self.run_id = run.id
        self._state = required(tx.streams.state(run.id), "a run's ledger is opened with it")
        last = tx.checkpoints.last(run.id)
        covered = last.covered_seq if last is not None else 0
        emitted, is_exact = _bound(run, self._state)
        self.numbers = Numbers(
            covered_seq=covered,
            stored_seq=self._state.stored_seq,
            emitted_seq=emitted,
            emitted_exact=is_exact,
            state_bearing_stored=tx.streams.count_state_bearing(run.id, after=covered),
        )

    def at(self, seq: int) -> Mark:
        """See `Ledger`. The event behind a hole says where it begins."""
        if seq >= self._state.stored_seq:
            return Mark(seq=self._state.stored_seq, chain=self._state.chain)
        if seq <= 0:
            return Mark(seq=0, chain=first_chain(self.run_id))
        (event,) = self._tx.streams.read(self.run_id, after=seq - 1, limit=1)
        if event.seq != seq:
            begins = gap_range(event)[0]
            invariant(event.kind is EventKind.GAP and begins <= seq, "an event accounts for the numbers that are not there")
            return self.at(begins - 1)
        return Mark(seq=seq, chain=event.chain)


class _BundleLedger:
    """Implements `domain.comparison.Ledger` over a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.run_id = bundle.run_id
        self._marks = [Mark(seq=0, chain=first_chain(bundle.run_id)), *(Mark(seq=e.seq, chain=e.chain) for e in bundle.events)]
        self._seqs = [mark.seq for mark in self._marks]
        covered = bundle.checkpoints[-1].covered_seq if bundle.checkpoints else 0
        beyond = [e for e in bundle.events if e.kind is EventKind.DATA and e.state_bearing and e.seq > covered]
        self.numbers = Numbers(
            covered_seq=covered,
            stored_seq=self._seqs[-1],
            emitted_seq=bundle.frozen_seq or 0,
            emitted_exact=bool(bundle.frozen_exact),
            state_bearing_stored=len(beyond),
        )

    def at(self, seq: int) -> Mark:
        """See `Ledger`."""
        return self._marks[max(0, bisect_right(self._seqs, seq) - 1)]
