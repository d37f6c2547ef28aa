"""`quiesce cancel` and `quiesce watch`: Stop from another process, and what every process then sees."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import Done, Shell, first_line, until

ENDLESS = '{"tokens": 100000, "delay_ms": 10, "every": 20}'


@pytest.mark.req("RR-24", "RR-34", "TR-22", "TR-53", "TR-63", "C30")
def test_a_stream_is_cancelled_from_another_process_and_everybody_reads_the_same_end(shell: Shell) -> None:
    with shell.begin("start", "--case", "slow-stream", "--input", ENDLESS, "--json") as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        with shell.begin("watch", run_id, "--json") as watching:
            watching.read_until('"seq": 30,')
            cancelled = shell.run("cancel", run_id, "--reason", "changed my mind", "--json")
            watched, ended = watching.end(), started.end()
    assert cancelled.code == 0
    receipt = cancelled.json()["receipt"]
    assert cancelled.json()["admission"]["verdict"] == "accepted"
    assert (receipt["terminal_status"], receipt["reason_text"]) == ("cancelled", "changed my mind")
    frames = [json.loads(line) for line in watched.out.splitlines()]
    end = frames.pop()
    assert (end["end"], end["status"], end["receipt_id"]) == (True, "cancelled", receipt["receipt_id"])
    assert [frame["seq"] for frame in frames] == list(range(1, receipt["last_stream_seq_emitted"] + 1))
    assert (ended.code, ended.json()["receipt"]) == (8, receipt)

    rest = [json.loads(line) for line in shell.run("watch", run_id, "--after", "25", "--json").out.splitlines()]
    assert rest == [*frames[25:], end]
    plain = shell.run("receipt", run_id)
    assert "●D" in plain.out
    assert "┤T cancelled" in plain.out
    assert '"changed my mind"' in " ".join(plain.out.split())


@pytest.mark.req("RR-28", "RR-31")
def test_cancelling_a_finished_run_changes_nothing_and_is_no_failure(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    answer = shell.run("cancel", done.json()["run_id"], "--json")
    assert (answer.code, answer.json()["admission"]["verdict"]) == (0, "already_terminal")
    assert answer.json()["receipt"] == done.json()["receipt"]
    assert "already terminal" in shell.run("cancel", "last").err


@pytest.mark.req("RR-29", "TR-46")
def test_a_parked_run_is_cancelled_without_a_worker_and_never_goes_on(shell: Shell) -> None:
    run_id = shell.run("start", "--case", "sleeper", "--json").json()["run_id"]
    admitted = shell.run("cancel", run_id, "--no-wait", "--json").json()
    assert admitted["admission"]["verdict"] == "accepted"
    assert not any("durab" in name for name in admitted["admission"])
    receipt = shell.run("cancel", run_id, "--json").json()["receipt"]
    assert receipt["terminal_status"] == "cancelled"
    again = shell.run("resume", run_id, "--json")
    assert (again.code, again.json()["receipt"]) == (8, receipt)


@pytest.mark.req("TR-35")
def test_a_cancel_after_the_step_leaves_no_gap(shell: Shell) -> None:
    with shell.begin("start", "--case", "slow-stream", "--input", ENDLESS) as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        until(lambda: shell.run("inspect", run_id, "--json").json()["stream"]["stored_seq"] > 0)
        receipt = shell.run("cancel", run_id, "--mode", "after_step", "--grace", "100000", "--json").json()["receipt"]
        started.end()
    assert (receipt["gap"]["kind"], receipt["terminal_durability"], receipt["resume_policy"]) == ("none", "durable", "allow")
    assert receipt["covered_seq"] == receipt["last_stream_seq_emitted"] > 0


@pytest.mark.req("RR-30")
def test_a_cancel_reaches_children_unless_the_scope_says_otherwise(shell: Shell) -> None:
    with shell.begin("start", "--case", "family", "--input", '{"ticks": 10000, "delay_ms": 50}') as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        until(lambda: len(shell.run("inspect", run_id, "--json").json()["children"]) == 3)
        cancelled = shell.run("cancel", run_id, "--json").json()
        assert started.end().code == 8
    assert cancelled["admission"]["reached"][0] == run_id
    assert len(cancelled["admission"]["reached"]) >= 4
    assert {row["status"] for row in shell.run("list", "--json").json()} == {"cancelled"}


@pytest.mark.req("RR-32", "RR-33", "RR-34")
def test_a_late_answer_of_a_model_dispatches_nothing_and_is_kept_without_force(shell: Shell) -> None:
    hold = shell.directory / "hold"
    hold.touch()
    with shell.begin("start", "--case", "pending-model", "--json", QUIESCE_CASE_HOLD=str(hold)) as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        log = shell.session / "artifacts" / "model.log"
        until(log.exists)
        with shell.begin("cancel", run_id, "--grace", "100000", "--json") as cancelling:
            until(lambda: shell.run("explain", run_id, "--json").json()["status"] == "settling")
            hold.unlink()
            assert cancelling.end().code == 0
        ended = started.end()
    assert (ended.code, ended.json()["status"]) == (8, "cancelled")
    assert shell.effects(run_id) == []
    seen = shell.run("inspect", run_id, "--json").json()
    assert [e["kind"] for e in seen["evidence"]] == ["late_proposal"]
    assert not [o for o in seen["operations"] if o["kind"] == "call"]


@pytest.mark.req("RR-35", "RR-36")
def test_a_cancelled_run_still_shows_what_it_had_done(shell: Shell) -> None:
    with shell.begin("start", "--case", "family", "--input", '{"ticks": 10000, "delay_ms": 50}') as started:
        run_id = first_line(started.read_until("\n", on_stderr=True))
        log = shell.session / "artifacts" / "effects.log"
        until(log.exists)
        receipt = shell.run("cancel", run_id, "--json").json()["receipt"]
        started.end()
    assert receipt["usage"]["tool_calls"]["used"] >= 1
