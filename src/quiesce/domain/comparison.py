"""Comparison of surfaces: what is durable, what may have been seen, and what one client says that it saw (TR-15).

    equal            both hold the same
    visible_ahead    more was seen than is durable: by so many events
    durable_ahead    more is durable than was seen, which is legal: a client is behind, or not all of it has left
    diverged         the common prefix differs, at this number

Whoever saw k events can show (k, h(k)), a *mark*, where h is the hash chain of the stream (`streams.py`): equal values mean
equal prefixes, so one mark speaks for all events up to it, and of many marks the first that differs is found by halving.
No payload is needed, so it does not matter that retention has removed some.

Keeps: what cannot be judged is said to be so. A client ahead of the store, within the bound of what may have left, saw what
died with its process: neither right nor wrong. Beyond that bound it contradicts: such a number never left.

Knows no store: a `Ledger` says what is stored, wherever it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import InvalidInput, InvariantBroken
from quiesce.domain.ids import RunId
from quiesce.domain.streams import EventKind, StreamEvent, first_chain, next_chain

_CHAIN_PREFIX = "sha256:"
_CHAIN_CHARS = len(_CHAIN_PREFIX) + 64


class Relation(StrEnum):
    """How two surfaces stand to each other."""

    EQUAL = "equal"
    VISIBLE_AHEAD = "visible_ahead"
    DURABLE_AHEAD = "durable_ahead"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Who saw `seq` events has this chain value."""

    seq: int
    chain: str

    def check(self) -> None:
        """Raise `InvalidInput` unless it can be a mark."""
        if self.seq < 0:
            raise InvalidInput(field="seq", value=self.seq, rule="must be a number of the stream, or 0 for nothing seen")
        digits = self.chain.removeprefix(_CHAIN_PREFIX)
        if len(self.chain) != _CHAIN_CHARS or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
            raise InvalidInput(field="chain", value=self.chain, rule="must be sha256: and 64 hexadecimal digits")

    def to_json(self) -> dict[str, object]:
        """Return the form stored and shown."""
        return {"seq": self.seq, "chain": self.chain}

    @classmethod
    def parse(cls, text: str, *, field: str = "seen") -> Mark:
        """Read `K:HASH`, with or without `sha256:`. Raises `InvalidInput`."""
        number, colon, chain = text.partition(":")
        if not colon or not number.isascii() or not number.isdigit():
            raise InvalidInput(field=field, value=text, rule="must be K:HASH, a number of the stream and its chain value")
        mark = cls(seq=int(number), chain=_CHAIN_PREFIX + chain.removeprefix(_CHAIN_PREFIX))
        mark.check()
        return mark


class Seen:
    """What a reader got, as it can prove it: feed it every event in order and ask it for marks.

    Computes the chain itself, from numbers, kinds and payloads; takes nobody's word for a value. Keeps one value for each
    event; those whose numbers died with a process are dropped as the gap says so. A reader that goes on from a mark which
    it has kept begins there (`start`).
    """

    def __init__(self, run_id: RunId, *, start: Mark | None = None) -> None:
        """Begin with nothing seen, or at a mark. Raises `InvalidInput` for what cannot be one."""
        if start is not None:
            start.check()
        begin = start or Mark(seq=0, chain=first_chain(run_id))
        self._chains = {begin.seq: begin.chain}
        self._last = begin.seq

    @property
    def mark(self) -> Mark:
        """The newest mark: it speaks for everything seen."""
        return Mark(seq=self._last, chain=self._chains[self._last])

    def marks(self) -> list[Mark]:
        """Return a mark for each number seen, ascending: with them a difference is found to the number."""
        return [Mark(seq=seq, chain=chain) for seq, chain in sorted(self._chains.items())]

    def take(self, event: StreamEvent) -> None:
        """Note an event. Raises `InvalidInput` if one before it is missing: then this is no prefix of the stream."""
        self._note(event.seq, event.kind, event.payload)

    def take_json(self, frame: Mapping[str, object]) -> None:
        """Note an event in the form of `StreamEvent.to_json`. Raises `InvalidInput` as `take`, and for another form."""
        seq, kind = frame.get("seq"), frame.get("kind")
        if type(seq) is not int:
            raise InvalidInput(field="seq", value=seq, rule="must be the number of an event")
        if kind not in list(EventKind) or "payload" not in frame:
            raise InvalidInput(field=f"event {seq}", value=kind, rule="must have kind and payload, as `watch --json` shows them")
        self._note(seq, EventKind(str(kind)), canonical(frame["payload"]))

    def _note(self, seq: int, kind: EventKind, payload: bytes) -> None:
        """A gap follows what was stored before it, not what this reader may have been shown of the numbers that died."""
        before = self._last
        if kind is EventKind.GAP:
            before = min(before, _first_of_gap(seq, payload) - 1)
        if seq <= self._last or (kind is not EventKind.GAP and seq != self._last + 1) or before not in self._chains:
            raise InvalidInput(field="seq", value=seq, rule=f"does not follow {self._last}: not all of the stream was seen")
        for died in range(before + 1, self._last + 1):
            self._chains.pop(died, None)
        self._chains[seq] = next_chain(self._chains[before], seq, kind, payload)
        self._last = seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of D and V, running or ended. `emitted_seq`: no number above it has left."""

    covered_seq: int
    stored_seq: int
    emitted_seq: int
    emitted_exact: bool
    state_bearing_stored: int
    """Stored state-bearing data events beyond `covered_seq`."""

    def to_json(self) -> dict[str, object]:
        """Return the form that reading verbs show."""
        return {
            "covered_seq": self.covered_seq,
            "stored_seq": self.stored_seq,
            "emitted_seq": self.emitted_seq,
            "emitted_exact": self.emitted_exact,
            "state_bearing_stored": self.state_bearing_stored,
        }


class Ledger(Protocol):
    """What is stored of a stream, wherever it was read from."""

    @property
    def run_id(self) -> RunId:
        """The run."""

    @property
    def numbers(self) -> Numbers:
        """The numbers of the same view."""

    def at(self, seq: int) -> Mark:
        """Return the mark of the last stored event up to this number; h(0) if there is none.

        Its number is lower than `seq` where the numbers behind it died with their process, or are yet to come.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two surfaces stand. `events`: by how many one is ahead.

    `agreed_through`: up to this number both are the same. When they diverged, the first difference lies behind it and at or
    before `diverged_at`; `never_left` says that the number at which they part was never given out. `unjudged`: numbers
    about which nobody can say whether what was seen is right, because what was shown last of it is not stored.
    """

    relation: Relation
    events: int = 0
    agreed_through: int = 0
    diverged_at: int | None = None
    never_left: bool = False
    unjudged: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Hold that a divergence has a number, and nothing else has one."""
        if (self.relation is Relation.DIVERGED) != (self.diverged_at is not None):
            raise InvariantBroken("a divergence has a number, and nothing else has one")

    @property
    def is_exact(self) -> bool:
        """Whether `diverged_at` is the very first number that differs, and not only the first that was shown to."""
        return self.diverged_at is not None and self.diverged_at <= self.agreed_through + 1

    def to_json(self) -> dict[str, object]:
        """Return the form that `compare --json` shows."""
        return {
            "relation": str(self.relation),
            "events": self.events,
            "agreed_through": self.agreed_through,
            "diverged_at": self.diverged_at,
            "diverged_at_exact": self.is_exact if self.diverged_at is not None else None,
            "never_left": self.never_left,
            "unjudged": None if self.unjudged is None else list(self.unjudged),
        }


def compare_surfaces(numbers: Numbers) -> Comparison:
    """Compare D with V: the last checkpoint with what may have been seen. Needs no process of the run, dead or alive.

    Ahead counts what the gap of a receipt counts: state-bearing events, and every number of which nothing is stored.
    """
    covered, stored, emitted = numbers.covered_seq, numbers.stored_seq, numbers.emitted_seq
    if covered > max(stored, emitted):
        return _diverged(after=max(stored, emitted), at=max(stored, emitted) + 1, never_left=True)
    missing = max(0, emitted - max(stored, covered))
    ahead = numbers.state_bearing_stored + missing
    if ahead:
        unjudged = (max(stored, covered) + 1, emitted) if missing else None
        return Comparison(relation=Relation.VISIBLE_AHEAD, events=ahead, agreed_through=covered, unjudged=unjudged)
    if stored > emitted:
        return Comparison(relation=Relation.DURABLE_AHEAD, events=stored - emitted, agreed_through=emitted)
    return Comparison(relation=Relation.EQUAL, agreed_through=emitted)


def compare_seen(ledger: Ledger, seen: Sequence[Mark]) -> Comparison:
    """Compare what a client saw with what is stored.

    The marks are those of one client: whoever agrees at a number agrees below it. Raises `InvalidInput` for none, for
    what cannot be a mark, and for two different values of one number.
    """
    marks, numbers = _in_order(seen), ledger.numbers
    newest, behind = marks[-1], ledger.at(marks[-1].seq)
    bound = max(numbers.stored_seq, numbers.emitted_seq)
    agreed, differing = (newest.seq, None) if behind == newest else _first_that_differs(ledger, marks)
    if differing is not None:
        return _diverged(after=agreed, at=differing)
    if newest.seq > bound:
        return _diverged(after=agreed, at=bound + 1, never_left=True)
    if behind.seq < newest.seq:
        ahead = newest.seq - behind.seq
        return Comparison(relation=Relation.VISIBLE_AHEAD, events=ahead, agreed_through=agreed, unjudged=(agreed + 1, newest.seq))
    if newest.seq < numbers.stored_seq:
        return Comparison(relation=Relation.DURABLE_AHEAD, events=numbers.stored_seq - newest.seq, agreed_through=agreed)
    return Comparison(relation=Relation.EQUAL, agreed_through=agreed)


def _in_order(seen: Sequence[Mark]) -> list[Mark]:
    by_number: dict[int, Mark] = {}
    for mark in seen:
        mark.check()
        if by_number.setdefault(mark.seq, mark).chain != mark.chain:
            raise InvalidInput(field="seen", value=mark.seq, rule="has two different chain values")
    if not by_number:
        raise InvalidInput(field="seen", value=[], rule="must hold a mark: a number and its chain value")
    return [by_number[seq] for seq in sorted(by_number)]


def _first_that_differs(ledger: Ledger, marks: Sequence[Mark]) -> tuple[int, int | None]:
    """Return the highest number at which a mark agrees below the first that differs, and the number of that one, if any.

    By halving. A mark of which nothing is stored says nothing: the one below it is asked instead.
    """
    agreed, low, high = 0, 0, len(marks)
    while low < high:
        middle = asked = (low + high) // 2
        while asked >= low and (stored := ledger.at(marks[asked].seq)).seq != marks[asked].seq:
            asked -= 1
        if asked < low:
            low = middle + 1
        elif stored.chain == marks[asked].chain:
            agreed, low = marks[asked].seq, middle + 1
        else:
            high = asked
    return agreed, (marks[high].seq if high < len(marks) else None)


def _diverged(*, after: int, at: int, never_left: bool = False) -> Comparison:
    return Comparison(relation=Relation.DIVERGED, agreed_through=after, diverged_at=at, never_left=never_left)


def _first_of_gap(seq: int, payload: bytes) -> int:
    facts = parse(payload)
    first = facts.get("from") if isinstance(facts, dict) else None
    return first if isinstance(first, int) else seq
