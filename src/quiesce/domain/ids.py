"""Identities: opaque strings, UUIDv7, so that they sort by the time of their making.

Keeps one invariant that locking rests on: a child's id is greater than its parent's (`uuid7` takes `after`), whatever
the clocks of two machines say. Ascending ids are therefore the one lock order of the whole product (see
`ports/store.py`). Knows nothing of clocks or random sources: both come in as arguments.
"""

from __future__ import annotations

import uuid
from typing import NewType

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant

RunId = NewType("RunId", str)
ThreadId = NewType("ThreadId", str)
WorkerId = NewType("WorkerId", str)
CheckpointId = NewType("CheckpointId", str)
OccurrenceId = NewType("OccurrenceId", str)
OutcomeId = NewType("OutcomeId", str)
ReceiptId = NewType("ReceiptId", str)
Fence = NewType("Fence", int)
Position = NewType("Position", str)

_MS_MASK = (1 << 48) - 1


def uuid7(now: Instant, random: bytes, *, after: str | None = None) -> str:
    """Make a UUIDv7 (RFC 9562) from an instant and 10 random bytes.

    With `after`, the result is greater than that id even if `now` lies before it.
    """
    ms = now // 1000
    if after is not None:
        ms = max(ms, (uuid.UUID(after).int >> 80) + 1)
    bits = int.from_bytes(random[:10], "big")
    value = ((ms & _MS_MASK) << 80) | (0x7 << 76) | ((bits >> 62 & 0xFFF) << 64) | (0b10 << 62) | (bits & ((1 << 62) - 1))
    return str(uuid.UUID(int=value))


def parse_run_id(text: str, *, field: str = "run_id") -> RunId:
    """Return `text` as a `RunId`, or raise `InvalidInput` that names the field: run ids are UUIDs."""
    try:
        return RunId(str(uuid.UUID(text)))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(field=field, value=text, rule="must be a UUID, as `quiesce start` prints it") from None
