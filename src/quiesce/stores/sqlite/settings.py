"""What a `sqlite:` URL says, and the settings that it may carry.

sqlite:///agents.db                        relative to the working directory
sqlite:////var/lib/agents.db               absolute
sqlite:///agents.db?synchronous=normal     a commit may be lost with the machine's power; shown in every receipt
sqlite:///agents.db?busy_timeout_ms=1000   how long another writer is waited for
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from quiesce.domain.errors import InvalidInput

_PREFIX: Final = "sqlite:///"
_SYNCHRONOUS: Final = ("full", "normal")
_BUSY_TIMEOUT_MS_MAX: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    """Where the file is and how it is written."""

    path: Path
    synchronous: str = "full"
    busy_timeout_ms: int = 5000

    @property
    def durability(self) -> str:
        """What receipts call it: `full`, or the weaker setting by name."""
        return "full" if self.synchronous == "full" else f"synchronous={self.synchronous}"

    @classmethod
    def from_url(cls, url: str) -> SqliteSettings:
        """Read a URL. Raises `InvalidInput` for one that names no file, or a setting that does not exist."""
        base, _, query = url.partition("?")
        path = unquote(base.removeprefix(_PREFIX))
        if not base.startswith(_PREFIX) or not path or path == ":memory:":
            raise InvalidInput(field="url", value=url, rule="must be sqlite:///file.db (in memory: memory://)")
        given = dict(parse_qsl(query, keep_blank_values=True))
        synchronous = given.pop("synchronous", "full")
        if synchronous not in _SYNCHRONOUS:
            raise InvalidInput(field="url.synchronous", value=synchronous, rule="must be full or normal")
        busy = given.pop("busy_timeout_ms", "5000")
        if not busy.isdecimal() or not 0 <= int(busy) <= _BUSY_TIMEOUT_MS_MAX:
            raise InvalidInput(
                field="url.busy_timeout_ms", value=busy, rule=f"must be a whole number up to {_BUSY_TIMEOUT_MS_MAX}"
            )
        for name, value in given.items():
            raise InvalidInput(field=f"url.{name}", value=value, rule="is no setting of a SQLite store")
        return cls(path=Path(path), synchronous=synchronous, busy_timeout_ms=int(busy))
