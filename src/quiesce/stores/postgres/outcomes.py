"""What the errors of PostgreSQL mean: to a caller, and to whoever may run the transaction again. The one place that looks."""

from __future__ import annotations

from typing import Final

import psycopg
import psycopg_pool
from psycopg import errors

from quiesce.domain.errors import (
    InvalidPayload,
    InvariantBroken,
    NotAStore,
    QuiesceError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

_MEANING: Final[tuple[tuple[type[psycopg.Error], type[QuiesceError], str], ...]] = (
    (errors.LockNotAvailable, StoreBusy, "another transaction held a row for too long; not accepted"),
    (errors.SerializationFailure, StoreBusy, "other transactions kept getting in between; not accepted"),
    (errors.DeadlockDetected, StoreBusy, "other transactions kept getting in between; not accepted"),
    (errors.DiskFull, StoreFull, "no room is left on the server; nothing was written"),
    (errors.ReadOnlySqlTransaction, StoreReadOnly, "the server takes no writes (a standby?); nothing was written"),
    (errors.InsufficientPrivilege, StoreReadOnly, "the role lacks a right; nothing was written"),
    (errors.InvalidPassword, StoreUnavailable, "the server refused the role"),
    (errors.InvalidCatalogName, NotAStore, "there is no such database"),
    (errors.UndefinedTable, NotAStore, "the schema lacks a table of ours"),
    (errors.UndefinedColumn, NotAStore, "the schema lacks a column of ours"),
    (psycopg.IntegrityError, InvariantBroken, "a rule of the schema forbids it"),
    (psycopg.OperationalError, StoreUnavailable, "the server cannot be reached"),
)


def translated(error: BaseException, *, about: str) -> BaseException:
    """Return the product's error for one of the driver, and any other error as it is.

    `about` names the store in the message.
    """
    if isinstance(error, UnicodeEncodeError):
        return InvalidPayload(field="text", value=ascii(error.object), rule="holds a lone surrogate, which UTF-8 cannot")
    if isinstance(error, psycopg.DataError):
        translation: QuiesceError = InvalidPayload(field="text", value=str(error), rule="cannot be held by PostgreSQL")
    elif isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed):
        translation = StoreUnavailable(f"{about}: no connection could be had in time", reason=str(error))
    elif isinstance(error, psycopg.Error):
        found = ((kind, text) for cause, kind, text in _MEANING if isinstance(error, cause))
        kind, text = next(found, (StoreError, "PostgreSQL refused"))
        translation = kind(f"{about}: {text} ({error})", reason=error.sqlstate or type(error).__name__)
    else:
        return error
    translation.__cause__ = error
    return translation


def may_run_again(error: psycopg.Error) -> bool:
    """Return whether the same function may come out otherwise if run again: others got in between.

    A unique violation is among them: the row that collided is visible to the second run, which then decides from it.
    """
    return isinstance(error, errors.SerializationFailure | errors.DeadlockDetected | errors.UniqueViolation)
