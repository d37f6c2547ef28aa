"""Readers of a stream: by number, from any process, every later event once, and always an end.

A reader never steps over a number: it yields n+1 after n, or an event that accounts for the numbers between. Reading is
read-only and joins nothing (C37): ten readers cost ten reads. The first frame says where the run stands, and for what it
waits if it does: a parked run can be joined like any other (C39). It and a keep-alive have no number and move nothing.

A reader that waits holds neither connection nor thread, and looks at the store together with all others of its process
(`lookout.py`). One that does not take its frames holds up nobody: it has one page in hand, and reads on by number when it
comes back, however far the run has got (C102).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from quiesce.domain.errors import InvalidInput, NotFound, required
from quiesce.domain.ids import ReceiptId, RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.interactions import Interaction, InteractionId
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.streams import EventKind, Glance, StreamEvent, gap_range
from quiesce.domain.terminal import TerminalReceipt
from quiesce.ports.notifier import Bell, run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.live import LiveFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """Where the run stands: the first frame of every stream, and again whenever that has changed. Has no number.

    `after`: the number behind which this reader goes on. `stored_seq`: the last number stored by now; events up to it are on
    their way. `questions`: what the run asks of a person and waits for; `quiesce answer` takes their ids.
    """

    run_id: RunId
    status: RunStatus
    after: int
    stored_seq: int
    waits: tuple[Wait, ...] = ()
    questions: tuple[Interaction, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the frame as `watch --json` shows it."""
        return {
            "standing": True,
            "run_id": self.run_id,
            "status": str(self.status),
            "after": self.after,
            "stored_seq": self.stored_seq,
            "waits": [wait.to_json() for wait in self.waits],
            "questions": [question.to_json() for question in self.questions],
        }


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


Frame = StreamEvent | StreamStatus | StreamEnd | KeepAlive


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What one read found. `glance` is of the same view."""

    run: Run
    glance: Glance
    events: list[StreamEvent]
    questions: tuple[Interaction, ...]
    receipt: TerminalReceipt | None

    def status(self, after: int) -> StreamStatus:
        return StreamStatus(
            run_id=self.run.id,
            status=self.run.status,
            after=after,
            stored_seq=self.glance.stored_seq,
            waits=self.run.waits,
            questions=self.questions,
        )

    def says_more_than(self, shown: StreamStatus) -> bool:
        """Whether the run has moved since. What has come to its end says so by the end."""
        now = (self.run.status, self.run.waits, self.questions)
        return self.receipt is None and now != (shown.status, shown.waits, shown.questions)


async def read_stream(
    env: Environment, run_id: RunId, *, after: int = 0, tenant: str = "local", keep_alive_ms: int = 15_000
) -> AsyncIterator[Frame]:
    """Yield where the run stands, every event with a number above `after` as it becomes visible, then `StreamEnd`.

    A cursor past the end gets the end at once when the run has ended, and waits otherwise. A `KeepAlive` comes when nothing
    else has for `keep_alive_ms`. Raises `NotFound` for a run that this tenant does not have, `InvalidInput` for a negative
    cursor, `StoreError` when the store cannot be read: then read on behind the last number that came.
    """
    if after < 0:
        raise InvalidInput(field="after", value=after, rule="must be a number of the stream, or 0 for all of it")
    bell = env.store.notifier.bell(run_topic(run_id))
    feed = env.live.join(run_id)
    shown: StreamStatus | None = None
    quiet_since = env.clock.now()
    try:
        while True:
            limit = env.limits.events_page_max
            page = await env.store.read(partial(_read_page, run_id=run_id, after=after, limit=limit, tenant=tenant))
            if shown is None:
                shown = page.status(after)
                yield shown
            taken = contiguous(page.events, after)
            for event in [*taken, *feed.take(max(after, _last(taken, after)))]:
                after = event.seq
                yield event
                quiet_since = env.clock.now()
            has_all = len(taken) == len(page.events)
            if has_all and len(taken) == limit:
                continue
            if has_all and page.receipt is not None:
                yield _end(page, page.receipt)
                return
            if page.says_more_than(shown):
                shown = page.status(after)
                yield shown
                quiet_since = env.clock.now()
            known = page.glance if has_all else None  # what was left out is looked for again, whatever a glance says
            while not await _has_news(env, run_id, bell, feed, known):
                if env.clock.now() >= after_ms(quiet_since, keep_alive_ms):
                    yield KeepAlive(status=page.run.status)
                    quiet_since = env.clock.now()
    finally:
        bell.close()
        env.live.leave(run_id, feed)


async def _has_news(env: Environment, run_id: RunId, bell: Bell, feed: LiveFeed, known: Glance | None) -> bool:
    """Wait for a ring or the next moment to look, and say whether anything has changed since `known`.

    A ring is only a hint: with a file that several processes share, every commit of another one rings every bell.
    """
    await bell.wait(env.live.lookout.pause_ms(env.clock.now(), env.settings.poll_ms))
    return not feed.is_empty or await env.live.lookout.glance(env.store, env.clock, run_id) != known


def _read_page(tx: Transaction, *, run_id: RunId, after: int, limit: int, tenant: str) -> _Page:
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    asked = [tx.interactions.get(InteractionId(wait.subject)) for wait in run.waits if wait.kind is WaitKind.ANSWER]
    return _Page(
        run=run,
        glance=required(tx.streams.glances([run_id]).get(run_id), "a run that exists can be glanced at"),
        events=tx.streams.read(run_id, after=after, limit=limit),
        questions=tuple(question for question in asked if question is not None and question.is_open(tx.now)),
        receipt=tx.terminal.receipt(run_id),
    )


def _end(page: _Page, receipt: TerminalReceipt) -> StreamEnd:
    return StreamEnd(run_id=page.run.id, status=receipt.status, receipt_id=receipt.id, last_seq=page.glance.stored_seq)


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
