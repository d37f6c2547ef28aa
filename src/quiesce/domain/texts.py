"""The rules for short texts from outside: bounded and storable in every store and every JSON; words out of a fixed set."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from quiesce.domain.errors import InvalidInput

Word = TypeVar("Word", bound=StrEnum)


def word_of(kind: type[Word], field: str, value: str) -> Word:
    """Return the member of `kind` that a text from outside names. Raises `InvalidInput` that lists them."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field=field, value=value, rule="must be one of " + ", ".join(kind)) from None


def check_text(field: str, value: str | None, chars_max: int, *, allow_empty: bool = False) -> None:
    """Raise `InvalidInput` unless `value` is None or storable text of at most `chars_max` characters."""
    if value is None:
        return
    if len(value) > chars_max or (not value and not allow_empty):
        raise InvalidInput(field=field, value=value, rule=f"must be 1 to {chars_max} characters")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidInput(field=field, value=value, rule="must hold no NUL character and no lone surrogate")
