"""Processes that are killed at any instant, frozen, replaced, crowded, and cut off from their database."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import psycopg
import pytest

from quiesce.domain.operations import EffectPolicy
from quiesce.domain.runs import RunStatus
from tests.crash.conftest import STORES, NewWorld, Player
from tests.crash.world import SIGKILLED, Facts, Process, World, check_always, check_progress, check_rest

RUNS: Final = 20
SEEDS: Final = 20
BEFORE_FIRST_CHECKPOINT: Final = (
    "submit.before",
    "submit.after",
    "claim.after",
    "step.before",
    "step.after",
    "emit.after",
    "dispatch.before",
    "dispatch.after",
    "effect.after",
    "checkpoint.before",
)


def starts(agent: str, count: int = RUNS) -> list[dict[str, object]]:
    return [{"agent": agent, "key": f"run-{number}"} for number in range(count)]


def settled(world: World, before: Facts) -> Facts:
    """Check what recovery has made of what a death left, decide what is unknown, and return the facts at rest."""
    check_always(before)
    after = world.facts()
    check_always(after)
    check_progress(before, after)
    check_rest(after, allow_unknown=True)
    while any(run.run.status is RunStatus.WAITING for run in after.runs.values()):
        assert world.decide_unknowns(after) == 0, world.logs()
        world.recover()
        after = world.facts()
        check_always(after)
    check_rest(after, allow_unknown=False)
    world.check_file()
    return after


@dataclass(frozen=True, slots=True)
class KillAtAnyInstant:
    """A process that advances twenty runs is killed at a random instant; two others race to finish."""

    store: str
    seed: int

    def __str__(self) -> str:
        return f"{self.store}-seed{self.seed}"

    def play(self, new_world: NewWorld) -> None:
        world = new_world(self.store, f"kill-{self}")
        process = world.process("work", start=starts("small"))
        world.until(lambda: bool(world.lines("started.jsonl")), "the worker has started")
        time.sleep(random.Random(self.seed).uniform(0, 0.6))
        process.signal(signal.SIGKILL)
        assert process.wait() == SIGKILLED
        before = world.facts()
        racers = [world.process("work", until_quiet=True) for _ in range(2)]
        assert [racer.wait() for racer in racers] == [0, 0], world.logs()
        facts = settled(world, before)
        assert len(facts.runs) == RUNS
        assert {run.run.status for run in facts.runs.values()} == {RunStatus.COMPLETED}, facts.about


@pytest.mark.req("QA-04", "RR-13", "RR-43", "C56", "C58", "C66")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [KillAtAnyInstant(store, seed) for store in STORES for seed in range(SEEDS)], ids=str)
def test_a_kill_at_any_instant_repeats_no_effect_and_loses_no_run(case: KillAtAnyInstant, player: Player) -> None:
    player(case).result()


@dataclass(frozen=True, slots=True)
class KillBeforeFirstCheckpoint:
    """A process dies at one of ten points between the request and the first checkpoint, with twenty requests coming in."""

    store: str
    point: str

    def __str__(self) -> str:
        return f"{self.store}-{self.point}"

    def play(self, new_world: NewWorld) -> None:
        world = new_world(self.store, f"accepted-{self}")
        nth = 9 if self.point.startswith("submit") else 5
        assert world.work(crash_at=f"{self.point}:{nth}", start=starts("small")) == SIGKILLED, world.logs()
        before = world.facts()
        answered = {line["key"]: line["run"] for line in before.answered}
        assert len(answered) == (nth - 1 if self.point.startswith("submit") else RUNS)
        assert answered.items() <= {r.run.key: r.run.id for r in before.runs.values()}.items(), "what was answered is there"
        world.recover(start=starts("small"))
        facts = settled(world, before)
        assert len(facts.runs) == RUNS, "the same key again made no second run"
        assert all(answered.get(line["key"], line["run"]) == line["run"] for line in facts.answered)


@pytest.mark.req("C57", "RR-15", "QA-04")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", [KillBeforeFirstCheckpoint(store, point) for store in STORES for point in BEFORE_FIRST_CHECKPOINT], ids=str
)
def test_every_answered_creation_is_found_after_a_kill(case: KillBeforeFirstCheckpoint, player: Player) -> None:
    player(case).result()


# -- frozen ----------------------------------------------------------------------------------------------------------------


def freeze(world: World, process: Process) -> None:
    """Stop a process where it is, but not in the middle of a commit: SQLite's write lock would be frozen with it."""
    process.signal(signal.SIGSTOP)
    while world.url.startswith("sqlite:") and not can_write(world):
        process.signal(signal.SIGCONT)
        time.sleep(0.005)
        process.signal(signal.SIGSTOP)


def can_write(world: World) -> bool:
    connection = sqlite3.connect(world.url.removeprefix("sqlite:///"), timeout=0.05, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.req("RR-05", "RR-06", "RR-07", "C64")
def test_a_frozen_worker_wakes_to_find_every_write_refused(world: World) -> None:
    """It holds a result in hand while a successor of the same name takes over and finishes."""
    zombie = world.process("work", start=starts("gated", 1))
    world.until(lambda: len(world.lines("effects.jsonl")) == 1, "the call is in flight")
    freeze(world, zombie)
    successor = world.process("work")
    world.until(lambda: len(world.lines("effects.jsonl")) == 2, "the successor makes the call again, under the same key")
    (world.directory / "gate").touch()
    world.until(lambda: all(run.run.is_terminal for run in world.facts().runs.values()), "the run has ended")
    before = world.facts()
    zombie.signal(signal.SIGCONT)
    world.until(lambda: any(line["pid"] == zombie.pid for line in world.lines("through.jsonl")), "the zombie has its result")
    for process in (zombie, successor):
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, world.logs()
    after = world.facts()
    check_always(after)
    (was,), (run,) = before.runs.values(), after.runs.values()
    assert replace(run, evidence=[]) == replace(was, evidence=[]), "nothing that the zombie wrote is there"
    assert run.run.status is RunStatus.COMPLETED
    assert len({line["key"] for line in after.effects if line["tool"] == "gate"}) == 1
    assert sum(line["tool"] == "order" for line in after.effects) == 1
    ends = {line["pid"]: line["ends"] for line in world.lines("closed.jsonl")}
    assert ends == {zombie.pid: {"expired": 1}, successor.pid: {"ended": 1}}


# -- replaced --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("C67", "RR-13", "RR-43")
def test_a_rolling_restart_hands_back_and_repeats_nothing(world: World) -> None:
    old = world.process("work", start=starts("steady", 10))
    world.until(lambda: len({line["run"] for line in world.lines("effects.jsonl")}) == 10, "all runs are under way")
    new = world.process("work", until_quiet=True)
    old.signal(signal.SIGTERM)
    assert (old.wait(), new.wait()) == (0, 0), world.logs()
    facts = world.facts()
    check_always(facts)
    check_rest(facts, allow_unknown=False)
    assert {run.run.status for run in facts.runs.values()} == {RunStatus.COMPLETED}
    dwelt = Counter((line["run"], line["number"]) for line in facts.steps)
    assert set(dwelt.values()) == {1}, "no step was begun and thrown away"
    assert Counter(line["run"] for line in facts.effects) == dict.fromkeys(facts.runs, 5)
    ends = {line["pid"]: line["ends"] for line in world.lines("closed.jsonl")}
    assert ends[old.pid] == {"released": 10}


# -- crowded ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("C87", "RR-43")
def test_two_workers_and_fifty_cancels_share_one_file(new_world: NewWorld) -> None:
    """And somebody holds the file's write lock now and then: no command is lost, no step repeated, no error seen."""
    world = new_world("sqlite", "crowd")
    workers = [world.process("work", start=starts("steady")), world.process("work")]
    world.until(lambda: len(world.lines("answered.jsonl")) == RUNS, "all runs are submitted")
    runs = [line["run"] for line in world.lines("answered.jsonl")]
    doomed = runs[: RUNS // 2]
    canceller = world.process("cancel", runs=doomed * 5)
    for _ in range(3):
        hold_the_file(world, 0.2)
    assert canceller.wait() == 0, world.logs()
    world.until(lambda: all(run.run.is_terminal for run in world.facts().runs.values()), "all runs have ended")
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0], world.logs()
    facts = world.facts()
    check_always(facts)
    assert "Traceback" not in world.logs()
    assert len(world.lines("cancelled.jsonl")) == 5 * len(doomed)
    for run_id, run in facts.runs.items():
        assert run.occurrence is not None
        cancelled = any(o["verdict"] == "accepted" for o in world.lines("cancelled.jsonl") if o["run"] == run_id)
        assert run.run.status is (RunStatus.CANCELLED if cancelled else RunStatus.COMPLETED)
        assert (
            cancelled
            or run_id not in doomed
            or all(o["verdict"] == "already_terminal" for o in world.lines("cancelled.jsonl") if o["run"] == run_id)
        )
    assert set(Counter((line["run"], line["number"]) for line in facts.steps).values()) == {1}


def hold_the_file(world: World, seconds: float) -> None:
    connection = sqlite3.connect(world.url.removeprefix("sqlite:///"), timeout=5, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    finally:
        connection.close()


# -- cut off ---------------------------------------------------------------------------------------------------------------


def connections(server: str, world: World) -> Iterator[int]:
    """End every connection of a world, and yield how many there were, as often as asked."""
    name = world.url.partition("application_name=")[2]
    with psycopg.connect(server, autocommit=True) as connection:
        while True:
            row = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s", [name]
            ).fetchone()
            yield int(row[0]) if row else 0


@pytest.mark.req("C88")
def test_a_step_survives_the_loss_of_every_connection(new_world: NewWorld, postgres_server: str) -> None:
    world = new_world("postgres", "cut-off")
    worker = world.process("work", start=starts("patient", 3))
    world.until(lambda: len(world.lines("steps.jsonl")) == 3, "the steps are under way")
    ended = connections(postgres_server, world)
    assert sum(next(ended) for _ in range(5)) > 0
    (world.directory / "gate").touch()
    next(ended)
    world.until(lambda: all(run.run.is_terminal for run in world.facts().runs.values()), "the runs have ended")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, world.logs()
    facts = world.facts()
    check_always(facts)
    check_rest(facts, allow_unknown=False)
    assert {run.run.status for run in facts.runs.values()} == {RunStatus.COMPLETED}, facts.about
    assert len(facts.steps) == 3, "no step was repeated"
    assert [len(run.attempts) for run in facts.runs.values()] == [1, 1, 1]
    once = [o for run in facts.runs.values() for o in run.operations if o.policy is EffectPolicy.ONCE]
    assert [facts.effects_of(operation) for operation in once] == [1, 1, 1]
