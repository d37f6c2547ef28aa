"""What a `postgresql:` URL says. Everything but our own settings is handed to libpq as it stands (TLS, hosts, password).

postgresql://user@host/db                     schema `quiesce`
postgresql://user@host/db?schema=agents       another schema, created if it is not there
postgresql://user@host/db?pool_size=16        connections for decisions and reads
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from quiesce.domain.errors import InvalidInput

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OWN: Final = ("schema", "pool_size")
_POOL_SIZE_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """Where the database is and how it is used. Durations in milliseconds."""

    conninfo: str
    schema: str = "quiesce"
    pool_size: int = 8
    patience_ms: int = 5000
    """How long a lock, a connection or a server that is away is waited for."""
    idle_in_transaction_ms: int = 10_000
    """A process that stops in the middle of a transaction (SIGSTOP, a paused machine) loses its locks after this."""
    ping_ms: int = 5000
    """A listener that has heard nothing for so long asks the server, and is replaced if no answer comes in as long again."""

    @classmethod
    def from_url(cls, url: str) -> PostgresSettings:
        """Read a URL. Raises `InvalidInput` for a schema or pool size that cannot be."""
        base, mark, query = url.partition("?")
        parts = [part for part in query.split("&") if part]
        ours = "&".join(part for part in parts if part.partition("=")[0] in _OWN)
        given = dict(parse_qsl(ours, keep_blank_values=True))
        schema = given.get("schema", "quiesce")
        if not _SCHEMA.fullmatch(schema):
            raise InvalidInput(field="url.schema", value=schema, rule="must be a lower-case name of up to 63 characters")
        pool_size = given.get("pool_size", "8")
        if not pool_size.isdecimal() or not 1 <= int(pool_size) <= _POOL_SIZE_MAX:
            raise InvalidInput(field="url.pool_size", value=pool_size, rule=f"must be 1 to {_POOL_SIZE_MAX}")
        theirs = "&".join(part for part in parts if part.partition("=")[0] not in _OWN)
        conninfo = base + (mark + theirs if theirs else "")
        _check(conninfo)
        return cls(conninfo=conninfo, schema=schema, pool_size=int(pool_size))


def _check(conninfo: str) -> None:
    """Raise `InvalidInput` for what libpq does not understand, without repeating a password."""
    try:
        conninfo_to_dict(conninfo)
    except ProgrammingError as error:
        raise InvalidInput(field="url", value="postgresql://...", rule=f"is refused by libpq: {error}") from None
