"""The schemas: their checks are the domain's enums, facts stay, and hot questions are answered from an index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import psycopg
import pytest

from quiesce.domain.boundary import CancelMode, CancelScope, Cause, Reason, TerminalDurability
from quiesce.domain.commands import IntentStatus
from quiesce.domain.continuations import Carry, OnGap, Scope
from quiesce.domain.deliveries import Admission, Command, CommandStatus, HistoryEvent
from quiesce.domain.evidence import EvidenceKind, Verdict
from quiesce.domain.instant import after_ms
from quiesce.domain.interactions import InteractionStatus
from quiesce.domain.mailbox import EntryKind, EntryStatus
from quiesce.domain.operations import EffectPolicy, OperationKind, OperationStatus, ResultKind
from quiesce.domain.resume import Policy
from quiesce.domain.runs import Durability, RunStatus
from quiesce.domain.schedules import FireStatus, ScheduleStatus
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
from quiesce.testing.channel_samples import CANCEL, CORRECT, OWNER, ChannelSamples
from quiesce.testing.samples import AGENT, TENANT, Samples
from quiesce.testing.thread_samples import ThreadSamples

ENUMS: Final[dict[tuple[str, str], Iterable[StrEnum]]] = {
    ("schedule", "status"): ScheduleStatus,
    ("fire", "status"): FireStatus,
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
    ("intent", "status"): IntentStatus,
    ("command", "status"): CommandStatus,
    ("settlement", "verdict"): Admission,
    ("command_history", "what"): HistoryEvent,
    ("admission_receipt", "verdict"): Admission,
    ("mailbox", "kind"): EntryKind,
    ("mailbox", "status"): EntryStatus,
    ("interaction", "status"): InteractionStatus,
    ("continuation", "policy"): (Policy.ALLOW, Policy.RECONCILE, Policy.RESTART),
    ("continuation", "carry"): Carry,
    ("standing_policy", "scope"): Scope,
    ("standing_policy", "on_gap"): OnGap,
    ("standing_policy", "carry"): Carry,
}
FACTS: Final = (
    "event",
    "checkpoint",
    "occurrence",
    "outcome",
    "receipt",
    "artifact",
    "evidence",
    "continuation",
    "standing_policy",
)
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
    "claim_messages",
    "queued_runs",
    "continuation_of_run",
    "continuations_of_thread",
    "standing_policy",
)
CHANNEL: Final = (
    "intent_by_key",
    "get_intent",
    "lock_intent",
    "due_intents",
    "end_intents",
    "take_place",
    "give_back",
    "get_capacity",
    "capacities",
    "get_admission",
    "lock_targets",
    "get_targets",
    "save_targets",
    "get_command",
    "command_of_intent",
    "lock_commands",
    "save_commands",
    "claimable_scopes",
    "claimable_commands",
    "blocked_targets",
    "unblocked_commands",
    "get_settlement",
    "history_of_command",
    "page_of_commands",
    "counts_of_commands",
    "next_due_command",
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


def _column(table: str) -> str:
    """Return a column that any row of a table has."""
    return "name" if table == "standing_policy" else "run_id"


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
    receipt = make.receipt(run, occurrence, outcome)
    tx.terminal.add_receipt(receipt)
    threads = ThreadSamples(make.now)
    tx.continuations.add(threads.continuation(make.run(thread_id=run.thread_id), receipt))
    tx.continuations.declare(threads.standing(run.thread_id))


@pytest.mark.req("TR-16", "TR-32", "RR-31")
@pytest.mark.parametrize("table", FACTS)
@pytest.mark.parametrize("change", ["UPDATE {0} SET {1} = {1}", "DELETE FROM {0}"])
def test_facts_are_not_changed_on_sqlite(sqlite: sqlite3.Connection, make: Samples, table: str, change: str) -> None:
    _fill(SqlTransaction(SqliteQueries(sqlite), lambda: make.now), make)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sqlite.execute(change.format(table, _column(table)))


@pytest.mark.req("TR-16", "TR-32", "RR-31")
def test_facts_are_not_changed_on_postgres(postgres: Connection, make: Samples) -> None:
    _fill(SqlTransaction(PostgresQueries(postgres), lambda: make.now), make)
    for table in FACTS:
        for change in ("UPDATE {0} SET {1} = {1}", "DELETE FROM {0}", "TRUNCATE {0} CASCADE"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                postgres.execute(
                    psycopg.sql.SQL(change).format(psycopg.sql.Identifier(table), psycopg.sql.Identifier(_column(table)))
                )


@pytest.mark.parametrize("name", HOT + CHANNEL)
def test_hot_questions_read_no_whole_table_on_sqlite(sqlite: sqlite3.Connection, name: str) -> None:
    query = load("quiesce.stores.sqlite")[name]
    plan = [row[3] for row in sqlite.execute("EXPLAIN QUERY PLAN " + query.sql, dict.fromkeys(query.parameters, "[]"))]
    tables = (
        r"SCAN (run|pending|first|due|late|left_behind|operation|event|last|receipt|checkpoint|outbox|worker"
        r"|intent|command|c|next|found|target|scope|settlement|command_history|admission_receipt)\b"
    )
    assert [step for step in plan if re.match(tables, step) and "USING" not in step] == []


def _plan(postgres: Connection, name: str) -> str:
    """Return the plan that stays in use: made on empty tables, for any parameters."""
    postgres.execute("SET plan_cache_mode = force_generic_plan")
    query = load("quiesce.stores.postgres")[name]
    values = ", ".join("NULL" for _ in query.parameters)
    postgres.execute(f"PREPARE {name} AS {_numbered(query)}".encode())
    return "\n".join(row[0] for row in postgres.execute(f"EXPLAIN EXECUTE {name} ({values})".encode()))


def test_hot_questions_read_no_whole_table_on_postgres(postgres: Connection) -> None:
    for name in HOT + CHANNEL:
        plan = _plan(postgres, name)
        assert "Seq Scan" not in plan, plan


@pytest.mark.req("CC-28")
def test_questions_of_the_channel_read_no_whole_index_on_postgres(postgres: Connection) -> None:
    """An index that is read without a condition is a whole table in another order."""
    for name in CHANNEL:
        plan = _plan(postgres, name)
        found = re.findall(r"Index (?:Only )?Scan.* using \w+ on .*\n *(.*)|Bitmap Index Scan.*\n *(.*)", plan)
        assert found, plan
        assert all("Index Cond" in condition for pair in found for condition in pair if condition), plan


@pytest.mark.req("CC-28")
def test_what_is_settled_blocked_staged_claimed_or_not_understood_does_not_slow_a_claim(sqlite: sqlite3.Connection) -> None:
    """Counted in steps of SQLite's own machine, so no clock decides."""
    make = ChannelSamples()
    tx = SqlTransaction(SqliteQueries(sqlite), lambda: make.now)
    due = [make.command(scope=f"scope {n}") for n in range(3)]
    consumers = [(OWNER, CORRECT.name, CORRECT.version)]

    def insert(*commands: Command) -> None:
        for command in commands:
            tx.intents.insert(command.intent)
        tx.commands.insert_many(commands)

    def steps_of_a_claim() -> int:
        return _steps(sqlite, lambda: tx.commands.claimable(consumers, now=due[-1].accepted_at, limit=10, after=None))

    insert(*due)
    before = steps_of_a_claim()
    later = after_ms(make.now, 3_600_000)
    for _ in range(300):
        ended, blocked = make.command().closed(CommandStatus.DISCARDED, make.now), make.command(is_blocked=True)
        insert(ended, blocked, make.command(target=make.target("other owner")), make.command(kind=CANCEL))
        insert(make.command(scope="scope 1").taken(make.worker().id, later))
        tx.intents.insert(make.intent())
    assert steps_of_a_claim() < before + 100


@pytest.mark.req("CC-28")
def test_deep_scopes_and_a_great_many_of_them_cost_a_claim_no_more_than_its_bounds(sqlite: sqlite3.Connection) -> None:
    make = ChannelSamples()
    tx = SqlTransaction(SqliteQueries(sqlite), lambda: make.now)
    consumers = [(OWNER, CORRECT.name, CORRECT.version)]

    def steps_with_another(scopes: int, *, deep: int) -> int:
        for n in range(scopes * deep):
            command = make.command(scope=f"scope {n % scopes}")
            tx.intents.insert(command.intent)
            tx.commands.insert_many([command])
        after = (TENANT, "scope 5")
        return _steps(sqlite, lambda: tx.commands.claimable(consumers, now=make.now, limit=8, after=after, scopes_max=16))

    before = steps_with_another(30, deep=20)
    assert steps_with_another(20, deep=40) < before + 100
    assert steps_with_another(400, deep=1) < before + 100


def test_finished_runs_do_not_slow_a_claim(sqlite: sqlite3.Connection, make: Samples) -> None:
    """Counted in steps of SQLite's own machine, so no clock decides."""
    tx = SqlTransaction(SqliteQueries(sqlite), lambda: make.now)
    pending = [make.run() for _ in range(3)]
    for run in pending:
        tx.runs.insert(run)

    def steps_of_a_claim() -> int:
        return _steps(sqlite, lambda: tx.runs.claimable(agents=[AGENT], now=make.now, limit=10), found=len(pending))

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


def _steps(sqlite: sqlite3.Connection, ask: Callable[[], Sequence[object]], *, found: int | None = None) -> int:
    """Return how many steps SQLite's machine takes to answer."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    sqlite.set_progress_handler(count, 1)
    answer = ask()
    sqlite.set_progress_handler(None, 0)
    assert answer
    assert found is None or len(answer) == found
    return steps


def _numbered(query: Query) -> str:
    """Return the statement with `$1`, as the server's own PREPARE wants it."""
    return re.sub(r"(?<![:\w]):([a-z_]\w*)", lambda found: f"${query.parameters.index(found[1]) + 1}", query.sql)
