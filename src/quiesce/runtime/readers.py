"""Readers of a stream: by number, from any process, every later event once, and always an end.

A reader never steps over a number: it yields n+1 after n, or an event that accounts for the numbers between. Reading is
read-only and joins nothing (C37): ten readers cost ten reads. A keep-alive moves nothing and has no number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from quiesce.domain.errors import InvalidInput, NotFound
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last frame of every stream: how the run ended, and the receipt that says the rest."""

    run_id: RunId
    status: RunStatus
    receipt_id: ReceiptId
    last_seq: int

    def to_json(self) -> dict[str, object]:
        """Return the frame as `watch --json` shows it."""
        return {
            "end": True,
            "run_id": self.run_id,
            "status": str(self.status),
            "receipt_id": self.receipt_id,
            "last_seq": self.last_seq,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """Nothing new so far; the run is in this status. Has no number."""

    status: RunStatus


Frame = StreamEvent | StreamEnd | KeepAlive


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    run: Run
    events: list[StreamEvent]
    receipt: TerminalReceipt | None


async def read_stream(
    env: Environment, run_id: RunId, *, after: int = 0, tenant: str = "local", keep_alive_ms: int = 15_000
) -> AsyncIterator[Frame]:
    """Yield every event with a number above `after`, as it becomes visible, then `StreamEnd`.

    A cursor past the end gets the end at once when the run has ended, and waits otherwise. Raises `NotFound` for a run
    that this tenant does not have, `InvalidInput` for a negative cursor.
    """
    if after < 0:
        raise InvalidInput(field="after", value=after, rule="must be a number of the stream, or 0 for all of it")
    bell = env.store.notifier.bell(run_topic(run_id))
    feed = env.live.join(run_id)
    quiet_ms = 0.0
    try:
        while True:
            page = await env.store.read(partial(_read_page, run_id=run_id, after=after, limit=env.limits.events_page_max))
            if page is None or page.run.tenant != tenant:
                raise NotFound("run", run_id)
            for event in [*contiguous(page.events, after), *feed.take(max(after, _last(page.events, after)))]:
                after = event.seq
                quiet_ms = 0.0
                yield event
            is_full = len(page.events) == env.limits.events_page_max
            if page.receipt is not None and not is_full and after >= _last(page.events, after):
                yield StreamEnd(run_id=run_id, status=page.receipt.status, receipt_id=page.receipt.id, last_seq=after)
                return
            if is_full:
                continue
            if not await bell.wait(env.settings.poll_ms):
                quiet_ms += env.settings.poll_ms
                if quiet_ms >= keep_alive_ms:
                    quiet_ms = 0.0
                    yield KeepAlive(status=page.run.status)
    finally:
        bell.close()
        env.live.leave(run_id, feed)


def _read_page(tx: Transaction, *, run_id: RunId, after: int, limit: int) -> _Page | None:
    run = tx.runs.get(run_id)
    if run is None:
        return None
    receipt = tx.terminal.receipt(run_id)
    return _Page(run=run, events=tx.streams.read(run_id, after=after, limit=limit), receipt=receipt)


def _last(events: list[StreamEvent], after: int) -> int:
    return events[-1].seq if events else after


def contiguous(events: list[StreamEvent], after: int) -> list[StreamEvent]:
    """Return the events that follow `after` without an unexplained hole; what comes behind one is read again later."""
    taken: list[StreamEvent] = []
    for event in events:
        explained = event.kind is EventKind.GAP and gap_range(event)[0] <= after + 1
        if event.seq != after + 1 and not explained:
            break
        taken.append(event)
        after = event.seq
    return taken
