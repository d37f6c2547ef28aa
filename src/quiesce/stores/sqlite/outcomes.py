"""What the errors of SQLite mean to a caller. The one place that looks at their codes."""

from __future__ import annotations

import sqlite3
from typing import Final

from quiesce.domain.errors import (
    InvalidPayload,
    InvariantBroken,
    NotAStore,
    QuiesceError,
    Refused,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

_MEANING: Final[dict[int, tuple[type[QuiesceError], str]]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "another writer held the file for longer than the busy timeout; not accepted"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "the file is locked within this process; not accepted"),
    sqlite3.SQLITE_FULL: (StoreFull, "no room is left on the device; nothing was written"),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "the file or its directory cannot be written; nothing was written"),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "the file may not be written; nothing was written"),
    sqlite3.SQLITE_NOTADB: (NotAStore, "the file is not a SQLite database; it was not touched"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnavailable, "the file cannot be opened"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "the device reported an error"),
    sqlite3.SQLITE_CORRUPT: (StoreError, "the file is damaged: restore it from a copy"),
    sqlite3.SQLITE_CONSTRAINT: (InvariantBroken, "a rule of the schema forbids it"),
    sqlite3.SQLITE_AUTH: (Refused, "a transaction of the store is not begun or ended on its connection by anybody else"),
    sqlite3.SQLITE_TOOBIG: (InvalidPayload, "a value is larger than SQLite can hold"),
}


def translated(error: BaseException, *, about: str) -> BaseException:
    """Return the product's error for one of the driver, and any other error as it is.

    `about` names the store in the message.
    """
    if isinstance(error, UnicodeEncodeError):
        return InvalidPayload(field="text", value=ascii(error.object), rule="holds a lone surrogate, which UTF-8 cannot")
    if not isinstance(error, sqlite3.Error):
        return error
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind, meaning = _MEANING.get(primary, (StoreError, "SQLite refused"))
    if kind is InvalidPayload:
        translation: QuiesceError = InvalidPayload(field="value", value=str(error), rule=meaning)
    else:
        translation = kind(f"{about}: {meaning} ({error})", reason=getattr(error, "sqlite_errorname", "SQLITE_ERROR"))
    translation.__cause__ = error
    return translation
