"""`docs/cli.md` says what the command line does: exit codes, verbs, cases and JSON names are compared with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quiesce.cases import CASES
from quiesce.cli.exits import Exit
from quiesce.cli.guide import GUIDE
from tests.cli.playing import theatre
from tests.cli.shell import Done, Shell

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def test_every_exit_code_is_documented() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)} == {int(code) for code in Exit}


def test_every_verb_and_case_is_documented() -> None:
    named = set(re.findall(r"`([a-z-]+)[ `]", TEXT))
    assert set(GUIDE) <= named
    assert set(CASES) <= named


@pytest.mark.req("TR-62")
async def test_every_field_of_a_receipt_is_documented(tmp_path: Path) -> None:
    async with theatre(tmp_path) as played:
        receipt = await played.play("sleeper", seconds=0)
    assert set(receipt.to_json()) <= set(re.findall(r"`(\w+)`", TEXT))


def test_every_field_of_start_is_documented(finished: tuple[Shell, Done]) -> None:
    _, done = finished
    row = next(line for line in TEXT.splitlines() if line.startswith("| `start`, `resume` | `run_id`"))
    assert set(done.json()) == set(re.findall(r"`(\w+)`", row)) - {"start", "resume"}
