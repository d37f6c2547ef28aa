"""`quiesce worker`: it advances what is due, survives nothing it should not, and drains when it is told to stop."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.shell import SHORT_LEASE, Shell, until


@pytest.mark.req("C67")
def test_a_worker_drains_on_sigterm_and_another_one_goes_on(user_code: Shell, hold: Path) -> None:
    shell = user_code
    run_id = shell.run("start", "mine:talker", "--detach", "--json").json()["run_id"]
    with shell.begin("watch", run_id, "--json") as watching:
        with shell.begin("worker", "mine", "--name", "first") as first:
            watching.read_until('"seq": 5,')
            first.send(signal.SIGTERM)
            drained = first.end()
        assert drained.code == 0
        assert "handed back" in drained.err
        hold.unlink()
        with shell.begin("worker", "mine", "--name", "second") as second:
            watched = watching.end()
            second.send(signal.SIGINT)
            assert second.end().code == 0
    assert '"status": "completed"' in watched.out.splitlines()[-1]
    attempts = shell.run("inspect", run_id, "--json").json()["attempts"]
    assert [(a["worker"], a["end"]) for a in attempts] == [("first", "released"), ("second", "ended")]


@pytest.mark.req("RR-04", "RR-13")
def test_a_worker_takes_over_from_a_dead_one_and_leaves_an_unknown_effect_to_a_person(shell: Shell) -> None:
    run_id = shell.run("start", "--case", "once-effect", "--detach", "--json").json()["run_id"]
    with shell.begin("worker", QUIESCE_CRASH_AT="effect.after", **SHORT_LEASE) as first:
        assert first.end().code == -signal.SIGKILL
    with shell.begin("worker", **SHORT_LEASE):
        until(lambda: shell.run("explain", run_id, "--json").json()["status"] == "waiting")
        shell.run("reconcile", run_id, "2", "--verdict", "did_not_happen", "--grounds", "the log was lost")
        assert shell.run("watch", run_id).code == 0
    seen = shell.run("inspect", run_id, "--json").json()
    assert (seen["status"], [a["fence"] for a in seen["attempts"]]) == ("completed", [1, 2, 3])
    assert len(shell.effects(run_id)) == 2, "a person said that it had not happened, and so it was done again"


def test_a_worker_advances_agents_of_the_users_own(user_code: Shell) -> None:
    run_id = user_code.run("start", "mine:doubler", "--input", "[4]", "--detach", "--json").json()["run_id"]
    with user_code.begin("worker", "mine") as working:
        working.read_until("ready", on_stderr=True)
        assert user_code.run("watch", run_id).out.startswith("doubling 4\n")


@pytest.mark.req("C20", "C12", "TR-05")
def test_a_worker_that_nobody_is_to_follow_ends_its_runs(user_code: Shell, hold: Path) -> None:
    shell = user_code
    run_id = shell.run("start", "mine:talker", "--detach", "--json").json()["run_id"]
    with shell.begin("watch", run_id, "--json") as watching:
        with shell.begin("worker", "mine", "--end-runs") as last:
            watching.read_until('"seq": 5,')
            last.send(signal.SIGTERM)
            drained = last.end()
        watched = watching.end()
    assert drained.code == 0
    assert "unfinished runs are ended" in drained.err
    assert '"status": "failed"' in watched.out.splitlines()[-1]
    seen = shell.run("inspect", run_id, "--json").json()
    assert (seen["status"], len(seen["attempts"])) == ("failed", 1)
    assert "worker_shutdown" in shell.run("receipt", run_id, "--json").out
