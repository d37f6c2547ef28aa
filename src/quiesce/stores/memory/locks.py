"""What one transaction has locked of the control channel, in the order that `ports.commands` asks for.

Nothing can wait here, since transactions run one after the other. The locks are kept all the same, to refuse what would
deadlock or overwrite on a store where transactions overlap: a write without a lock, and locks out of order.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from quiesce.domain.errors import invariant


class Rank(IntEnum):
    """In which order the tables are locked."""

    INTENT = 0
    COMMAND = 1
    TARGET = 2
    SCOPE = 3


Key = tuple[str, ...]


class ControlLocks:
    """The locks of one transaction."""

    def __init__(self) -> None:
        self._held: set[tuple[Rank, Key]] = set()
        self._highest: tuple[Rank, Key] = (Rank.INTENT, ())

    def lock(self, rank: Rank, keys: Iterable[Key]) -> None:
        """Lock rows, waiting for them: by ascending key, and behind every table of a lower rank. `InvariantBroken` if not."""
        for wanted in sorted({(rank, key) for key in keys} - self._held):
            invariant(self._highest < wanted, "intents, commands and targets are locked in this order, by ascending key")
            self._take(wanted)

    def take(self, rank: Rank, keys: Iterable[Key]) -> None:
        """Hold rows that nobody is waited for: new ones, and those found unlocked. They may stand anywhere in the order."""
        for key in keys:
            self._take((rank, key))

    def lock_scopes(self) -> None:
        """Note that scopes are locked: nothing else is after them."""
        self._highest = max(self._highest, (Rank.SCOPE, ()))

    def check(self, rank: Rank, keys: Iterable[Key]) -> None:
        """Raise `InvariantBroken` unless all of these rows are held."""
        invariant(self._held.issuperset((rank, key) for key in keys), f"a {rank.name.lower()} is locked before it is saved")

    def _take(self, row: tuple[Rank, Key]) -> None:
        self._held.add(row)
        self._highest = max(self._highest, row)
