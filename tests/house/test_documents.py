"""What the documents say is there, is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import quiesce
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.crashpoints import POINTS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

RECEIPT_NAMES = [
    "run_id",
    "terminal_cause",
    "terminal_reason",
    "actor",
    "terminal_status",
    "last_checkpoint_id",
    "last_stream_seq_emitted",
    "last_stream_seq_durable",
    "covered_seq",
    "stored_seq",
    "emitted_exact",
    "terminal_durability",
    "gap",
    "cleanup_attempted",
    "cleanup_completed",
    "escalated",
    "unresolved_operations",
    "artifacts",
    "usage",
    "resume_policy",
    "durable_state_digest",
    "visible_state_digest_at_abort",
    "terminal_receipt_digest",
    "previous_receipt_digest",
]


def named_tests() -> set[str]:
    return {
        f"{path.relative_to(ROOT)}::{found}"
        for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "src/quiesce/testing").rglob("*.py")]
        for found in re.findall(r"def (test_\w+)", path.read_text())
    }


@pytest.mark.req("QA-08", "TR-62")
def test_each_rule_of_the_cancellation_contract_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "cancellation.md").read_text()
    cited = set(re.findall(r"`((?:tests|src)/[\w/]+\.py::\w+)`", text))
    rules = re.findall(r"^\d+\. \*\*", text, flags=re.MULTILINE)
    assert len(cited) >= len(rules) >= 15
    assert not cited - named_tests()


@pytest.mark.req("QA-08", "QA-10")
def test_ids_that_tests_cite_are_requirements() -> None:
    table = subprocess.run([sys.executable, "tools/requirements.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert table.returncode == 0, table.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_and_files_that_a_document_names_exist(path: Path) -> None:
    text = path.read_text()
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if not t.startswith("http")]
    assert not [t for t in links if not (path.parent / t).exists()]
    files = re.findall(r"`((?:src|docs|tests)/[\w/.*-]+)`", text)
    assert not [f for f in files if not list(ROOT.glob(f))]


@pytest.mark.req("QA-09")
def test_nothing_in_the_project_names_a_machine_or_holds_a_secret() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    paths = [ROOT / name for name in listed] or list((ROOT / "src").rglob("*.py"))
    secret = re.compile(r"sk-[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|ghp_[A-Za-z0-9]{30,}")
    home = re.compile(r"(?<![\w.])/(?:root|home/\w+)/|index-url|\bpypi\.org|deb\.debian\.org")
    this = Path(__file__).name
    for path in paths:
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".sql", ".txt", ""} and path.name != this:
            text = path.read_text(errors="replace")
            assert not secret.search(text), path
            assert not home.search(text), path


def test_the_public_names_are_few_sorted_and_documented() -> None:
    assert list(quiesce.__all__) == sorted(quiesce.__all__)
    assert len(quiesce.__all__) <= 60
    for name in quiesce.__all__:
        value = getattr(quiesce, name)
        assert name == "Json" or value.__doc__, name


@pytest.mark.req("TR-02", "TR-48", "TR-62")
def test_the_receipt_bears_the_published_names() -> None:
    import inspect

    body = inspect.getsource(TerminalReceipt.body) + inspect.getsource(TerminalReceipt.to_json)

    assert not [name for name in RECEIPT_NAMES if f'"{name}"' not in body]


def test_every_crash_point_is_reached_somewhere_and_every_reached_one_is_listed() -> None:
    reached: set[str] = set()
    for path in (ROOT / "src" / "quiesce").rglob("*.py"):
        for call in re.findall(r"\breach\(([^)]*)\)", path.read_text()):
            reached |= set(re.findall(r'"([a-z]+\.[a-z]+)"', call))
    assert reached == set(POINTS)


@pytest.mark.req("QA-01", "QA-03")
def test_the_tested_version_and_the_supported_range_are_stated_apart() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"Tested on CPython 3\.\d+", text)
    assert "Python 3.11 and later" in text
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
