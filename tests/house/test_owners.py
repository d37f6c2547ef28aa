"""Every fact has one owner: the audits "all writers of X were checked" as tests, so that they stay true."""

import ast
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


@pytest.mark.req("ST-13", "QA-10")
def test_only_the_settlement_freezes_a_frontier() -> None:
    assert callers_of("freeze") == {"settlement.py"}


@pytest.mark.req("RR-31", "CC-54", "QA-10")
def test_outside_of_its_holder_an_operation_is_changed_only_by_a_decision_or_at_the_boundary() -> None:
    assert callers_of("put_many") == {"reconciliation.py", "settlement.py"}


@pytest.mark.req("TR-31", "TR-33", "QA-10")
def test_only_the_journal_makes_checkpoints_and_only_at_the_agents_own_call_or_at_completion() -> None:
    assert callers_of("make_checkpoint") == {"points.py", "endings.py"}
    assert callers_of("add_many") == set()
