"""`quiesce correct`, `wake` and `mailbox`: a run is reached from another process, and says what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell

CODE = """
from quiesce import agent

@agent
async def waits(run):
    order = await run.wait_for("order 7")
    return [order, [c.text for c in await run.corrections()]]
"""


@pytest.fixture
def parked(shell: Shell, tmp_path: Path) -> tuple[Shell, str]:
    """A run that waits for a wake, and a shell beside it."""
    (tmp_path / "waiting.py").write_text(CODE)
    done = shell.run("start", "waiting:waits", "--json", PYTHONPATH=str(tmp_path))
    row = done.json()
    assert (row["status"], row["waits"][0]["kind"]) == ("waiting", "wake"), done
    return shell, row["run_id"]


@pytest.mark.req("C13", "CC-68")
def test_a_parked_run_says_which_command_wakes_it_and_goes_on_with_what_came(parked: tuple[Shell, str], tmp_path: Path) -> None:
    shell, run_id = parked
    explained = shell.run("explain", run_id).out
    assert f"quiesce wake {run_id} 'order 7'" in " ".join(explained.split())
    said = shell.run("correct", run_id, "in French", "--json").json()
    assert (said["kind"], said["value"], said["status"]) == ("correction", "in French", "queued")
    wrong = shell.run("correct", run_id, "in German", "--json").json()
    rows = shell.run("mailbox", run_id, "--withdraw", wrong["entry_id"], "--json").json()
    assert [row["status"] for row in rows] == ["queued", "withdrawn"]
    woken = shell.run("wake", run_id, "order 7", "--value", '{"paid": true}')
    assert woken.code == 0
    done = shell.run("resume", run_id, "waiting:waits", "--json", PYTHONPATH=str(tmp_path)).json()
    assert done["result"] == [{"paid": True}, ["in French"]]
    seen = shell.run("mailbox", run_id)
    assert [word for word in seen.out.split() if word in ("applied", "withdrawn")] == ["applied", "withdrawn", "applied"]
    late = shell.run("wake", run_id, "order 7", "--json")
    assert late.code != 0
    assert late.error()["code"] == "RUN_ENDED"
    assert late.error()["details"]["receipt_id"] == done["receipt"]["receipt_id"]


def test_a_value_that_is_no_json_is_refused(parked: tuple[Shell, str]) -> None:
    shell, run_id = parked
    done = shell.run("wake", run_id, "order 7", "--value", "{", "--json")
    assert done.error()["code"] == "INVALID_INPUT"
    assert done.error()["details"]["field"] == "value"
    assert shell.run("mailbox", run_id, "--json").json() == []
