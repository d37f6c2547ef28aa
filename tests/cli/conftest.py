"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Done, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in an empty directory."""
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, Done]:
    """A session with one finished run of the default case, for tests that only read; and how its `start` ended."""
    shell = Shell(tmp_path_factory.mktemp("finished"))
    return shell, shell.run("start", "--case", "durable-report", "--json")


USER_CODE = """
import asyncio
import os
import quiesce

@quiesce.tool(effect="pure")
async def double(number: int) -> int:
    return 2 * number

@quiesce.agent(bindings={"model": os.environ.get("MODEL", "scripted:mine")})
async def doubler(run: quiesce.Run, number: int) -> int:
    await run.emit(f"doubling {number}\\n")
    return await run.call(double, number)

@quiesce.agent
async def talker(run: quiesce.Run) -> str:
    for number in range(1, 61):
        await run.emit(f"word {number}\\n")
        if number % 10 == 0:
            await run.checkpoint({"written": number})
        while number == 30 and os.path.exists("hold"):
            await asyncio.sleep(0.01)
    return "said"

@quiesce.agent
async def failing(run: quiesce.Run) -> None:
    raise ValueError("on purpose")
"""


@pytest.fixture
def user_code(shell: Shell) -> Shell:
    """A shell whose directory holds a module `mine` with agents of a user's own."""
    (shell.directory / "mine.py").write_text(USER_CODE)
    return shell


@pytest.fixture
def hold(user_code: Shell) -> Path:
    """A file: while it is there, `mine:talker` says half of what it has to say and does not go on."""
    held = user_code.directory / "hold"
    held.touch()
    return held
