"""`quiesce start`: what it prints, how it exits, and what leaving it means."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Done, Shell, first_line


@pytest.mark.req("RR-01", "RR-21", "RR-25", "RR-42", "RR-43")
def test_start_prints_run_directory_report_and_usage_and_ends_with_the_run(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    assert done.code == 0, done.err
    shown = done.json()
    assert shown["status"] == "completed"
    assert shown["directory"] == str(shell.session)
    assert shell.database.exists()
    (report,) = shown["artifacts"]
    assert (shell.session / "artifacts" / report["path"]).stat().st_size == report["bytes"]
    assert shown["usage"]["model_requests"]["used"] == 2
    assert shown["usage"]["tool_calls"]["used"] == 4
    assert shown["receipt"]["terminal_cause"] == "completed"
    assert len(shell.effects(shown["run_id"])) == 1
    model_log = (shell.session / "artifacts" / "model.log").read_text().splitlines()
    assert [line.split()[0] for line in model_log] == [shown["run_id"]] * 2


@pytest.mark.req("RR-21")
def test_the_human_output_names_the_same_things(shell: Shell) -> None:
    done = shell.run("start", "--case", "durable-report")
    assert done.code == 0
    assert first_line(done.err) in done.out
    for words in (str(shell.session)[:30], "report.md", "model_requests", "┤T completed", "quiesce verify"):
        assert words in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines() if "quiesce verify" not in line)


def test_an_agent_of_the_users_own_is_started_by_module_and_name(user_code: Shell) -> None:
    done = user_code.run("start", "mine:doubler", "--input", "[21]", "--json")
    assert (done.code, done.json()["result"]) == (0, 42)


@pytest.mark.req("RR-39", "TR-05")
def test_a_failed_run_has_an_exit_code_of_its_own(user_code: Shell) -> None:
    done = user_code.run("start", "mine:failing", "--json")
    assert (done.code, done.json()["status"]) == (1, "failed")
    assert "on purpose" in done.json()["receipt"]["reason_text"]


def test_a_budget_that_runs_out_ends_the_run(shell: Shell) -> None:
    done = shell.run("start", "--case", "parallel", "--budget", "tool_calls=1", "--json")
    assert (done.code, done.json()["receipt"]["terminal_reason"]) == (1, "budget")


@pytest.mark.req("RR-18")
def test_a_deadline_ends_the_run(shell: Shell) -> None:
    done = shell.run("start", "--case", "sleeper", "--timeout", "1", "--json")
    assert (done.code, done.json()["receipt"]["terminal_reason"]) == (1, "deadline")


@pytest.mark.req("C57")
def test_a_key_gives_the_same_run_and_refuses_other_content(shell: Shell) -> None:
    first = shell.run("start", "--case", "idempotent-effect", "--key", "k", "--json").json()
    again = shell.run("start", "--case", "idempotent-effect", "--key", "k", "--json")
    assert (again.code, again.json()["run_id"]) == (0, first["run_id"])
    assert again.json()["receipt"] == first["receipt"]
    assert len(shell.effects(first["run_id"])) == 1
    other = shell.run("start", "--case", "once-effect", "--key", "k", "--json")
    assert (other.code, other.error()["code"]) == (4, "KEY_CONFLICT")


def test_a_long_timer_leaves_the_run_parked_and_says_what_to_do(shell: Shell) -> None:
    done = shell.run("start", "--case", "sleeper")
    assert done.code == 5
    assert "waits for a timer" in done.out
    assert "quiesce resume" in done.out
    assert "quiesce cancel" in done.out


def test_a_short_timer_and_a_stored_back_off_are_sat_out(shell: Shell) -> None:
    assert shell.run("start", "--case", "sleeper", "--input", "[0.3]").code == 0
    done = shell.run("start", "--case", "retrying", "--input", '{"delay_ms": 50}', "--json")
    assert (done.code, done.json()["result"]) == (0, {"tries": 3})


def test_children_are_advanced_too(shell: Shell) -> None:
    done = shell.run("start", "--case", "family", "--input", '{"ticks": 1, "delay_ms": 0}', "--json")
    assert (done.code, done.json()["result"]["results"]) == (0, [2, 2, 2])
    assert done.json()["usage"]["tool_calls"]["used"] == 6


def test_a_detached_run_waits_for_somebody_and_only_that_run_is_resumed(shell: Shell) -> None:
    first = shell.run("start", "--case", "parallel", "--detach", "--json")
    second = shell.run("start", "--case", "parallel", "--detach", "--json")
    assert (first.code, first.json()["status"]) == (0, "pending")
    assert shell.run("resume", first.json()["run_id"]).code == 0
    statuses = {row["run_id"]: row["status"] for row in shell.run("list", "--json").json()}
    assert statuses == {first.json()["run_id"]: "completed", second.json()["run_id"]: "pending"}


@pytest.mark.req("RR-15", "RR-23", "ST-01")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaving_hands_the_run_back_and_resume_goes_on_with_it(user_code: Shell, hold: Path, number: signal.Signals) -> None:
    shell = user_code
    run_id = shell.run("start", "mine:talker", "--detach", "--json").json()["run_id"]
    with shell.begin("watch", run_id, "--json") as watching, shell.begin("resume", run_id, "mine:talker") as advancing:
        watching.read_until('"seq": 5,')
        advancing.send(number)
        left = advancing.end()
        assert left.code == 128 + number
        assert f"quiesce resume {run_id}" in left.out
        seen = shell.run("inspect", run_id, "--json").json()
        assert (seen["status"], seen["receipt"], seen["attempts"][-1]["end"]) == ("pending", None, "released")
        hold.unlink()
        resumed = shell.run("resume", run_id, "mine:talker", "--json").json()
        assert (resumed["run_id"], resumed["status"], resumed["receipt"]["attempt"]) == (run_id, "completed", 2)
        watched = watching.end()
    assert watched.code == 0
    frames = [json.loads(line) for line in watched.out.splitlines()]
    assert [frame["seq"] for frame in frames[:-1]] == list(range(1, frames[-1]["last_seq"] + 1))


@pytest.mark.req("RR-42")
def test_a_postgresql_store_serves_as_well(shell: Shell, postgres_url: str) -> None:
    where = ("--store", postgres_url, "--artifacts", str(shell.directory / "files"))
    done = shell.run("start", "--case", "durable-report", *where, "--json", QUIESCE_SESSION="")
    assert (done.code, done.json()["status"]) == (0, "completed"), done.err
    assert Path(shell.directory / "files" / done.json()["artifacts"][0]["path"]).exists()
    again = shell.run("resume", "last", *where, "--json", QUIESCE_SESSION="")
    assert again.json()["receipt"] == done.json()["receipt"]
    assert shell.run("verify", "last", *where, QUIESCE_SESSION="").code == 0


def test_words_are_shown_as_they_come_where_somebody_sits(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    given = ("start", "--case", "slow-stream", "--input", '{"tokens": 7, "delay_ms": 0}', "--json")
    with os.fdopen(ours, "rb", buffering=0) as screen:
        done = subprocess.run(
            [sys.executable, "-m", "quiesce", *given, "--session", str(shell.session)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            cwd=shell.directory,
            check=True,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other side is closed: all is read
            while piece := screen.read(4096):
                shown += piece
    assert json.loads(done.stdout)["status"] == "completed"
    assert "every word here has a number and" in shown.decode()
    assert "· end: completed at event 7" in shown.decode()


def test_interrupting_a_reader_ends_the_reader_only(shell: Shell) -> None:
    run_id = shell.run("start", "--case", "sleeper", "--detach", "--json").json()["run_id"]
    with shell.begin("watch", run_id) as watching, shell.begin("resume", run_id) as advancing:
        watching.read_until("good night")
        watching.send(signal.SIGINT)
        left = watching.end()
        assert advancing.end().code == 5
    assert (left.code, left.err) == (130, "interrupted\n")
    assert shell.run("explain", run_id, "--json").json()["status"] == "waiting"
