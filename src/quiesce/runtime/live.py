"""Events on their way to readers of this process that may see them before they are stored (show-first streams).

Holds nothing durable and decides nothing: a reader that misses everything here still gets every stored event by number.
"""

from __future__ import annotations

from collections import deque

from quiesce.domain.ids import RunId
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.streams import StreamEvent
from quiesce.runtime.lookout import Lookout


class LiveFeed:
    """One reader's window on what one run shows. Bounded: the oldest is dropped, the store has it soon."""

    def __init__(self) -> None:
        self._events: deque[StreamEvent] = deque(maxlen=DEFAULT_LIMITS.events_buffered_max)

    def push(self, event: StreamEvent) -> None:
        """Show an event."""
        self._events.append(event)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was shown that `take` has not looked at."""
        return not self._events

    def take(self, after: int) -> list[StreamEvent]:
        """Return and forget the shown events that follow `after` without a hole."""
        taken: list[StreamEvent] = []
        while self._events:
            event = self._events[0]
            if event.seq > after + 1:
                break
            self._events.popleft()
            if event.seq == after + 1:
                taken.append(event)
                after = event.seq
        return taken


class LiveStreams:
    """The feeds of this process, by run."""

    def __init__(self) -> None:
        self._feeds: dict[RunId, list[LiveFeed]] = {}
        self.lookout = Lookout()
        """Who looks at the store for the readers that wait."""

    def join(self, run_id: RunId) -> LiveFeed:
        """Open a feed; close it with `leave`."""
        feed = LiveFeed()
        self._feeds.setdefault(run_id, []).append(feed)
        return feed

    def leave(self, run_id: RunId, feed: LiveFeed) -> None:
        """Close a feed."""
        feeds = self._feeds.get(run_id, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(run_id, None)

    def show(self, event: StreamEvent) -> None:
        """Show an event to this process's readers of its run."""
        for feed in self._feeds.get(event.run_id, ()):
            feed.push(event)
