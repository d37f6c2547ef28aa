"""A run's stream on a terminal: text as it comes, and a line of its own for whatever is not text."""

from __future__ import annotations

from typing import Final, TextIO

from quiesce.domain.canonical import Json, parse
from quiesce.domain.interactions import InteractionId
from quiesce.domain.runs import WaitKind
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.runtime.readers import Frame, KeepAlive, StreamEnd, StreamStatus

_TEXT_CHANNEL: Final = "messages"


class Teller:
    """Writes frames for people. Keeps track of whether a line is open, so that remarks stand on lines of their own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_open = False

    def show(self, frame: Frame) -> None:
        """Write one frame."""
        match frame:
            case StreamEvent():
                self._event(frame)
            case StreamStatus():
                self._status(frame)
            case StreamEnd():
                self.remark(f"end: {frame.status} at event {frame.last_seq}, receipt {frame.receipt_id}")
            case KeepAlive():
                self.remark(f"nothing new; the run is {frame.status}")

    def remark(self, words: str) -> None:
        """Write a line that is not the agent's."""
        self.finish()
        self._out.write(f"· {words}\n")
        self._out.flush()

    def finish(self) -> None:
        """Close the line that is open."""
        if self._is_open:
            self._out.write("\n")
            self._is_open = False

    def _status(self, frame: StreamStatus) -> None:
        """Say what the run waits for; of one that does not wait there is nothing to say."""
        asked = {question.id: question for question in frame.questions}
        for wait in frame.waits:
            question = asked.get(InteractionId(wait.subject)) if wait.kind is WaitKind.ANSWER else None
            if question is not None:
                prompt = _printable(str(parse(question.prompt)))
                self.remark(f"waits for an answer to {prompt!r}: quiesce answer {question.id} --value JSON")
            else:
                self.remark(f"waits for {wait.kind} {_printable(wait.subject)}".rstrip())

    def _event(self, event: StreamEvent) -> None:
        payload = parse(event.payload)
        if event.kind is EventKind.DATA and event.channel == _TEXT_CHANNEL and isinstance(payload, str):
            text = _printable(payload)
            self._out.write(text)
            self._out.flush()
            self._is_open = not text.endswith("\n") if text else self._is_open
            return
        self.remark(_words(event, payload))


def _words(event: StreamEvent, payload: Json) -> str:
    first, last = gap_range(event)
    match event.kind:
        case EventKind.SUPERSEDED:
            return f"events {first} to {last} are replaced by what follows"
        case EventKind.GAP:
            return f"events {first} to {last} may have been shown and are lost"
        case EventKind.STATUS:
            facts = dict(payload) if isinstance(payload, dict) else {}
            status = str(facts.pop("status", "moved"))
            return " ".join([status, *(f"{name} {value}" for name, value in sorted(facts.items()))])
        case EventKind.DATA:
            return f"{event.channel}: {_printable(str(payload))}"


def _printable(text: str) -> str:
    """Return text without what could steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
