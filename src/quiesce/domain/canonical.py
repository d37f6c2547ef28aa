"""Canonical JSON (RFC 8785) and SHA-256: the one form in which values are stored, compared and digested.

The stored bytes are the digested bytes, so nothing is encoded twice and a digest can be recomputed from the store alone.
Whatever JSON cannot hold faithfully is refused before anything is recorded (NaN, lone surrogates, integers beyond
2**53, types without a JSON form); a NUL character is held faithfully, and so payloads are stored as bytes, not as text.

`rfc8785` is exact and slow; most payloads hold no float and only ASCII keys, for which the C encoder of the standard
library gives the same bytes. One walk over the value both validates it and tells which of the two may be used.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Final

import rfc8785

from quiesce.domain.errors import InvalidPayload, PayloadTooLarge
from quiesce.domain.limits import DEFAULT_LIMITS, Limits

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

ALGORITHM: Final = "sha256/rfc8785/v1"
"""Name and version of canonical form and digest; a field of every receipt."""

_INT_MAX: Final = 2**53 - 1
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object, *, field: str = "payload", limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the RFC 8785 bytes of a JSON value.

    Tuples count as lists. Raises `InvalidPayload` naming the path of the offending part, `PayloadTooLarge` over the limit.
    """
    plain = _check(value, field, limits.payload_depth_max)
    data = _ENCODER.encode(value).encode() if plain else rfc8785.dumps(value)  # type: ignore[arg-type]
    if len(data) > limits.payload_bytes_max:
        raise PayloadTooLarge(
            field=field, value=f"{len(data)} bytes", rule=f"must be at most {limits.payload_bytes_max} bytes of JSON"
        )
    return data


def parse(data: bytes) -> Json:
    """Return the value that `canonical` made these bytes from."""
    value: Json = json.loads(data, parse_int=_parse_whole)
    return value


def _parse_whole(text: str) -> int | float:
    """Read a whole number. One beyond the integers of JSON was a float, whose canonical form has no exponent below 1e21."""
    value = int(text)
    return value if -_INT_MAX <= value <= _INT_MAX else float(text)


def digest(data: bytes) -> str:
    """Return `sha256:` and the hexadecimal SHA-256 of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """Return the digest of a value's canonical form (its fingerprint)."""
    return digest(canonical(value))


def _check(value: object, path: str, depth: int) -> bool:
    """Raise unless `value` is a JSON value; return whether the plain encoder gives its canonical form."""
    if isinstance(value, str):
        return value.isascii() or _check_text(value, path)
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return _check_number(value, path)
    if depth <= 0:
        raise InvalidPayload(field=path, value=type(value).__name__, rule="is nested too deeply")
    if isinstance(value, list | tuple):
        plain = [_check(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
        return all(plain)  # of a list: every item is checked, also behind the first float
    if isinstance(value, dict):
        plain = [_check_entry(key, item, path, depth - 1) for key, item in value.items()]
        return all(plain)
    raise InvalidPayload(field=path, value=type(value).__name__, rule="has no JSON form")


def _check_entry(key: object, item: object, path: str, depth: int) -> bool:
    """Check one entry of an object. A key beyond ASCII needs the exact encoder: JSON sorts by UTF-16 units."""
    if not isinstance(key, str):
        raise InvalidPayload(field=f"{path} key", value=key, rule="must be text")
    _check_text(key, f"{path} key")
    return _check(item, f"{path}.{key}", depth) and key.isascii()


def _check_number(value: int | float, path: str) -> bool:
    """Check a number. Only whole ones have the same text in Python and in canonical JSON."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidPayload(field=path, value=value, rule="must be a finite number; JSON has no NaN or infinity")
        return False
    if not -_INT_MAX <= value <= _INT_MAX:
        raise InvalidPayload(field=path, value=value, rule="must lie within ±(2**53 - 1); pass it as text")
    return type(value) is int


def _check_text(text: str, path: str) -> bool:
    """Raise if the text holds a lone surrogate; return True."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPayload(field=path, value=ascii(text), rule="holds a lone surrogate, which UTF-8 cannot") from None
    return True
