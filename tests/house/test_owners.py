"""Every fact has one owner: the audits "all writers of X were checked" as tests, so that they stay true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "src" / "quiesce" / "runtime"
ABOVE = [ROOT / "src" / "quiesce" / part for part in ("cli", "cases", "adapters")]


def callers_of(*methods: str) -> set[str]:
    """Return the modules above the stores that call one of these methods."""
    found: set[str] = set()
    files = [
        *RUNTIME.rglob("*.py"),
        *(path for part in ABOVE for path in part.rglob("*.py")),
        ROOT / "src/quiesce/application.py",
    ]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                found.add(path.name)
    return found


@pytest.mark.req("NO-08", "TR-16", "QA-10")
@pytest.mark.parametrize("method", ["add_occurrence", "add_outcome", "add_receipt", "ended", "fenced_for_settlement"])
def test_only_the_settlement_writes_terminal_facts(method: str) -> None:
    assert callers_of(method) == {"settlement.py"}


@pytest.mark.req("RR-04", "QA-10")
def test_only_a_claim_gives_a_run_to_a_holder() -> None:
    assert callers_of("claimed", "open_attempt") == {"claims.py"}


@pytest.mark.req("CC-04", "CC-64", "CC-65", "QA-10")
def test_only_the_channel_moves_a_delivery_and_only_a_local_owner_writes_its_receipt() -> None:
    assert callers_of("taken", "closed", "quarantined", "requeued", "started", "deferred") == {"deliveries.py"}
    assert callers_of("add_settlements", "add_history") == {"deliveries.py", "relay.py"}
    assert callers_of("insert_many") == {"relay.py"}
    assert callers_of("take_place") == {"commands.py"}


@pytest.mark.req("ST-13", "QA-10")
def test_only_the_settlement_freezes_a_frontier() -> None:
    assert callers_of("freeze") == {"settlement.py"}


@pytest.mark.req("RR-31", "CC-54", "QA-10")
def test_outside_of_its_holder_an_operation_is_changed_only_by_a_decision_or_at_the_boundary() -> None:
    assert callers_of("put_many") == {"reconciliation.py", "settlement.py"}


@pytest.mark.req("NO-04", "NO-06", "QA-10")
def test_only_the_publisher_writes_that_something_was_told() -> None:
    assert callers_of("mark_delivered", "postpone") == {"publication.py"}


@pytest.mark.req("TR-31", "TR-33", "QA-10")
def test_only_the_journal_makes_checkpoints_and_only_at_the_agents_own_call_or_at_completion() -> None:
    assert callers_of("make_checkpoint") == {"points.py", "endings.py"}
    assert callers_of("add_many") == set()


@pytest.mark.req("NO-18", "CC-64", "QA-10")
def test_every_table_has_one_owner_of_record() -> None:
    migrations = (ROOT / "src/quiesce/stores/sqlite/migrations").glob("*.sql")
    tables = [name for path in migrations for name in re.findall(r"^CREATE TABLE (\w+)", path.read_text(), flags=re.MULTILINE)]
    page = (ROOT / "docs" / "owners.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(tables)
    assert all(row[1].strip() and row[2].strip() for row in rows)
    modules = {name for row in rows for name in re.findall(r"`(?:\w+/)*(\w+\.py)`", row[2])}
    assert modules <= {path.name for path in (ROOT / "src" / "quiesce").rglob("*.py")}
