"""The gate through which a run's events leave: it numbers and chains them, and once it is shut nothing leaves any more.

Keeps: numbers go up by one; what a replay emits again is passed over (`past.py`); a show-first event leaves only under a
number that was reserved durably before. It is shut before the frontier is frozen, so F is the last number it gave (ST-13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quiesce.domain.canonical import Json
from quiesce.domain.errors import Stopped
from quiesce.domain.ids import Position
from quiesce.domain.runs import Run
from quiesce.domain.streams import Draft, StreamEvent, Visibility, gap_draft, superseded_draft
from quiesce.ports.notifier import run_topic
from quiesce.runtime.environment import Environment
from quiesce.runtime.past import Past, Stored


class Ledger(Protocol):
    """Where numbered events are kept until they are stored: the attempt's journal."""

    def add_event(self, event: StreamEvent) -> int:
        """Keep an event for the next write; return how many wait."""

    async def reserve(self, upto: int) -> None:
        """Store that numbers up to this one may be shown."""

    async def flush(self) -> None:
        """Store what waits."""

    def check_alive(self) -> None:
        """Raise what ended this holder's authority, if anything did."""


class StreamGate:
    """Numbers the events of one attempt."""

    def __init__(self, env: Environment, run: Run, stored: Stored, ledger: Ledger) -> None:
        self._env = env
        self._run = run
        self._ledger = ledger
        self._past = Past(stored)
        self._chain = stored.stream.chain
        self._reserved = stored.stream.reserved_seq
        self._is_shut = False
        self.seq = stored.stream.stored_seq
        """The last number given."""
        if not stored.left_in_order:
            died = gap_draft(self.seq + 1, self._reserved, "the process that reserved these numbers died")
            self._append(died, self._reserved + 1)

    def shut(self) -> None:
        """Let nothing more leave."""
        self._is_shut = True

    def emitted(self, has_ended: Callable[[str], bool]) -> dict[str, Json]:
        """Return what a checkpoint remembers of the stream: how many events each scope has emitted, and since which number.

        A scope that has ended is not run again, so nothing of it is asked for any more.
        """
        counts: Json = {scope: n for scope, n in self._past.counts.items() if not has_ended(scope)}
        since: Json = {scope: first for scope, first in self._past.since().items() if not has_ended(scope)}
        return {"emitted": counts, "since": since}

    def begin_scope(self, scope: str) -> None:
        """Mark what an interrupted try of this step has emitted as superseded: it begins anew."""
        if (left := self._past.supersede(scope)) is not None:
            self._append(superseded_draft(*left, Position(scope), "this step begins anew"))

    async def emit(self, draft: Draft) -> None:
        """Number an event and have it stored; on replay, pass over what is stored already.

        Returns once it is buffered (store-first) or its number is reserved and shown (show-first). Waits while too much
        is buffered. Raises `Stopped` once the gate is shut.
        """
        self._check()
        replayed, left = self._past.meet(draft)
        if replayed:
            return
        if left is not None:
            self._append(superseded_draft(*left, draft.operation, "the agent emitted otherwise on replay"))
        while self._run.visibility is Visibility.SHOW_FIRST and self.seq + 1 > self._reserved:
            upto = self.seq + self._env.limits.reserve_block
            await self._ledger.reserve(upto)
            self._reserved = max(self._reserved, upto)
            self._check()  # shut while the block was being stored: then this event never left
        waiting = self.note(draft)
        if draft.operation is not None:
            self._past.keep(draft.operation, self.seq)
        if waiting >= self._env.limits.events_buffered_max:
            await self._ledger.flush()

    def note(self, draft: Draft) -> int:
        """Number an event at once and, in a show-first stream, show it; return how many wait to be stored."""
        event, waiting = self._append(draft)
        if self._run.visibility is Visibility.SHOW_FIRST and event.seq <= self._reserved:
            self._env.live.show(event)
            self._env.store.notifier.ring(run_topic(self._run.id))
        return waiting

    def _check(self) -> None:
        self._ledger.check_alive()
        if self._is_shut:
            raise Stopped

    def _append(self, draft: Draft, seq: int | None = None) -> tuple[StreamEvent, int]:
        self.seq = self.seq + 1 if seq is None else seq
        event = draft.sealed(
            run_id=self._run.id, seq=self.seq, previous=self._chain, fence=self._run.fence, now=self._env.clock.now()
        )
        self._chain = event.chain
        return event, self._ledger.add_event(event)
