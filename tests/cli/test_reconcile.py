"""`reconcile` holds a result against the tool's declaration, where it knows the tool, and says so where it does not."""

from __future__ import annotations

import pytest

from tests.cli.shell import Done, Shell

SHOP = """
import quiesce

@quiesce.tool()
async def pay() -> str:
    raise quiesce.OutcomeUnknown("the connection broke after sending")

@quiesce.agent
async def buyer(run: quiesce.Run) -> str:
    return str(await run.call(pay))
"""


@pytest.fixture
def parked(shell: Shell) -> Shell:
    """A shell with a run that waits to learn what became of its call."""
    (shell.directory / "shop.py").write_text(SHOP)
    assert shell.run("start", "shop:buyer", "--json").code == 5
    return shell


def _decide(shell: Shell, result: str, *more: str) -> Done:
    decided = ("--verdict", "happened", "--result", result, "--grounds", "the bank's page", *more)
    return shell.run("reconcile", "last", "1", *decided)


@pytest.mark.req("TR-45", "CC-54", "CC-10")
def test_a_result_that_does_not_fit_the_tool_is_refused_and_changes_nothing(parked: Shell) -> None:
    before = parked.run("inspect", "last", "--json").json()
    refused = _decide(parked, '{"id": 17}', "--code", "shop:buyer", "--json")
    assert (refused.code, refused.error()["code"], refused.error()["details"]["field"]) == (2, "INVALID_INPUT", "result")
    assert "does not fit str" in refused.error()["message"]
    after = parked.run("inspect", "last", "--json").json()
    assert (after["status"], after["operations"], after["evidence"]) == ("waiting", before["operations"], [])
    decided = _decide(parked, '"id 17"', "--code", "shop:buyer", "--json")
    assert (decided.code, decided.json()["result_checked"]) == (0, True)
    assert parked.run("resume", "last", "shop:buyer", "--json").json()["result"] == "id 17"


@pytest.mark.req("TR-45", "CC-54")
def test_where_the_tool_is_not_known_the_answer_says_that_nothing_was_checked(parked: Shell) -> None:
    decided = _decide(parked, '"id 17"')
    assert decided.code == 0
    assert "the result was not checked" in decided.out
    assert "--code module:agent" in decided.out


BANK = """
import os
import quiesce

async def look(key: str) -> object:
    return quiesce.Happened("id 17") if os.path.exists("answers") else None

@quiesce.tool(effect="probe", probe=look)
async def pay() -> str:
    raise quiesce.OutcomeUnknown("the connection broke after sending")

@quiesce.agent
async def buyer(run: quiesce.Run) -> str:
    return str(await run.call(pay))
"""


@pytest.mark.req("TR-45", "CC-54", "CC-44")
def test_the_destination_is_asked_again_and_what_it_says_is_recorded(shell: Shell) -> None:
    (shell.directory / "bank.py").write_text(BANK)
    assert shell.run("start", "bank:buyer", "--json").code == 5
    ask = ("reconcile", "last", "1", "--ask", "--code", "bank:buyer", "--json")
    unsure = shell.run(*ask).json()
    assert (unsure["evidence"]["verdict"], unsure["status"]) == ("cannot_tell", "waiting")
    both = shell.run(*ask, "--verdict", "happened", "--grounds", "x")
    assert (both.code, both.error()["details"]["field"]) == (2, "ask")
    stranger = shell.run("reconcile", "last", "1", "--ask", "--json")
    assert (stranger.code, stranger.error()["code"]) == (4, "REFUSED")
    (shell.directory / "answers").touch()
    sure = shell.run(*ask).json()
    assert (sure["evidence"]["kind"], sure["evidence"]["verdict"], sure["result_checked"]) == ("probe", "happened", True)
    assert shell.run("resume", "last", "bank:buyer", "--json").json()["result"] == "id 17"
