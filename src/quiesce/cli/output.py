"""What goes to the screen: consoles without colour where there is no terminal, JSON as it stands, and small helpers.

Text of users and agents is always put out as text, never as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from quiesce.domain.instant import Instant, to_iso

STATUS_STYLE: Final[Mapping[str, str]] = {
    "pending": "cyan",
    "running": "cyan",
    "waiting": "yellow",
    "settling": "yellow",
    "completed": "green",
    "cancelled": "magenta",
    "failed": "red",
    "unknown": "bold red",
    "dispatched": "yellow",
    "claimed": "cyan",
    "settled": "green",
    "quarantined": "bold red",
    "discarded": "dim",
    "expired": "dim",
    "accepted": "green",
    "rejected": "magenta",
}


_WHOLE: Final = ("run", "question", "status", "age")
"""Columns whose cells are never broken: others make room."""


def console() -> Console:
    """Return a console on stdout."""
    return Console(file=sys.stdout, highlight=False, markup=False)


def print_json(value: object) -> None:
    """Print a JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_json_line(value: object) -> None:
    """Print a JSON document on one line, at once."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def say(text: str) -> None:
    """Print a remark that is not the answer, on stderr."""
    print(text, file=sys.stderr, flush=True)


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=STATUS_STYLE.get(status, ""))


def grid(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return two columns without lines: labels, and what they say."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value if isinstance(value, Text) else Text(value))
    return table


def listing(columns: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Return a plain table with a head line."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def moment(instant: Instant | None) -> str:
    """Return an instant to the second, or a dash."""
    return "-" if instant is None else to_iso(instant)[:19].replace("T", " ") + "Z"


def age(since: Instant, now: Instant) -> str:
    """Return how long ago something was, in the largest unit that fits: 12s, 3m, 2h, 5d."""
    seconds = max(0, now - since) // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def plural(count: int, noun: str) -> str:
    """Return `1 event`, `2 events`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(digest: str) -> str:
    """Return as much of a digest as people compare."""
    return f"{digest[:23]}…" if len(digest) > 24 else digest
