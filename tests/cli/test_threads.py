"""`thread`, `continue` and `standing`: a conversation that was stopped goes on, by somebody's word and with a record of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.shell import Shell

CODE = """
import asyncio
import quiesce

@quiesce.agent
async def talker(run: quiesce.Run, message: str) -> str:
    past = [(turn.input["args"][0], turn.partial.text if turn.partial else None) for turn in await run.history()]
    await run.checkpoint({"asked": message})
    if message.startswith("stop"):
        await run.emit({"text": f"half an answer to {message}"})
        await asyncio.Event().wait()
    return str(past)
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell with a thread whose only run was cancelled behind its checkpoint; nobody writes to it."""
    shell = Shell(tmp_path_factory.mktemp("stopped"))
    (shell.directory / "talk.py").write_text(CODE)
    with shell.begin("start", "talk:talker", "--input", '"stop me"', "--thread", "t-1") as running:
        running.read_until("run ", on_stderr=True)
        with shell.begin("watch", "last", "--json") as watching:
            watching.read_until("half an answer")
        assert shell.run("cancel", "last").code == 0
        running.end()
    return shell


@pytest.fixture
def stopped(original: Shell, tmp_path: Path) -> Shell:
    """A copy of it."""
    shutil.copytree(original.directory, tmp_path, dirs_exist_ok=True)
    return Shell(tmp_path)


def _head(shell: Shell) -> str:
    return str(shell.run("thread", "t-1", "--json").json()["head"]["receipt_id"])


@pytest.mark.req("TR-30", "TR-54", "TR-28")
def test_a_thread_shows_what_was_seen_beyond_its_state_and_the_commands_that_go_on(stopped: Shell) -> None:
    shown = stopped.run("thread", "t-1")
    assert "half an answer to stop me" in " ".join(shown.out.split())
    assert f"quiesce continue t-1 --accept {_head(stopped)} --policy reconcile" in shown.out
    view = stopped.run("thread", "t-1", "--json").json()
    assert (view["status"], view["policy"], view["choices"]) == ("choice", "reconcile", ["reconcile", "restart"])
    (turn,) = view["turns"]
    assert (turn["is_behind"], turn["cursor"], turn["partial"]["is_partial"]) == (True, 0, True)
    assert turn["state"] == {"asked": "stop me"}


@pytest.mark.req("TR-30")
def test_without_a_choice_it_is_refused_and_says_what_to_type(stopped: Shell) -> None:
    refused = stopped.run("continue", "t-1", "--code", "talk:talker", "--input", '"next"')
    assert refused.code == 4
    assert f"--accept {_head(stopped)} --policy restart" in refused.err
    assert "CONTINUATION_REFUSED" in refused.err
    assert len(stopped.run("thread", "t-1", "--json").json()["turns"]) == 1


@pytest.mark.req("TR-36", "TR-37", "C24")
@pytest.mark.parametrize(
    ("choice", "past"),
    [
        (("--policy", "reconcile"), "[('stop me', 'half an answer to stop me')]"),
        (("--policy", "reconcile", "--carry", "rollback"), "[]"),
        (("--policy", "restart"), "[('stop me', None)]"),
    ],
)
def test_a_choice_goes_on_and_the_thread_shows_under_which_record(stopped: Shell, choice: tuple[str, ...], past: str) -> None:
    receipt = _head(stopped)
    going = ("continue", "t-1", "--code", "talk:talker", "--input", '"next"', "--accept", receipt, *choice, "--json")
    done = stopped.run(*going)
    assert (done.code, done.json()["result"]) == (0, past)
    turns = stopped.run("thread", "t-1", "--json").json()["turns"]
    assert (turns[1]["continuation"]["receipt_id"], turns[1]["continuation"]["policy"]) == (receipt, "reconcile")
    again = stopped.run(*going)
    assert (again.code, again.error()["code"]) == (4, "CONTINUATION_REFUSED")


@pytest.mark.req("TR-30")
def test_a_standing_policy_is_used_without_asking_and_named_in_the_record(stopped: Shell) -> None:
    assert "nothing is declared" in stopped.run("standing").out
    bad = stopped.run("standing", "--thread", "t-1", "--json")
    assert (bad.code, bad.error()["details"]["field"]) == (2, "on_gap")
    declared = stopped.run("standing", "--agent", "talker", "--on-gap", "reconcile", "--json").json()
    assert [(p["scope"], p["name"], p["on_gap"]) for p in declared] == [("agent", "talker", "reconcile")]
    done = stopped.run("continue", "t-1", "--code", "talk:talker", "--input", '"next"', "--json")
    assert done.json()["result"] == "[('stop me', 'half an answer to stop me')]"
    record = stopped.run("thread", "t-1", "--json").json()["turns"][1]["continuation"]
    assert (record["standing"]["scope"], record["standing"]["name"]) == ("agent", "talker")


@pytest.mark.req("TR-30", "C26")
def test_a_queued_run_is_chosen_for_without_a_message(stopped: Shell) -> None:
    queued = stopped.run("continue", "t-1", "--input", '"x"', "--code", "talk:talker", "--on-busy", "enqueue", "--json")
    assert queued.error()["code"] == "CONTINUATION_REFUSED"  # the thread is idle: nothing to queue behind
    nothing = stopped.run("continue", "t-1", "--accept", _head(stopped), "--policy", "restart", "--json")
    assert (nothing.code, nothing.error()["code"]) == (4, "REFUSED")
    wordless = stopped.run("continue", "t-1", "--json")
    assert (wordless.code, wordless.error()["details"]["field"]) == (2, "accept")


def test_a_thread_that_is_not_there_is_said_to_be_missing(stopped: Shell) -> None:
    for verb in ("thread", "continue"):
        more = ("--input", '"x"') if verb == "continue" else ()
        missing = stopped.run(verb, "t-9", *more, "--json")
        assert (missing.code, missing.error()["code"]) == (3, "NOT_FOUND"), json.dumps(missing.error())
