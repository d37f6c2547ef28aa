"""`quiesce schedules`: runs by the clock, as a person defines, looks at and stops them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.cases import agents_of
from quiesce.cases.destination import Destination
from quiesce.domain.canonical import canonical
from quiesce.domain.instant import Instant
from quiesce.domain.schedules import Definition, Timing
from quiesce.runtime.environment import Environment
from tests.cli.shell import Shell, until
from tests.planting import plant_tx


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


async def plant(url: str) -> None:
    """Store a one-shot that is due now."""
    store = await asyncio.to_thread(open_store, url)
    env = Environment(store=store, clock=SystemClock(), entropy=SystemEntropy())
    arguments = b'{"args":[],"kwargs":{"seconds":0}}'
    bound = canonical(dict(agents_of("sleeper", Destination(Path()))[0].bindings))

    def planted(now: Instant) -> Definition:
        return Definition(agent="sleeper", input=arguments, bindings=bound, timing=Timing(at=now))

    await store.transact(lambda tx: plant_tx(tx, env, planted(tx.now), tx.now))
    await store.close()


def add(shell: Shell, *more: str) -> dict[str, object]:
    done = shell.run("schedules", "add", "nightly", "--case", "sleeper", "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, object] = done.json()
    return found


@pytest.mark.req("NO-13", "C72")
def test_a_schedule_is_defined_listed_and_stopped(shell: Shell) -> None:
    added = add(shell, "--cron", "30 1 * * *", "--timezone", "Europe/London", "--budget", "tokens=5", "--timeout", "60")
    assert added["revision"] == 0
    assert add(shell, "--cron", "30 1 * * *", "--timezone", "Europe/London", "--budget", "tokens=5", "--timeout", "60") == added
    (row,) = shell.run("schedules", "list", "--next", "2", "--json").json()
    assert (row["name"], row["status"], row["agent"], row["budget"]) == ("nightly", "active", "sleeper", {"tokens": 5})
    assert (row["timeout_ms"], row["missed"], row["tally"]) == (60_000, "one", {})
    assert [re.fullmatch(r"20\d\d-\d\d-\d\dT0[12]:[03]0:00\+0[01]:00", text) is not None for text in row["next"]] == [True, True]
    shown = shell.run("schedules", "list").out
    assert "30 1 * * *" in shown
    assert "Europe/London" in shown
    assert shell.run("schedules", "pause", "nightly", "--json").json()["status"] == "paused"
    assert shell.run("schedules", "list", "--json").json()[0]["next"] == []
    assert shell.run("schedules", "resume", "nightly", "--json").json()["status"] == "active"
    assert "planned" in shell.run("schedules", "fires", "nightly").out
    assert shell.run("schedules", "remove", "nightly", "--json").json()["status"] == "deleted"
    assert shell.run("schedules", "list", "--json").json() == []
    assert shell.run("schedules", "fires", "nightly", "--json").error()["code"] == "NOT_FOUND"


@pytest.mark.req("C73", "CC-68", "NO-13")
def test_a_worker_fires_what_is_planned_and_the_status_is_the_runs_own(shell: Shell) -> None:
    shell.session.mkdir()
    asyncio.run(plant(f"sqlite:///{shell.database}"))
    (planned,) = shell.run("schedules", "fires", "planted", "--json").json()
    assert planned["status"] == "planned"

    def status() -> str:
        found = shell.run("schedules", "fires", "planted", "--json").json()
        return str(found[0]["status"])

    with shell.begin("worker") as running:
        running.read_until("ready", on_stderr=True)
        until(lambda: status() == "completed")
    (fire,) = shell.run("schedules", "fires", "planted", "--json").json()
    assert (fire["outcome"], fire["count"], fire["coalesced"]) == ("fired", 1, [])
    assert fire["late_ms"] >= 0
    assert shell.run("receipt", fire["run_id"], "--json").json()["terminal_status"] == "completed"
    assert fire["run_id"] in shell.run("schedules", "fires", "planted").out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--cron", "0 2 * *"], "cron"),
        (["--cron", "0 2 * * *", "--timezone", "Europe/Lundun"], "timezone"),
        (["--at", "tomorrow"], "at"),
        (["--at", "2020-01-01T00:00"], "at"),
        ([], "cron"),
        (["--cron", "0 2 * * *", "--timeout", "0"], "timeout"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(shell: Shell, arguments: list[str], field: str) -> None:
    done = shell.run("schedules", "add", "nightly", "--case", "sleeper", "--json", *arguments)
    assert done.code == 2
    assert done.error()["details"]["field"] == field


def test_the_help_has_commands_to_try(shell: Shell) -> None:
    assert "--cron" in shell.run("schedules", "--help").out
    assert "--cron" in shell.run("schedules", "add", "--help").out
