"""Which migrations are missing: decided from numbers and checksums alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quiesce.domain.errors import InvariantBroken, SchemaTooNew, StoreError
from quiesce.stores import migrate
from quiesce.stores.migrate import Applied, Migration, missing

KNOWN = [Migration(number=n, name=f"m{n}", checksum=f"c{n}", sql="") for n in (1, 2, 3)]


def _applied(*numbers: int) -> list[Applied]:
    return [Applied(number=n, name=f"m{n}", checksum=f"c{n}") for n in numbers]


def test_an_empty_schema_lacks_all_in_order() -> None:
    assert missing(KNOWN, []) == KNOWN


def test_what_is_applied_is_not_applied_again() -> None:
    assert missing(KNOWN, _applied(2, 1)) == KNOWN[2:]
    assert missing(KNOWN, _applied(1, 2, 3)) == []


@pytest.mark.req("C85")
def test_an_unknown_number_means_a_newer_version() -> None:
    with pytest.raises(SchemaTooNew, match="4") as refused:
        missing(KNOWN, _applied(1, 2, 3, 4))
    assert refused.value.details == {"found": 4, "known": 3}


def test_an_edited_migration_is_named() -> None:
    applied = [*_applied(1), Applied(number=2, name="m2", checksum="other")]
    with pytest.raises(StoreError, match="migration 2") as refused:
        missing(KNOWN, applied)
    assert refused.value.code == "STORE_ERROR"


@pytest.mark.parametrize("package", ["quiesce.stores.sqlite", "quiesce.stores.postgres"])
def test_migrations_carry_the_checksum_of_their_file(package: str) -> None:
    for migration in migrate.load(package):
        assert migration.checksum == hashlib.sha256(migration.sql.encode()).hexdigest()


def test_both_dialects_have_the_same_migrations() -> None:
    sqlite, postgres = (migrate.load(f"quiesce.stores.{dialect}") for dialect in ("sqlite", "postgres"))
    assert [(m.number, m.name) for m in sqlite] == [(m.number, m.name) for m in postgres]


def test_a_hole_in_the_numbers_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "0001_initial.sql").write_text("SELECT 1;")
    (tmp_path / "migrations" / "0003_later.sql").write_text("SELECT 1;")
    monkeypatch.setattr(migrate, "files", lambda _: tmp_path)
    with pytest.raises(InvariantBroken, match="numbered"):
        migrate.load("anything")
