"""The demo: its own expectations are the test."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from quiesce.cli.main import app
from tests.cli.shell import Shell


@pytest.mark.req("RR-43", "TR-44", "QA-04")
def test_the_demo_holds_what_it_says(shell: Shell) -> None:
    done = shell.run("demo", "--fast", "--session", "story")
    assert done.code == 0, done.out + done.err
    assert "✗" not in done.out
    assert done.out.count("✓") >= 38
    assert (shell.directory / "story" / "session.sqlite").exists()
    assert "quiesce list --session story" in done.out


def test_the_live_demo_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["demo", "--live"])
    assert result.exit_code == 2
    assert "quiesce[local-model]" in result.stderr
