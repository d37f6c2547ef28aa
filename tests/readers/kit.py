"""What the readers' tests share: frames sorted by what they are, and a connection that counts what is read through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.ids import Fence, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.streams import Draft, EventKind, StreamEvent, first_chain
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.readers import Frame, KeepAlive, StreamEnd, StreamStatus
from tests.runtime.kit import FAST, PATIENCE_S
from tests.runtime.line import Line

T = TypeVar("T")


@dataclass
class Read:
    """What one reader was given."""

    frames: list[Frame] = field(default_factory=list)

    @property
    def events(self) -> list[StreamEvent]:
        return [frame for frame in self.frames if isinstance(frame, StreamEvent)]

    @property
    def data(self) -> list[object]:
        return [parse(event.payload) for event in self.events if event.kind is EventKind.DATA]

    @property
    def statuses(self) -> list[StreamStatus]:
        return [frame for frame in self.frames if isinstance(frame, StreamStatus)]

    @property
    def end(self) -> StreamEnd:
        """The end: exactly one, and the last frame."""
        (end,) = [frame for frame in self.frames if isinstance(frame, StreamEnd)]
        assert self.frames[-1] is end
        return end

    async def take(self, frames: AsyncIterator[Frame], *, until: Callable[[Frame], bool] = lambda _: False) -> Read:
        """Take frames, to the end or to the first that `until` picks; keep-alives are not kept."""
        async with asyncio.timeout(PATIENCE_S):
            async for frame in frames:
                if not isinstance(frame, KeepAlive):
                    self.frames.append(frame)
                if until(frame):
                    break
        return self


class CountingLine(Line):
    """A process's connection that counts reads."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reads = 0

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        self.reads += 1
        return await super().read(fn)


def process(store: Store, settings: Settings = FAST) -> tuple[Environment, CountingLine]:
    """Another process that only reads: an environment of its own over the shared store."""
    line = CountingLine(store)
    return Environment(store=line, clock=SystemClock(), entropy=SystemEntropy(), settings=settings), line


def last_number(run_id: RunId, events: list[StreamEvent]) -> int:
    """Return the last number of a whole stream, whose numbers rise by one."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), run_id
    return len(events)


def said(run_id: RunId, *words: str) -> list[StreamEvent]:
    """Make the first events of a run, chained as its holder would chain them."""
    events: list[StreamEvent] = []
    for seq, word in enumerate(words, 1):
        previous = events[-1].chain if events else first_chain(run_id)
        draft = Draft(channel="messages", payload=canonical(word))
        events.append(draft.sealed(run_id=run_id, seq=seq, previous=previous, fence=Fence(1), now=Instant(0)))
    return events
