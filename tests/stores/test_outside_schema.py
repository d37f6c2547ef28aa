"""The tables of mailboxes, schedules and questions refuse what must not happen, whoever holds the connection.

What reached a run, what was planned and what was asked stays as it was; each ends once, as the domain says and no other way;
and nothing that still stands for something is deleted.
"""
# ruff: noqa: S608 - the statements are built of names that stand in this file

from __future__ import annotations

import sqlite3
from dataclasses import replace
from itertools import product
from typing import Final

import psycopg
import pytest

from quiesce.domain.ids import CheckpointId, Position, ReceiptId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import CLOCK, Interaction, InteractionId, InteractionStatus
from quiesce.domain.interactions import TRANSITIONS as QUESTION_TRANSITIONS
from quiesce.domain.mailbox import TRANSITIONS as ENTRY_TRANSITIONS
from quiesce.domain.mailbox import EntryId, EntryKind, EntryStatus, MailboxEntry
from quiesce.domain.schedules import Definition, Fire, FireStatus, Schedule, ScheduleId, ScheduleStatus, Timing
from quiesce.stores.postgres import PostgresSettings
from quiesce.stores.postgres.connection import connect
from quiesce.stores.postgres.opening import prepare
from quiesce.testing.channel_samples import ChannelSamples
from quiesce.testing.samples import TENANT, USER, Samples
from tests.stores.test_channel_schema import Raw, raw  # noqa: F401 - a fixture

CHANGING: Final = {
    "mailbox": {"status", "position", "checkpoint_id", "receipt_id", "ended_at"},
    "interaction": {"status", "answer", "answer_key", "ended_by", "ended_at"},
    "schedule": {"subject", "definition", "revision", "status", "next_at", "changed_at"},
    "fire": set[str](),
}
"""The columns that may change, of each table; all others are sealed."""
CONTRADICTION: Final = (sqlite3.IntegrityError, psycopg.errors.CheckViolation)
SAMPLES: Final = Samples()


@pytest.fixture
def make() -> ChannelSamples:
    return ChannelSamples()


def entry(status: EntryStatus = EntryStatus.QUEUED) -> MailboxEntry:
    queued = MailboxEntry(
        id=EntryId(SAMPLES.id()),
        run_id=RunId(SAMPLES.id()),
        number=0,
        kind=EntryKind.WAKE,
        name="w",
        key="k",
        subject="ada",
        body=b"1",
        arrived_at=Instant(1),
    )
    match status:
        case EntryStatus.QUEUED:
            return queued
        case EntryStatus.APPLIED:
            return queued.applied(Position("1"), CheckpointId("c"), Instant(2))
        case EntryStatus.WITHDRAWN:
            return queued.withdrawn(Instant(2))
        case EntryStatus.RETURNED:
            return queued.returned(ReceiptId("r"), Instant(2))


def question(status: InteractionStatus = InteractionStatus.OPEN) -> Interaction:
    asked = Interaction(
        id=InteractionId(SAMPLES.id()),
        run_id=RunId(SAMPLES.id()),
        position=Position("1"),
        thread_id=SAMPLES.thread().id,
        tenant=TENANT,
        prompt=b'"?"',
        schema=b"true",
        about=b"null",
        created_at=Instant(1),
        expires_at=Instant(9),
    )
    match status:
        case InteractionStatus.OPEN:
            return asked
        case InteractionStatus.ANSWERED:
            return asked.answered(b"true", USER, "k", Instant(2))
        case InteractionStatus.EXPIRED:
            return asked.expired(Instant(9))
        case InteractionStatus.REVOKED:
            return asked.revoked(CLOCK, Instant(2))


def schedule(status: ScheduleStatus = ScheduleStatus.ACTIVE) -> Schedule:
    id_ = ScheduleId(SAMPLES.id())
    return Schedule(
        id=id_,
        tenant=TENANT,
        name=id_,
        subject="ada",
        definition=Definition(agent="a", input=b"{}", timing=Timing(cron="0 2 * * *")),
        revision=3,
        status=status,
        next_at=Instant(9) if status is ScheduleStatus.ACTIVE else None,
        created_at=Instant(1),
        changed_at=Instant(1),
    )


def fire(of: Schedule) -> Fire:
    return Fire(
        schedule_id=of.id,
        planned=Instant(5),
        status=FireStatus.FIRED,
        fired_at=Instant(6),
        stands_for=(Instant(5),),
        count=1,
        run_id=RunId("r"),
    )


CONTRADICTIONS: Final[tuple[tuple[MailboxEntry | Interaction | Schedule, str], ...]] = (
    (entry(), "status = 'applied', ended_at = 1"),
    (entry(), "status = 'withdrawn'"),
    (entry(), "status = 'withdrawn', ended_at = 1, position = '1'"),
    (entry(), "status = 'returned', ended_at = 1"),
    (entry(), "ended_at = 1"),
    (entry(), "status = 'lost', ended_at = 1"),
    (question(), "status = 'answered', ended_at = 1, ended_by = prompt"),
    (question(), "status = 'answered', ended_at = 1, ended_by = prompt, answer = prompt"),
    (question(), "status = 'revoked', ended_at = 1"),
    (question(), "status = 'revoked', ended_by = prompt"),
    (question(), "status = 'expired', ended_at = 1, ended_by = prompt, answer = prompt"),
    (replace(question(), expires_at=None), "status = 'expired', ended_at = 1, ended_by = prompt"),
    (question(), "status = 'denied', ended_at = 1, ended_by = prompt"),
    (schedule(), "status = 'paused'"),
    (schedule(), "next_at = NULL"),
    (schedule(ScheduleStatus.PAUSED), "next_at = 1"),
    (schedule(), "status = 'late'"),
)


def stored(raw: Raw, row: MailboxEntry | Interaction | Schedule) -> None:  # noqa: F811
    """Store a row as it stands."""
    match row:
        case MailboxEntry():
            raw.tx.mailbox.add(replace(row, status=EntryStatus.QUEUED))
            if row.status is not EntryStatus.QUEUED:
                raw.tx.mailbox.save_many([row])
        case Interaction():
            raw.tx.interactions.add(row)
            if row.status is not InteractionStatus.OPEN:
                raw.tx.interactions.end(row)
        case Schedule():
            assert raw.tx.schedules.insert(row)


@pytest.mark.req("NO-10", "NO-13", "C07")
@pytest.mark.parametrize("table", CHANGING)
def test_what_was_asked_planned_or_sent_is_sealed(raw: Raw, table: str) -> None:  # noqa: F811
    planned = schedule()
    for row in (entry(), question(), planned):
        stored(raw, row)
    raw.tx.schedules.lock(planned.id)
    raw.tx.schedules.add_fires([fire(planned)])
    sealed = set(raw.columns(table)) - CHANGING[table]
    assert len(sealed) >= 4
    for column in sorted(sealed):
        raw.refuses(f'UPDATE {table} SET "{column}" = "{column}"', "sealed")
    if CHANGING[table]:
        assert raw.run(f"UPDATE {table} SET status = status") == 1


@pytest.mark.req("C06", "C07")
def test_an_entry_changes_its_state_as_the_domain_says(raw: Raw) -> None:  # noqa: F811
    for old, new in product(EntryStatus, repeat=2):
        row = entry(old)
        stored(raw, row)
        position = "'1'" if new is EntryStatus.APPLIED else "NULL"
        receipt = "'r'" if new is EntryStatus.RETURNED else "NULL"
        ended = "NULL" if new is EntryStatus.QUEUED else "2"
        change = (
            f"UPDATE mailbox SET status = '{new}', position = {position}, receipt_id = {receipt}, ended_at = {ended}"
            f" WHERE id = '{row.id}'"
        )
        if new in ENTRY_TRANSITIONS[old] or new is old is EntryStatus.QUEUED:
            assert raw.run(change) == 1, (old, new)
        else:
            raw.refuses(change, "does not change its state")


@pytest.mark.req("C76", "C81", "C82", "NO-10")
def test_a_question_changes_its_state_as_the_domain_says(raw: Raw) -> None:  # noqa: F811
    for old, new in product(InteractionStatus, repeat=2):
        row = question(old)
        stored(raw, row)
        is_answered, is_open = new is InteractionStatus.ANSWERED, new is InteractionStatus.OPEN
        answer = "prompt, answer_key = 'k'" if is_answered else "NULL, answer_key = NULL"
        ended = "NULL, ended_at = NULL" if is_open else "prompt, ended_at = 2"
        change = f"UPDATE interaction SET status = '{new}', answer = {answer}, ended_by = {ended} WHERE id = '{row.id}'"
        if new in QUESTION_TRANSITIONS[old] or new is old is InteractionStatus.OPEN:
            assert raw.run(change) == 1, (old, new)
        else:
            raw.refuses(change, "does not change its state")


@pytest.mark.req("NO-13")
def test_a_schedule_that_was_deleted_does_not_change_and_a_revision_never_falls(raw: Raw) -> None:  # noqa: F811
    for old in ScheduleStatus:
        row = schedule(old)
        stored(raw, row)
        where = f"WHERE id = '{row.id}'"
        raw.refuses(f"UPDATE schedule SET revision = 2 {where}", "does not change its state")
        for new in ScheduleStatus:
            other = schedule(old)
            stored(raw, other)
            next_at = "9" if new is ScheduleStatus.ACTIVE else "NULL"
            change = f"UPDATE schedule SET status = '{new}', next_at = {next_at}, revision = 4 WHERE id = '{other.id}'"
            if old is ScheduleStatus.DELETED:
                raw.refuses(change, "does not change its state")
            else:
                assert raw.run(change) == 1, (old, new)


@pytest.mark.req("C07", "C80")
def test_what_has_not_ended_is_not_deleted(raw: Raw) -> None:  # noqa: F811
    rows: list[MailboxEntry | Interaction] = [*map(entry, EntryStatus), *map(question, InteractionStatus)]
    for row in rows:
        stored(raw, row)
        delete = f"DELETE FROM {'mailbox' if isinstance(row, MailboxEntry) else 'interaction'} WHERE id = '{row.id}'"
        if row.status in (EntryStatus.QUEUED, InteractionStatus.OPEN):
            raw.refuses(delete, "not deleted before")
        else:
            assert raw.run(delete) == 1


@pytest.mark.req("NO-13", "C72")
def test_a_schedule_that_stands_for_something_is_not_deleted_nor_is_an_occurrence_of_it(raw: Raw) -> None:  # noqa: F811
    """The receipt of an occurrence is what keeps it from being decided again."""
    for status in ScheduleStatus:
        planned = schedule(status)
        stored(raw, planned)
        raw.tx.schedules.lock(planned.id)
        raw.tx.schedules.add_fires([fire(planned)])
        deletes = (f"DELETE FROM fire WHERE schedule_id = '{planned.id}'", f"DELETE FROM schedule WHERE id = '{planned.id}'")
        for delete in deletes:
            if status is ScheduleStatus.DELETED:
                assert raw.run(delete) == 1
            else:
                raw.refuses(delete, "not deleted before")


@pytest.mark.req("C07", "C80", "NO-13")
def test_no_table_is_emptied_at_once(postgres_url: str) -> None:
    settings = PostgresSettings.from_url(postgres_url)
    with connect(settings) as connection:
        prepare(connection, settings)
        for table in CHANGING:
            with pytest.raises(psycopg.errors.RestrictViolation, match=rf"^{table} "):
                connection.execute(psycopg.sql.SQL("TRUNCATE {} CASCADE").format(psycopg.sql.Identifier(table)))


def test_a_row_that_contradicts_itself_is_refused(raw: Raw) -> None:  # noqa: F811
    tables = {MailboxEntry: "mailbox", Interaction: "interaction", Schedule: "schedule"}
    for row, contradiction in CONTRADICTIONS:
        stored(raw, row)
        with pytest.raises(CONTRADICTION):
            raw.run(f"UPDATE {tables[type(row)]} SET {contradiction} WHERE id = '{row.id}'")


def test_a_receipt_that_contradicts_itself_is_refused(raw: Raw) -> None:  # noqa: F811
    planned = schedule()
    stored(raw, planned)
    raw.tx.schedules.lock(planned.id)
    right = fire(planned)
    for wrong in (replace(right, status=FireStatus.REFUSED), replace(right, run_id=None), replace(right, count=0)):
        with pytest.raises(CONTRADICTION):
            raw.tx.schedules.add_fires([wrong])
    raw.tx.schedules.add_fires([right])
