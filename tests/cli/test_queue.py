"""`quiesce queue`: commands of a session as an operator sees them, and what may be done about those that are stuck."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.owners import (
    Command,
    CommandRequest,
    Decision,
    Deliverer,
    IntentId,
    Kind,
    LocalOwner,
    Target,
    Transaction,
    accepted,
    rejected,
    stage_tx,
)
from quiesce.runtime.environment import Environment
from tests.cli.shell import Shell

DO = Kind(name="do")
NEWER = Kind(name="do", version=2)
WITH_GROUNDS = [[verb, "nothing", "--why", "x"] for verb in ("requeue", "reconcile", "quarantine")]


class Desk(LocalOwner):
    name = "desk"
    kinds = (DO,)

    def decide(self, tx: Transaction, command: Command) -> Decision:
        return accepted("done") if command.target.id == "yes" else rejected("not at this desk")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A session whose channel holds one command of each sort, and a shell to look at it."""
    shell = Shell(tmp_path)
    shell.session.mkdir()
    asyncio.run(fill(f"sqlite:///{shell.database}"))
    return shell


async def fill(url: str) -> None:
    store = await asyncio.to_thread(open_store, url)
    env = Environment(store=store, clock=SystemClock(), entropy=SystemEntropy())
    for target, kind in (("yes", DO), ("no", DO), ("strange", NEWER)):
        await store.transact(partial(stage, env=env, target=target, kind=kind))
    while await Deliverer(env, [Desk()]).pass_once():
        pass
    await store.transact(partial(stage, env=env, target="later", kind=DO))
    await store.close()


def stage(tx: Transaction, env: Environment, target: str, kind: Kind) -> None:
    wanted = CommandRequest(
        kind=kind,
        target=Target(owner="desk", id=target),
        producer="test",
        producer_key=target,
        subject="ada",
        payload={"for": target},
    )
    stage_tx(tx, wanted, intent_id=IntentId(env.new_id()), limits=env.limits)


def by_target(shell: Shell) -> dict[str, dict[str, Any]]:
    return {row["target"]["id"]: row for row in shell.run("queue", "list", "--json").json()}


@pytest.mark.req("CC-62", "CC-63")
def test_delivery_and_effect_stand_in_two_columns(shell: Shell) -> None:
    rows = by_target(shell)
    told = {target: (row["delivery"], row["effect"]) for target, row in rows.items()}
    assert told == {
        "yes": ("settled", "accepted"),
        "no": ("settled", "rejected"),
        "strange": ("pending", "not_yet"),
        "later": ("staged", "not_yet"),
    }
    text = shell.run("queue", "list").out
    assert "not_yet" in text
    assert "1 pending" in text
    assert "1 staged" in text
    only = shell.run("queue", "list", "--status", "pending", "--json").json()
    assert [row["target"]["id"] for row in only] == ["strange"]


@pytest.mark.req("CC-23", "CC-62")
def test_what_is_staged_is_listed_and_shown_with_the_moment_at_which_it_is_due(shell: Shell) -> None:
    (staged,) = shell.run("queue", "list", "--status", "staged", "--json").json()
    assert (staged["target"]["id"], staged["event_id"], staged["has_arrived"]) == ("later", None, False)
    shown = shell.run("queue", "show", staged["intent_id"], "--json").json()
    assert (shown["delivery"], shown["due_at"]) == ("staged", staged["due_at"])
    assert "due" in shell.run("queue", "list").out
    both = shell.run("queue", "list", "--status", "staged", "--status", "pending", "--json").json()
    assert [row["delivery"] for row in both] == ["staged", "pending"]
    assert shell.run("queue", "withdraw", staged["intent_id"], "--json").json()["delivery"] == "withdrawn"
    assert shell.run("queue", "list", "--status", "staged", "--json").json() == []


@pytest.mark.req("CC-70", "CC-69")
def test_one_command_is_shown_with_its_receipt_and_its_history(shell: Shell) -> None:
    refused = by_target(shell)["no"]
    shown = shell.run("queue", "show", refused["event_id"], "--json").json()
    assert shown["receipt"]["reason"] == "not at this desk"
    assert [line["what"] for line in shown["history"]] == ["relayed", "claimed", "started", "settled"]
    text = shell.run("queue", "show", refused["intent_id"]).out
    assert "not at this desk" in text
    assert "claimed" in shell.run("queue", "history", refused["event_id"]).out


@pytest.mark.req("CC-56", "CC-58")
def test_what_nobody_knows_is_held_for_a_person_and_offered_again(shell: Shell) -> None:
    stuck = by_target(shell)["strange"]["event_id"]
    held = shell.run("queue", "quarantine", stuck, "--why", "version 2 is not deployed", "--json").json()
    assert (held["delivery"], held["effect"], held["reason"]) == ("quarantined", "not_yet", "version 2 is not deployed")
    counts = shell.run("queue", "counts", "--json").json()
    assert counts["statuses"]["quarantined"]["count"] == 1
    assert shell.run("queue", "requeue", stuck, "--why", "deployed now", "--json").json()["delivery"] == "pending"
    again = shell.run("queue", "requeue", stuck, "--why", "twice", "--json")
    assert again.code != 0
    assert again.error()["code"] == "REFUSED"


@pytest.mark.req("CC-54", "CC-59")
def test_what_is_certain_is_not_reconciled(shell: Shell) -> None:
    stuck = by_target(shell)["strange"]["event_id"]
    shell.run("queue", "quarantine", stuck, "--why", "nobody knows it")
    refused = shell.run("queue", "reconcile", stuck, "--why", "look again", "--json")
    assert refused.error()["code"] == "REFUSED"
    assert "requeue it" in refused.error()["message"]


def test_room_is_set_and_shown(shell: Shell) -> None:
    assert shell.run("queue", "room", "default", "--bound", "5", "--json").json()["bound"] == 5
    (scope,) = shell.run("queue", "counts", "--json").json()["scopes"]
    assert scope == {"scope": "default", "used": 2, "bound": 5, "reserve": 100}


@pytest.mark.req("QA-10")
def test_an_unknown_command_is_named(shell: Shell) -> None:
    for verb in (["show", "nothing"], ["withdraw", "nothing"], *WITH_GROUNDS):
        failed = shell.run("queue", *verb, "--json")
        assert failed.code != 0
        assert failed.error()["code"] == "NOT_FOUND"
        assert "nothing" in failed.error()["message"]
