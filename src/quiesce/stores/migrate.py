"""Migrations: ordered SQL files with checksums, and the decision which of them a schema still lacks.

Each dialect applies them under its own lock and each in its own transaction, so that a migrator which dies leaves nothing
behind and the next one finishes (C85). What has been applied is never edited: a changed checksum is an error. A number
that this version does not know means that a later version has been here: nothing is written then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from quiesce.domain.errors import SchemaTooNew, StoreError, invariant

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A row of the table `migration`."""

    number: int
    name: str
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration(Applied):
    """A migration file."""

    sql: str


def load(package: str) -> list[Migration]:
    """Read `migrations/NNNN_name.sql` of a package; their numbers run from 1 without a hole."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := _FILE.fullmatch(file.name):
            sql = file.read_text(encoding="utf-8")
            checksum = hashlib.sha256(sql.encode()).hexdigest()
            found.append(Migration(number=int(match[1]), name=match[2], checksum=checksum, sql=sql))
    found.sort(key=lambda migration: migration.number)
    invariant([m.number for m in found] == list(range(1, len(found) + 1)), "migrations are numbered from 1")
    return found


def missing(known: Sequence[Migration], applied: Iterable[Applied]) -> list[Migration]:
    """Return the migrations still to be applied, in order.

    Raises `SchemaTooNew` for an applied number that is not known, `StoreError` for one whose file has changed since.
    """
    by_number = {migration.number: migration for migration in known}
    done = set()
    for row in sorted(applied, key=lambda row: row.number):
        migration = by_number.get(row.number)
        if migration is None:
            raise SchemaTooNew(
                f"the store has migration {row.number} ({row.name}); this version knows them up to {len(known)}: upgrade",
                found=row.number,
                known=len(known),
            )
        if migration.checksum != row.checksum:
            raise StoreError(
                f"migration {row.number} ({row.name}) was applied with other content than this version has",
                migration=row.number,
                applied=row.checksum,
                expected=migration.checksum,
            )
        done.add(row.number)
    return [migration for migration in known if migration.number not in done]
