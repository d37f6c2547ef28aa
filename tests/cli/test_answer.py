"""`quiesce inbox` and `answer`: a question outlives a killed process, and a gated effect happens once, after a yes."""

from __future__ import annotations

import signal

import pytest

from tests.cli.shell import SHORT_LEASE, Shell, until


@pytest.mark.req("C80", "C83", "NO-10")
@pytest.mark.parametrize("point", ["ask.before", "ask.after"])
def test_a_process_killed_at_a_question_leaves_one_question_and_no_effect(shell: Shell, point: str) -> None:
    killed = shell.run("start", "--case", "approval", "--json", QUIESCE_CRASH_AT=point, **SHORT_LEASE)
    assert killed.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert shell.run("inbox", "--json").json() == [] or point == "ask.after"
    until(lambda: shell.run("resume", "last", "--json").code == 5)
    parked = shell.run("inspect", "last", "--json")
    (question,) = shell.run("inbox", "--json").json()
    assert parked.json()["waits"][0]["subject"] == question["interaction_id"]
    _answer_and_end(shell, question["interaction_id"])


@pytest.mark.req("C80")
def test_an_answer_is_kept_though_its_process_is_killed_before_it_can_say_so(shell: Shell) -> None:
    assert shell.run("start", "--case", "approval", "--json").code == 5
    (question,) = shell.run("inbox", "--json").json()
    answer = ("answer", question["interaction_id"], "--value", "true", "--key", "k", "--actor", "ada", "--json")
    assert shell.run(*answer, QUIESCE_CRASH_AT="answer.after").code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert shell.run("inbox", "--json").json() == []
    again = shell.run(*answer).json()
    assert (again["status"], again["answer"], again["ended_by"]["name"]) == ("answered", True, "ada")
    assert shell.run("resume", "last", "--json").json()["result"]["approved"] is True


@pytest.mark.req("C76", "NO-10")
def test_what_does_not_fit_and_what_comes_second_is_refused_with_the_reason(shell: Shell) -> None:
    assert shell.run("start", "--case", "approval", "--json").code == 5
    (question,) = shell.run("inbox", "--json").json()
    interaction_id = question["interaction_id"]
    assert f"quiesce answer {interaction_id}" in " ".join(shell.run("explain", "last").out.split())
    for value in ("yes", '"yes"'):
        refused = shell.run("answer", interaction_id, "--value", value, "--json")
        assert (refused.code, refused.error()["details"]["field"]) == (2, "value")
    _answer_and_end(shell, interaction_id)
    second = shell.run("answer", interaction_id, "--value", "false", "--json")
    assert (second.code, second.error()["code"], second.error()["details"]["answer"]) == (4, "ALREADY_ANSWERED", True)
    assert shell.run("inbox").out.strip() == "nothing waits for an answer"


def _answer_and_end(shell: Shell, interaction_id: str) -> None:
    assert shell.run("answer", interaction_id, "--value", "true", "--json").code == 0
    assert shell.run("resume", "last", "--json").json()["result"]["approved"] is True
