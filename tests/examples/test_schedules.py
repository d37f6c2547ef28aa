"""What `docs/schedules.md` shows is run as it stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.test_documents_run import first_program, run


@pytest.mark.req("NO-13", "C72")
def test_a_schedule_as_the_document_defines_it_is_there_and_said_again_it_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(first_program("schedules.md"))
    assert run(tmp_path, "news.py") == "nightly active\n"
    assert run(tmp_path, "news.py") == "nightly active\n"
    (row,) = json.loads(run(tmp_path, "-m", "quiesce", "schedules", "list", "--store", "sqlite:///agents.db", "--json"))
    assert (row["revision"], row["cron"], row["timezone"]) == (0, "0 2 * * *", "Europe/London")
