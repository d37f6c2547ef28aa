"""The control channel's tables refuse what must not happen, whoever holds the connection.

Sealed content stays sealed, a state changes as the domain says and no other way, and what is unfinished is not deleted.
"""
# ruff: noqa: S608 - the statements are built of names that stand in this file

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psycopg
import pytest

from quiesce.domain.commands import INTENT_TRANSITIONS, IntentStatus
from quiesce.domain.deliveries import TERMINAL, TRANSITIONS, Command, CommandStatus
from quiesce.domain.ids import Fence, WorkerId
from quiesce.stores.postgres import PostgresSettings
from quiesce.stores.postgres.connection import PostgresQueries, connect
from quiesce.stores.postgres.opening import prepare
from quiesce.stores.sql.transaction import SqlTransaction
from quiesce.stores.sqlite import SqliteSettings
from quiesce.stores.sqlite.clock import MachineTime
from quiesce.stores.sqlite.connection import SqliteQueries
from quiesce.stores.sqlite.opening import open_file
from quiesce.testing.channel_samples import ChannelSamples
from quiesce.testing.samples import TENANT

CHANGING: Final = {
    "intent": {"status", "ended_at"},
    "command": {
        *("status", "claimable_at", "fence", "worker_id", "expires_at", "started_fence", "is_uncertain"),
        *("attempts", "failures", "reason", "ended_at"),
    },
}
FACTS: Final = ("settlement", "command_history", "admission_receipt")


@dataclass
class Raw:
    """A database with the schema, past the store."""

    connection: sqlite3.Connection | psycopg.Connection[tuple[object, ...]]
    tx: SqlTransaction

    def run(self, sql: str) -> int:
        if isinstance(self.connection, sqlite3.Connection):
            return self.connection.execute(sql).rowcount
        return self.connection.execute(sql.encode()).rowcount

    def refuses(self, sql: str, match: str) -> None:
        refusal = sqlite3.IntegrityError if isinstance(self.connection, sqlite3.Connection) else psycopg.errors.RestrictViolation
        with pytest.raises(refusal, match=match):
            self.run(sql)

    def columns(self, table: str) -> list[str]:
        sql = f"SELECT * FROM {table} LIMIT 0"
        if isinstance(self.connection, sqlite3.Connection):
            return [column[0] for column in self.connection.execute(sql).description]
        return [column.name for column in self.connection.execute(sql.encode()).description or []]


@pytest.fixture
def make() -> ChannelSamples:
    return ChannelSamples()


@pytest.fixture(params=["sqlite", "postgres"])
def raw(request: pytest.FixtureRequest, tmp_path: Path, make: ChannelSamples) -> Iterator[Raw]:
    if request.param == "sqlite":
        writing, reading, _ = open_file(SqliteSettings(path=tmp_path / "store.db"), MachineTime())
        with closing(writing), closing(reading):
            yield Raw(writing, SqlTransaction(SqliteQueries(writing), lambda: make.now))
    else:
        settings = PostgresSettings.from_url(request.getfixturevalue("postgres_url"))
        with connect(settings) as connection:
            prepare(connection, settings)
            yield Raw(connection, SqlTransaction(PostgresQueries(connection), lambda: make.now))


def _stored(raw: Raw, make: ChannelSamples, status: CommandStatus) -> Command:
    """Store a command that stands in this state."""
    is_claimed = status is CommandStatus.CLAIMED
    command = replace(
        make.command(),
        status=status,
        claimable_at=None,
        worker_id=WorkerId("w") if is_claimed else None,
        expires_at=make.now if is_claimed else None,
        ended_at=make.now if status in TERMINAL else None,
    )
    raw.tx.intents.insert(command.intent)
    raw.tx.commands.insert_many([command])
    return command


@pytest.mark.req("CC-11")
@pytest.mark.parametrize("table", CHANGING)
def test_what_a_delivery_does_not_change_is_sealed(raw: Raw, make: ChannelSamples, table: str) -> None:
    _stored(raw, make, CommandStatus.PENDING)
    sealed = set(raw.columns(table)) - CHANGING[table] - {"ordinal"}
    assert len(sealed) > 8
    for column in sorted(sealed):
        raw.refuses(f"UPDATE {table} SET {column} = {column}", "sealed")
    assert raw.run(f"UPDATE {table} SET status = status") == 1


@pytest.mark.req("CC-25", "CC-41", "CC-54")
@pytest.mark.parametrize("old", list(CommandStatus))
def test_a_delivery_changes_its_state_as_the_domain_says(raw: Raw, make: ChannelSamples, old: CommandStatus) -> None:
    for new in CommandStatus:
        command = _stored(raw, make, old)
        claim = "'w', expires_at = 1" if new is CommandStatus.CLAIMED else "NULL, expires_at = NULL"
        ended = "1" if new in TERMINAL else "NULL"
        change = (
            f"UPDATE command SET status = '{new}', worker_id = {claim}, ended_at = {ended} WHERE event_id = '{command.event_id}'"
        )
        if new in TRANSITIONS[old] or (new is old and old not in TERMINAL):
            assert raw.run(change) == 1, (old, new)
        else:
            raw.refuses(change, "does not change its state")


@pytest.mark.req("CC-11", "CC-22")
@pytest.mark.parametrize("old", list(IntentStatus))
def test_an_intent_changes_its_state_as_the_domain_says(raw: Raw, make: ChannelSamples, old: IntentStatus) -> None:
    for new in IntentStatus:
        intent = replace(make.intent(), status=old, ended_at=None if old is IntentStatus.STAGED else make.now)
        raw.tx.intents.insert(intent)
        ended = "NULL" if new is IntentStatus.STAGED else "1"
        change = f"UPDATE intent SET status = '{new}', ended_at = {ended} WHERE id = '{intent.id}'"
        if new in INTENT_TRANSITIONS[old] or new is old is IntentStatus.STAGED:
            assert raw.run(change) == 1, (old, new)
        else:
            raw.refuses(change, "does not change its state")


@pytest.mark.req("CC-30", "CC-50")
def test_a_fence_never_falls_and_uncertainty_is_never_taken_back(raw: Raw, make: ChannelSamples) -> None:
    command = make.command()
    raw.tx.intents.insert(command.intent)
    raw.tx.commands.insert_many([replace(command, fence=Fence(3), is_uncertain=True)])
    raw.refuses("UPDATE command SET fence = 2", "keeps its fence")
    raw.refuses("UPDATE command SET is_uncertain = NOT is_uncertain", "keeps its fence and its uncertainty")
    assert raw.run("UPDATE command SET fence = 4") == 1


@pytest.mark.req("CC-25")
@pytest.mark.parametrize("status", list(CommandStatus))
def test_what_is_unfinished_is_not_deleted(raw: Raw, make: ChannelSamples, status: CommandStatus) -> None:
    command = _stored(raw, make, status)
    raw.refuses("DELETE FROM intent", "not deleted before")
    if status in TERMINAL:
        assert raw.run("DELETE FROM command") == 1
    else:
        raw.refuses("DELETE FROM command", "not deleted before")
        assert raw.tx.commands.get(command.event_id) == command


@pytest.mark.req("CC-25")
def test_an_intent_that_has_ended_stays_for_as_long_as_its_command(raw: Raw, make: ChannelSamples) -> None:
    _stored(raw, make, CommandStatus.SETTLED)
    raw.run("UPDATE intent SET status = 'relayed', ended_at = 1")
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.ForeignKeyViolation)):
        raw.run("DELETE FROM intent")
    raw.run("DELETE FROM command")
    assert raw.run("DELETE FROM intent") == 1


@pytest.mark.req("CC-25", "CC-70")
def test_no_table_of_the_channel_is_emptied_at_once(postgres_url: str) -> None:
    settings = PostgresSettings.from_url(postgres_url)
    with connect(settings) as connection:
        prepare(connection, settings)
        for table in (*CHANGING, *FACTS):
            with pytest.raises(psycopg.errors.RestrictViolation, match=rf"^{table} "):
                connection.execute(psycopg.sql.SQL("TRUNCATE {} CASCADE").format(psycopg.sql.Identifier(table)))


@pytest.mark.req("CC-41", "CC-47", "CC-70")
@pytest.mark.parametrize("table", FACTS)
def test_settlements_histories_and_receipts_are_append_only(raw: Raw, make: ChannelSamples, table: str) -> None:
    command = _stored(raw, make, CommandStatus.SETTLED)
    raw.tx.commands.add_settlements([make.settlement(command)])
    raw.tx.commands.add_history([make.line(command)])
    raw.tx.admissions.add(make.admission(command))
    for column in raw.columns(table):
        if column != "ordinal":
            raw.refuses(f'UPDATE {table} SET "{column}" = "{column}"', "append-only")
    raw.refuses(f"DELETE FROM {table}", "append-only")


def test_a_row_that_contradicts_itself_is_refused(raw: Raw, make: ChannelSamples) -> None:
    intent = make.intent()
    raw.tx.intents.insert(intent)
    command = make.command(intent)
    wrong = (
        replace(command, status=CommandStatus.CLAIMED),
        replace(command, worker_id=WorkerId("w"), expires_at=make.now),
        replace(command, status=CommandStatus.SETTLED, claimable_at=None),
        replace(command, ended_at=make.now, claimable_at=None),
        replace(command, status=CommandStatus.SETTLED, ended_at=make.now),
        replace(command, number=0),
    )
    for contradiction in wrong:
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
            raw.tx.commands.insert_many([contradiction])
    raw.tx.commands.insert_many([command])


def test_places_are_counted_from_zero(raw: Raw) -> None:
    raw.tx.intents.take_place(TENANT, "s", overtakes=False, bound=1, reserve=0)
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
        raw.run("UPDATE scope SET used = -1")
