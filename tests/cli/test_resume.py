"""`quiesce resume`: continuation after a real kill, and terminal readback, which proves nothing about continuation (RR-46)."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.shell import SHORT_LEASE, WAIT_S, Done, Shell, first_line


def resumed_after_the_lease(shell: Shell, run_id: str) -> Done:
    """Resume once the dead holder's lease has run out; until then it is refused, whatever became of the process."""
    until = time.monotonic() + WAIT_S
    while (done := shell.run("resume", run_id, "--json", **SHORT_LEASE)).code == 4 and time.monotonic() < until:
        assert done.error()["code"] == "LEASE_BUSY"
    return done


def killed_at(shell: Shell, point: str, case: str) -> str:
    """Start a case in a process that dies at a crash point; return the run."""
    done = shell.run("start", "--case", case, QUIESCE_CRASH_AT=point, **SHORT_LEASE)
    assert done.code == -9
    return first_line(done.err)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(session: Path) -> dict[str, str]:
    """Return the digest of every file of a session; what SQLite keeps beside its file is not content."""
    files = (path for path in session.rglob("*") if path.is_file() and not path.name.startswith("session.sqlite-"))
    return {str(path): digest_of(path) for path in files}


@pytest.mark.req("RR-23", "RR-26", "RR-46")
def test_readback_of_a_finished_run_returns_the_same_receipt_and_writes_nothing(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    before = files_of(shell.session)
    again = shell.run("resume", done.json()["run_id"], "--json")
    assert again.code == 0
    for field in ("run_id", "receipt", "artifacts", "usage", "result", "status"):
        assert again.json()[field] == done.json()[field]
    assert files_of(shell.session) == before
    assert len(shell.run("list", "--json").json()) == 1


@pytest.mark.req("RR-27")
@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_readback_finds_a_damaged_report_and_does_not_repair_it(
    finished: tuple[Shell, Done], tmp_path: Path, damage: str
) -> None:
    original, done = finished
    shell = Shell(tmp_path)
    shutil.copytree(original.session, shell.session)
    report = shell.session / "artifacts" / done.json()["artifacts"][0]["path"]
    if damage == "missing":
        report.unlink()
    else:
        report.write_bytes(report.read_bytes()[:-1] + b"!")
    left = report.read_bytes() if report.exists() else None
    again = shell.run("resume", "last", "--json")
    assert (again.code, again.error()["code"]) == (7, "VERIFICATION_FAILED")
    assert "artifact" in again.error()["details"]["failed"][0]["name"]
    assert (report.read_bytes() if report.exists() else None) == left


@pytest.mark.req("RR-22", "RR-44", "RR-12", "RR-13", "RR-38", "TR-44")
def test_an_effect_without_a_record_is_unknown_after_a_kill_until_a_person_decides(shell: Shell) -> None:
    run_id = killed_at(shell, "effect.after", "once-effect")
    before = digest_of(shell.database)
    seen = shell.run("inspect", run_id, "--json").json()
    assert digest_of(shell.database) == before, "inspect changes no byte of the file, also with a log left beside it"
    assert [o["name"] for o in seen["authority"]["must_stop"]] == ["order"]
    assert seen["authority"]["must_stop"][0]["why"] == "TOOL_OUTCOME_UNKNOWN"
    assert len(shell.effects(run_id)) == 1

    parked = resumed_after_the_lease(shell, run_id)
    assert (parked.code, parked.json()["status"]) == (5, "waiting")
    assert parked.json()["waits"][0]["kind"] == "unknown"
    assert "reconcile" in parked.json()["next"][0]
    (unknown,) = shell.run("reconcile", run_id, "--json").json()
    position = unknown["operation"]

    unfounded = shell.run("reconcile", run_id, position, "--verdict", "happened", "--json")
    assert (unfounded.code, unfounded.error()["details"]["field"]) == (2, "grounds")
    decided = shell.run(
        *("reconcile", run_id, position, "--verdict", "happened", "--result", '{"id": 7}'),
        *("--grounds", "order book", "--actor", "ada", "--json"),
    )
    assert (decided.code, decided.json()["evidence"]["actor"]["name"]) == (0, "ada")
    done = shell.run("resume", run_id, "--json")
    assert (done.code, done.json()["status"], done.json()["result"]) == (0, "completed", {"answer": {"id": 7}})
    assert done.json()["usage"]["tool_calls"] == {"limit": None, "reserved": 0, "used": 1}
    assert len(shell.effects(run_id)) == 1
    again = shell.run("reconcile", run_id, position, "--verdict", "give_up", "--grounds", "late", "--json")
    assert (again.code, again.error()["code"]) == (4, "REFUSED")


@pytest.mark.req("RR-14", "RR-37")
@pytest.mark.parametrize("case", ["probe-effect", "idempotent-effect"])
def test_a_destination_that_can_be_asked_lets_another_process_go_on(shell: Shell, case: str) -> None:
    run_id = killed_at(shell, "effect.after", case)
    done = resumed_after_the_lease(shell, run_id)
    assert (done.code, done.json()["status"], done.json()["run_id"]) == (0, "completed", run_id)
    assert len(shell.effects(run_id)) == 1
    assert done.json()["receipt"]["attempt"] == 2


@pytest.mark.req("RR-11", "RR-37")
def test_a_stored_result_is_consumed_and_the_tool_is_not_called(shell: Shell) -> None:
    run_id = killed_at(shell, "result.after", "once-effect")
    done = resumed_after_the_lease(shell, run_id)
    assert (done.code, done.json()["status"]) == (0, "completed")
    assert len(shell.effects(run_id)) == 1


@pytest.mark.req("RR-03")
def test_a_live_holder_is_not_disturbed(shell: Shell) -> None:
    with shell.begin("start", "--case", "slow-stream", "--input", '{"tokens": 5000}') as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        with shell.begin("watch", run_id, "--json") as watching:
            watching.read_until('"seq": 2,')
        refused = shell.run("resume", run_id, "--json")
        assert (refused.code, refused.error()["code"], refused.error()["retryable"]) == (4, "LEASE_BUSY", True)
        plain = shell.run("resume", run_id)
        assert plain.err.startswith("error LEASE_BUSY:")
        assert "hint:" in plain.err
        assert "Traceback" not in plain.err


@pytest.mark.req("RR-17", "RR-40", "RR-41")
def test_a_run_is_not_continued_with_another_model(user_code: Shell) -> None:
    started = user_code.run("start", "mine:doubler", "--input", "[1]", "--detach", "--json", MODEL="live:big").json()
    refused = user_code.run("resume", "last", "mine:doubler", "--json", MODEL="scripted:fixture")
    assert (refused.code, refused.error()["code"]) == (4, "BINDING_MISMATCH")
    seen = user_code.run("inspect", "last", "--json").json()
    assert (seen["status"], seen["attempts"]) == ("pending", [])
    done = user_code.run("resume", "last", "mine:doubler", "--json", MODEL="live:big")
    assert (done.code, done.json()["run_id"], done.json()["result"]) == (0, started["run_id"], 2)


def test_resume_without_the_agents_code_says_how_to_name_it(user_code: Shell) -> None:
    user_code.run("start", "mine:doubler", "--input", "[1]", "--detach")
    done = user_code.run("resume", "last", "--json")
    assert (done.code, done.error()["code"]) == (3, "NOT_FOUND")
    assert "module:agent" in done.error()["message"]


@pytest.mark.req("RR-22")
def test_reading_verbs_change_no_byte_of_the_database(finished: tuple[Shell, Done], tmp_path: Path) -> None:
    original, _ = finished
    shell = Shell(tmp_path)
    shutil.copytree(original.session, shell.session)
    with sqlite3.connect(shell.database) as connection:  # leave something in the log for the last to close
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE worker SET name = name")
        before = digest_of(shell.database)
        for verb in (("inspect", "last"), ("list",), ("explain", "last"), ("receipt", "last"), ("verify", "last"), ("doctor",)):
            assert shell.run(*verb).code == 0
        assert digest_of(shell.database) == before
    connection.close()
