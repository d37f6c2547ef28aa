"""Small structured values as JSON bytes, and the few that occur in nearly every row without any decoding.

These columns are not digested, so their bytes need no canonical form; payloads, which are, pass through the store as the
bytes that they came in.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

EMPTY_LIST: Final = b"[]"
EMPTY_OBJECT: Final = b"{}"

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """Return JSON bytes."""
    return _ENCODER.encode(value)


def decode(data: bytes) -> Any:
    """Return the value that `encode` made these bytes from."""
    return _DECODER.decode(data)


def amounts(data: bytes) -> dict[str, int]:
    """Return unit → amount."""
    return {} if data == EMPTY_OBJECT else decode(data)
