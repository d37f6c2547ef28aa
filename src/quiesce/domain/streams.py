"""Streams: numbered events of a run, the hash chain over them (H2), and the frontier of what may have been seen.

Keeps: numbers strictly increase by one, are given by the holder under its fence and are never reused (ST-01). A number
that was reserved and died with its process is not left as a hole: the successor stores a `gap` event that names it.
An event says what it is (`state_bearing` or observational), so that only what could become state counts as a gap (G-25).

Three numbers, not one: covered (in the last checkpoint), stored (in this ledger), emitted (may have left).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.domain.canonical import Json, canonical, digest, parse
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.instant import Instant


class Visibility(StrEnum):
    """When an event may be shown."""

    STORE_FIRST = "store_first"
    """Stored, then shown: after a kill the visible frontier is exact."""
    SHOW_FIRST = "show_first"
    """Shown at once under numbers reserved durably ahead: after a kill the frontier is bounded."""


class EventKind(StrEnum):
    """What an event is to its reader."""

    DATA = "data"
    """What the agent emitted."""
    SUPERSEDED = "superseded"
    """The output of an earlier try (numbers `from`..`to`) is replaced by what follows; it stays readable."""
    GAP = "gap"
    """Numbers `from`..`to` were reserved and may have been shown, but died with their process."""
    STATUS = "status"
    """The run moved (taken over, waiting, settling): observational."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a run. `payload` is canonical JSON; `chain` is the value h(seq) of the hash chain."""

    run_id: RunId
    seq: int
    kind: EventKind
    channel: str
    namespace: str
    operation: Position | None
    state_bearing: bool
    payload: bytes
    chain: str
    fence: Fence
    emitted_at: Instant

    def to_json(self) -> dict[str, object]:
        """Return the event as readers and `watch --json` show it."""
        return {
            "seq": self.seq,
            "kind": str(self.kind),
            "channel": self.channel,
            "namespace": self.namespace,
            "operation": self.operation,
            "state_bearing": self.state_bearing,
            "payload": parse(self.payload),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The delivery side of a run: its own facts, apart from execution, durable and terminal state (TR-49).

    `reserved_seq`: numbers up to it may have been shown (show-first). `frozen_seq`: F, nothing beyond it leaves any more.
    """

    run_id: RunId
    stored_seq: int
    chain: str
    reserved_seq: int = 0
    frozen_seq: int | None = None
    frozen_exact: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What a reader that waits looks at: while it stays the same, nothing new of the run is there to be read.

    `waits`: what the run waits for, as it is stored.
    """

    stored_seq: int
    status: str
    fence: Fence
    waits: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a holder wants to emit; `sealed` gives it number and chain value."""

    channel: str
    payload: bytes
    namespace: str = ""
    operation: Position | None = None
    kind: EventKind = EventKind.DATA
    state_bearing: bool = True

    def sealed(self, *, run_id: RunId, seq: int, previous: str, fence: Fence, now: Instant) -> StreamEvent:
        """Return the event with its number, chained to the value before it."""
        return StreamEvent(
            run_id=run_id,
            seq=seq,
            kind=self.kind,
            channel=self.channel,
            namespace=self.namespace,
            operation=self.operation,
            state_bearing=self.state_bearing,
            payload=self.payload,
            chain=next_chain(previous, seq, self.kind, self.payload),
            fence=fence,
            emitted_at=now,
        )


def first_chain(run_id: RunId) -> str:
    """Return h(0) of a run."""
    return digest(canonical({"run_id": run_id}))


def next_chain(previous: str, seq: int, kind: EventKind, payload: bytes) -> str:
    """Return h(n) = digest(h(n-1), n, kind, payload). A client that saw n events can show (n, h(n))."""
    return digest(b"%b\n%d\n%b\n%b" % (previous.encode(), seq, kind.value.encode(), payload))


def gap_draft(first: int, last: int, reason: str) -> Draft:
    """Make the event that accounts for numbers which no reader can be given any more."""
    return Draft(
        channel=SYSTEM_CHANNEL,
        payload=canonical({"from": first, "to": last, "reason": reason}),
        kind=EventKind.GAP,
        state_bearing=False,
    )


def superseded_draft(first: int, last: int, operation: Position | None, reason: str) -> Draft:
    """Make the event that tells readers that `first`..`last` are replaced by what follows."""
    return Draft(
        channel=SYSTEM_CHANNEL,
        payload=canonical({"from": first, "to": last, "operation": operation, "reason": reason}),
        kind=EventKind.SUPERSEDED,
        state_bearing=False,
    )


def status_draft(status: str, **facts: Json) -> Draft:
    """Make an observational event about the run itself."""
    return Draft(
        channel=SYSTEM_CHANNEL,
        payload=canonical({"status": status, **facts}),
        kind=EventKind.STATUS,
        state_bearing=False,
    )


SYSTEM_CHANNEL: Final = "quiesce"
"""Channel of events that the product itself writes into a stream."""


def gap_range(event: StreamEvent) -> tuple[int, int]:
    """Return the numbers that a `gap` or `superseded` event accounts for."""
    facts = parse(event.payload)
    if not isinstance(facts, dict):
        return (event.seq, event.seq)
    first, last = facts.get("from"), facts.get("to")
    return (first if isinstance(first, int) else event.seq, last if isinstance(last, int) else event.seq)
