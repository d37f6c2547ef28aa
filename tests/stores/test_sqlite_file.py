"""What a file may be: ours, empty, somebody else's, damaged, newer, not to be written, full."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import InvariantBroken, NotAStore, SchemaTooNew, StoreError, StoreFull, StoreUnavailable
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.stores.sqlite import SqliteSettings, SqliteStore
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]

_AS_NOBODY = """
import os, sys
from quiesce.bootstrap import open_store
from quiesce.domain.errors import QuiesceError
import quiesce.stores.sqlite
if os.geteuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
try:
    open_store(sys.argv[1])
except QuiesceError as error:
    print(error.code)
"""


def _opened_by_nobody(url: str) -> str:
    """Open a store with the rights of an ordinary user, since root may write everywhere; return the error's code."""
    done = subprocess.run([sys.executable, "-c", _AS_NOBODY, url], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_a_text_file_is_not_a_store_and_stays_as_it_is(sqlite_path: Path, sqlite_url: str) -> None:
    sqlite_path.write_bytes(b"my diary " * 1000)
    with pytest.raises(NotAStore, match="not touched"):
        open_store(sqlite_url)
    assert sqlite_path.read_bytes() == b"my diary " * 1000
    assert list(sqlite_path.parent.iterdir()) == [sqlite_path]


def test_the_database_of_another_application_stays_as_it_is(sqlite_path: Path, sqlite_url: str) -> None:
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("CREATE TABLE run (id)")
    connection.close()
    before = sqlite_path.read_bytes()
    with pytest.raises(NotAStore, match="another application"):
        open_store(sqlite_url)
    assert sqlite_path.read_bytes() == before
    assert list(sqlite_path.parent.iterdir()) == [sqlite_path]


def test_a_truncated_header_is_not_a_store(sqlite_path: Path, sqlite_url: str) -> None:
    sqlite_path.write_bytes(b"SQLite format 3\0" + b"\0" * 20)
    with pytest.raises(NotAStore):
        open_store(sqlite_url)


def test_an_empty_file_becomes_a_store(sqlite_path: Path, sqlite_url: str) -> None:
    sqlite_path.touch()
    store = SqliteStore(SqliteSettings.from_url(sqlite_url))
    store.close_blocking()
    assert sqlite_path.read_bytes().startswith(b"SQLite format 3\0")


def test_a_damaged_file_is_an_error_of_its_own(sqlite_path: Path, sqlite_url: str) -> None:
    SqliteStore(SqliteSettings.from_url(sqlite_url)).close_blocking()
    size = sqlite_path.stat().st_size
    with sqlite_path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (size - 100))
    with pytest.raises(StoreError, match="damaged"):
        open_store(sqlite_url)


@pytest.mark.req("C85")
def test_nothing_is_written_to_a_newer_schema(sqlite_path: Path, sqlite_url: str) -> None:
    SqliteStore(SqliteSettings.from_url(sqlite_url)).close_blocking()
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("INSERT INTO migration VALUES (99, 'from_the_future', 'x', 0)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = sqlite_path.read_bytes()
    with pytest.raises(SchemaTooNew, match="99") as refused:
        open_store(sqlite_url)
    assert refused.value.details["found"] == 99
    assert sqlite_path.read_bytes() == before


def test_a_directory_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{tmp_path}/nowhere/store.db")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{tmp_path}")


def test_a_directory_that_may_not_be_written_says_so(readable_path: Path) -> None:
    readable_path.chmod(0o555)
    assert _opened_by_nobody(f"sqlite:///{readable_path}/store.db") == "STORE_READ_ONLY"
    assert list(readable_path.iterdir()) == []


def test_a_store_in_a_directory_that_may_not_be_written_is_read_only(readable_path: Path) -> None:
    file = readable_path / "store.db"
    SqliteStore(SqliteSettings(path=file)).close_blocking()
    before = file.read_bytes()
    readable_path.chmod(0o555)
    assert _opened_by_nobody(f"sqlite:///{file}") == "STORE_READ_ONLY"
    assert file.read_bytes() == before


def test_a_store_that_may_not_be_written_is_read_only(readable_path: Path) -> None:
    file = readable_path / "store.db"
    SqliteStore(SqliteSettings(path=file)).close_blocking()
    before = file.read_bytes()
    readable_path.chmod(0o777)
    file.chmod(0o444)
    assert _opened_by_nobody(f"sqlite:///{file}") == "STORE_READ_ONLY"
    assert file.read_bytes() == before


@pytest.mark.req("CC-20")
async def test_a_full_disk_writes_nothing_and_later_room_is_used(sqlite_url: str, opened: Open, make: Samples) -> None:
    store = await opened(sqlite_url)
    assert isinstance(store, SqliteStore)
    run = make.running()

    def insert(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.streams.open(run.id)

    await store.transact(insert)
    await store.transact(lambda _: _limit_pages(store, 0))
    large = replace(make.operation(run), arguments=canonical("x" * 1_000_000))
    write = RunWrite(run_id=run.id, fence=run.fence, operations=(large,), events=make.texts(run, "a"))
    with pytest.raises(StoreFull, match="nothing was written"):
        await store.write(write)
    with pytest.raises(StoreFull):
        await store.transact(lambda tx: tx.operations.put_many([large]))
    assert await store.read(lambda tx: (tx.operations.of_run(run.id), tx.streams.read(run.id, after=0, limit=9))) == ([], [])
    await store.transact(lambda _: _limit_pages(store, 1_000_000))
    assert await store.write(write) is WriteOutcome.APPLIED


def _limit_pages(store: SqliteStore, pages: int) -> None:
    """Let the file grow no further than to so many pages: what SQLite does when the device is full."""
    store._connection.execute(f"PRAGMA max_page_count = {max(1, pages)}")


async def test_a_read_must_not_write(url: str, opened: Open, make: Samples) -> None:
    store = await opened(url)
    worker = make.worker()
    with pytest.raises(InvariantBroken, match="must not write"):
        await store.read(lambda tx: tx.workers.insert(worker))
    assert await store.read(lambda tx: tx.workers.get(worker.id)) is None


@pytest.fixture
def readable_path() -> Iterator[Path]:
    """A directory that other users may look into: not below pytest's own, which are nobody else's business."""
    with tempfile.TemporaryDirectory(prefix="quiesce-shared-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
