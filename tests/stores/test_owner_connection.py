"""Owners whose rows live in the same database: one commit with the store's, and nobody but the store ends its transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.errors import InvariantBroken, QuiesceError, Refused
from quiesce.ports.store import Store, Transaction
from quiesce.stores.memory import MemoryStore
from quiesce.testing.channel_samples import ChannelSamples
from quiesce.testing.clock import ManualClock

Open = Callable[[str], Awaitable[Store]]
Connection = sqlite3.Connection | psycopg.Connection[tuple[object, ...]]
Attempt = Callable[[Connection], object]


@pytest.fixture
def make() -> ChannelSamples:
    return ChannelSamples()


@pytest.fixture
async def store(url: str, opened: Open) -> Store:
    store = await opened(url)
    await store.transact(lambda tx: _run(tx, "CREATE TABLE desk (note text)"))
    return store


def _of(tx: Transaction) -> Connection:
    connection = tx.connection
    assert isinstance(connection, sqlite3.Connection | psycopg.Connection)
    return connection


def _run(tx: Transaction, sql: str) -> None:
    _execute(_of(tx), sql)


def _execute(connection: Connection, sql: str) -> list[tuple[object, ...]]:
    if isinstance(connection, sqlite3.Connection):
        return connection.execute(sql).fetchall()
    cursor = connection.execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


async def _notes(store: Store) -> list[object]:
    return await store.read(lambda tx: [row[0] for row in _execute(_of(tx), "SELECT note FROM desk ORDER BY note")])


@pytest.mark.req("CC-20", "CC-35", "CC-47")
async def test_rows_of_an_owner_are_committed_with_those_of_the_store_or_not_at_all(store: Store, make: ChannelSamples) -> None:
    command = make.command()
    receipt = make.admission(command)

    def admit(tx: Transaction, *, fails: bool) -> None:
        _run(tx, "INSERT INTO desk VALUES ('done')")
        tx.admissions.add(receipt)
        if fails:
            raise LookupError("a rule of the owner forbids it")

    with pytest.raises(LookupError):
        await store.transact(lambda tx: admit(tx, fails=True))
    assert await _notes(store) == []
    assert await store.read(lambda tx: tx.admissions.get(command.key)) is None
    await store.transact(lambda tx: admit(tx, fails=False))
    assert await _notes(store) == ["done"]
    assert await store.read(lambda tx: tx.admissions.get(command.key)) == receipt


def _leave(connection: Connection) -> None:
    with connection:
        pass


def _fail(connection: Connection) -> None:
    with connection:
        raise LookupError("a rule of the owner forbids it")


ATTEMPTS: dict[str, Attempt] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "a block that ends": _leave,
    "a block that fails": _fail,
}
WORDS = ("COMMIT", "END", "ROLLBACK", "commit -- mine")


def _try(attempt: Attempt) -> Callable[[Transaction], None]:
    def fn(tx: Transaction) -> None:
        connection = _of(tx)
        _execute(connection, "INSERT INTO desk VALUES ('half')")
        attempt(connection)

    return fn


@pytest.mark.req("CC-35")
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_an_owner_that_ends_the_transaction_is_refused_and_nothing_is_stored(store: Store, attempt: str) -> None:
    for _ in range(2):
        with pytest.raises((Refused, LookupError)):
            await store.transact(_try(ATTEMPTS[attempt]))
    await store.transact(lambda tx: _run(tx, "INSERT INTO desk VALUES ('whole')"))
    assert await _notes(store) == ["whole"]


@pytest.mark.req("CC-35")
@pytest.mark.parametrize("words", WORDS)
async def test_the_words_that_end_a_transaction_are_noticed_at_the_latest_at_its_commit(store: Store, words: str) -> None:
    """SQLite is asked before it does so; on PostgreSQL it has been done, and is reported as the bug that it is."""
    for _ in range(2):
        with pytest.raises((Refused, InvariantBroken)) as noticed:
            await store.transact(_try(lambda connection: _execute(connection, words)))
        if store.capabilities.name == "sqlite":
            assert isinstance(noticed.value, Refused)
            assert await _notes(store) == []
    await store.transact(lambda tx: _run(tx, "INSERT INTO desk VALUES ('whole')"))
    assert "whole" in await _notes(store)


async def test_an_owner_may_use_savepoints_of_its_own(store: Store) -> None:
    def fn(tx: Transaction) -> None:
        for note, end in (("kept", "RELEASE mine"), ("dropped", "ROLLBACK TO mine")):
            _run(tx, "SAVEPOINT mine")
            _run(tx, f"INSERT INTO desk VALUES ('{note}')")  # noqa: S608
            _run(tx, end)

    await store.transact(fn)
    assert await _notes(store) == ["kept"]


@pytest.mark.req("CC-35")
async def test_decisions_that_share_a_commit_are_not_harmed_by_one_that_would_end_it(store: Store) -> None:
    def add(note: str) -> Callable[[Transaction], None]:
        return lambda tx: _run(tx, f"INSERT INTO desk VALUES ('{note}')")  # noqa: S608

    words = ("COMMIT", "ROLLBACK", "RELEASE part", "ROLLBACK TO part")
    bad = [_try(lambda connection, w=w: _execute(connection, w)) for w in words]  # type: ignore[misc]
    good = [add(f"note {n}") for n in range(8)]
    mixed = [fn for pair in zip(good, [*bad, *bad], strict=True) for fn in pair]
    answers = await asyncio.gather(*(store.transact(fn) for fn in mixed), return_exceptions=True)
    assert answers[::2] == [None] * 8
    assert all(isinstance(answer, QuiesceError) for answer in answers[1::2])
    assert [note for note in await _notes(store) if note != "half"] == [f"note {n}" for n in range(8)]
    if store.capabilities.name == "sqlite":
        assert "half" not in await _notes(store)


async def test_an_owner_cannot_write_in_a_read(store: Store) -> None:
    with pytest.raises(InvariantBroken, match="must not write"):
        await store.read(lambda tx: _run(tx, "INSERT INTO desk VALUES ('sneaked in')"))
    assert await _notes(store) == []


async def test_the_connection_is_the_drivers_own(sqlite_url: str, postgres_url: str) -> None:
    for url, kind in ((sqlite_url, sqlite3.Connection), (postgres_url, psycopg.Connection)):
        store = await asyncio.to_thread(open_store, url)
        assert isinstance(await store.transact(lambda tx: tx.connection), kind)
        await store.close()


async def test_the_memory_store_says_that_it_has_no_connection() -> None:
    store = MemoryStore(ManualClock())
    with pytest.raises(Refused, match="no connection"):
        await store.transact(lambda tx: tx.connection)
