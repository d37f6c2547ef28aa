"""What the documents show is run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def first_program(document: str) -> str:
    """The first Python block of a document."""
    found = re.search(r"```python\n(.*?)```", (DOCS / document).read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


def run(directory: Path, *command: str) -> str:
    """Run something in an empty directory, as a reader would."""
    done = subprocess.run([sys.executable, *command], cwd=directory, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.req("CC-67", "NO-15")
def test_an_owner_of_your_own_as_the_document_writes_it(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(first_program("control-channel.md"))
    assert run(tmp_path, "bank.py") == "settled accepted closed A-7\n"
    assert run(tmp_path, "bank.py") == "settled accepted closed A-7\n", "the same form again is the same request"
    (row,) = json.loads(run(tmp_path, "-m", "quiesce", "queue", "list", "--store", "sqlite:///bank.db", "--json"))
    assert (row["delivery"], row["effect"], row["subject"]) == ("settled", "accepted", "ada")


@pytest.mark.req("TR-30", "TR-36", "C16")
def test_a_stopped_conversation_goes_on_as_the_document_says(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(first_program("resume.md"))
    printed = run(tmp_path, "talk.py")
    assert f"It prints\n\n```\n{printed}```" in (DOCS / "resume.md").read_text()
