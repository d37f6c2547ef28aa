"""The schemas: their checks are the domain's enums, facts stay, and hot questions are answered from an index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import psycopg
import pytest

from quiesce.domain.boundary import CancelMode, CancelScope, Cause, Reason, TerminalDurability
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.operations import EffectPolicy, OperationKind, OperationStatus, ResultKind
from quiesce.domain.runs import Durability, RunStatus
from quiesce.domain.streams import EventKind, Visibility
from quiesce.domain.workers import AttemptEnd
from quiesce.stores import migrate
from quiesce.stores.catalogue import Query, load
from quiesce.stores.postgres import PostgresSettings
from quiesce.stores.postgres.connection import Connection, PostgresQueries, connect
from quiesce.stores.postgres.opening import prepare
from quiesce.stores.sql.transaction import SqlTransaction
from quiesce.stores.sqlite import SqliteSettings
from quiesce.stores.sqlite.clock import MachineTime
from quiesce.stores.sqlite.connection import SqliteQueries
from quiesce.stores.sqlite.opening import open_file
from quiesce.testing.samples import AGENT, Samples

ENUMS: Final[dict[tuple[str, str], type[StrEnum]]] = {
    ("run", "status"): RunStatus,
    ("run", "durability"): Durability,
    ("run", "visibility"): Visibility,
    ("attempt", "end"): AttemptEnd,
    ("operation", "kind"): OperationKind,
    ("operation", "policy"): EffectPolicy,
    ("operation", "status"): OperationStatus,
    ("operation", "result_kind"): ResultKind,
    ("event", "kind"): EventKind,
    ("occurrence", "cause"): Cause,
    ("occurrence", "reason"): Reason,
    ("occurrence", "mode"): CancelMode,
    ("occurrence", "scope"): CancelScope,
    ("outcome", "durability"): TerminalDurability,
    ("evidence", "kind"): EvidenceKind,
    ("evidence", "verdict"): Verdict,
}
FACTS: Final = ("event", "checkpoint", "occurrence", "outcome", "receipt", "artifact", "evidence")
HOT: Final = (
    "claimable_runs",
    "unsettled_runs",
    "overdue_runs",
    "run_by_key",
    "active_children",
    "held_runs",
    "runs_of_thread",
    "page_of_runs",
    "next_due",
    "expired_workers",
    "get_operations",
    "operations_of_run",
    "unresolved_operations",
    "stream_states",
    "read_events",
    "last_checkpoint",
    "last_receipt_of_thread",
    "pending_messages",
)


@pytest.fixture
def sqlite(sqlite_path: Path) -> Iterator[sqlite3.Connection]:
    connection, reader, _ = open_file(SqliteSettings(path=sqlite_path), MachineTime())
    yield connection
    connection.close()
    reader.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Connection]:
    settings = PostgresSettings.from_url(postgres_url)
    with connect(settings) as connection:
        prepare(connection, settings)
        yield connection


def _checks(sql: str) -> dict[tuple[str, str], set[str]]:
    """Read `CHECK (column IN ('a', ...))` of every table of a script."""
    found: dict[tuple[str, str], set[str]] = {}
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", sql, re.DOTALL):
        for column, values in re.findall(r"CHECK \(\"?(\w+)\"? IN \(([^)]*)\)\)", body):
            if "'" in values:
                found[table, column] = set(re.findall(r"'(\w+)'", values))
    return found


@pytest.mark.parametrize("package", ["quiesce.stores.sqlite", "quiesce.stores.postgres"])
def test_the_checks_of_the_schema_are_the_enums_of_the_domain(package: str) -> None:
    sql = "\n".join(migration.sql for migration in migrate.load(package))
    assert _checks(sql) == {key: {member.value for member in enum} for key, enum in ENUMS.items()}


def _fill(tx: SqlTransaction, make: Samples) -> None:
    """Write one row of every fact."""
    run = make.running()
    tx.runs.insert(run)
    tx.streams.open(run.id)
    tx.streams.append_many(make.texts(run, "a"))
    tx.checkpoints.add_many([make.checkpoint(run)])
    tx.evidence.add_artifacts([make.artifact(run)])
    tx.evidence.add(make.evidence(run))
    occurrence = make.occurrence(run)
    outcome = make.outcome(occurrence)
    tx.terminal.add_occurrence(occurrence)
    tx.terminal.add_outcome(outcome)
    tx.terminal.add_receipt(make.receipt(run, occurrence, outcome))


@pytest.mark.req("TR-16", "TR-32", "RR-31")
@pytest.mark.parametrize("table", FACTS)
@pytest.mark.parametrize("change", ["UPDATE {} SET run_id = run_id", "DELETE FROM {}"])
def test_facts_are_not_changed_on_sqlite(sqlite: sqlite3.Connection, make: Samples, table: str, change: str) -> None:
    _fill(SqlTransaction(SqliteQueries(sqlite), lambda: make.now), make)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sqlite.execute(change.format(table))


@pytest.mark.req("TR-16", "TR-32", "RR-31")
def test_facts_are_not_changed_on_postgres(postgres: Connection, make: Samples) -> None:
    _fill(SqlTransaction(PostgresQueries(postgres), lambda: make.now), make)
    for table in FACTS:
        for change in ("UPDATE {} SET run_id = run_id", "DELETE FROM {}", "TRUNCATE {} CASCADE"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                postgres.execute(psycopg.sql.SQL(change).format(psycopg.sql.Identifier(table)))


@pytest.mark.parametrize("name", HOT)
def test_hot_questions_read_no_whole_table_on_sqlite(sqlite: sqlite3.Connection, name: str) -> None:
    query = load("quiesce.stores.sqlite")[name]
    plan = [row[3] for row in sqlite.execute("EXPLAIN QUERY PLAN " + query.sql, dict.fromkeys(query.parameters, "[]"))]
    tables = r"SCAN (run|pending|first|due|late|left_behind|operation|event|last|receipt|checkpoint|outbox|worker)\b"
    assert [step for step in plan if re.match(tables, step) and "USING" not in step] == []


def test_hot_questions_read_no_whole_table_on_postgres(postgres: Connection) -> None:
    postgres.execute("SET enable_seqscan = off")
    postgres.execute("SET plan_cache_mode = force_generic_plan")
    for name in HOT:
        query = load("quiesce.stores.postgres")[name]
        numbered = _numbered(query)
        values = ", ".join("NULL" for _ in query.parameters)
        postgres.execute(f"PREPARE {name} AS {numbered}".encode())
        plan = "\n".join(row[0] for row in postgres.execute(f"EXPLAIN EXECUTE {name} ({values})".encode()))
        assert "Seq Scan" not in plan, plan


def test_finished_runs_do_not_slow_a_claim(sqlite: sqlite3.Connection, make: Samples) -> None:
    """Counted in steps of SQLite's own machine, so no clock decides."""
    tx = SqlTransaction(SqliteQueries(sqlite), lambda: make.now)
    pending = [make.run() for _ in range(3)]
    for run in pending:
        tx.runs.insert(run)

    def steps_of_a_claim() -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        sqlite.set_progress_handler(count, 1)
        assert len(tx.runs.claimable(agents=[AGENT], now=make.now, limit=10)) == len(pending)
        sqlite.set_progress_handler(None, 0)
        return steps

    before = steps_of_a_claim()
    for _ in range(500):
        run = make.running()
        tx.runs.insert(run.ended(RunStatus.COMPLETED, make.now))
    live = make.worker(lease_ms=3_600_000)
    tx.workers.insert(live)
    for _ in range(200):
        tx.runs.insert(make.running(live))
    for _ in range(200):
        tx.runs.insert(make.waiting(None))
    assert steps_of_a_claim() < before + 100


def _numbered(query: Query) -> str:
    """Return the statement with `$1`, as the server's own PREPARE wants it."""
    return re.sub(r"(?<![:\w]):([a-z_]\w*)", lambda found: f"${query.parameters.index(found[1]) + 1}", query.sql)
