"""Every built-in case dies at every crash point that it gets to, by SIGKILL, and another process brings it to its end.

Nobody lists which points a case gets to: one run is left in peace first and notes its arrivals, and then a run of its own
dies at the first and at the last arrival at each. Three ways lead to different points: the case goes its way to its end;
it is cancelled in the midst of it; its worker is told to stop in the midst of it.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pytest

from quiesce.cases import CASES
from quiesce.runtime.crashpoints import POINTS
from tests.crash.builtin_stage import TRIES, Stage, check_cancelled, check_completed, unknown_of
from tests.crash.conftest import STORES, NewWorld, Player
from tests.crash.world import Process

ELSEWHERE: Final = {
    "stage.": "no case sends a command",
    "relay.": "no case sends a command",
    "delivery.": "no case sends a command",
    "admission.": "no case sends a command",
    "intake.": "no case asks for a wake or a correction",
}
"""Crash points that no built-in case can get to, by how they begin, and why; `test_channel` and `test_run_owner` play them."""

GATES: Final = ("park.after", "effect.after", "step.before", "emit.after")
"""Where a run is when it is cancelled: at the first arrival at the first of these that its case gets to."""
STOPS: Final = ("dispatch.after", "emit.after", "step.before", "claim.after")
"""Where a run is when its worker is told to stop: at the first of these behind which it is handed back."""
SETTLING: Final = ("freeze.", "outcome.", "publish.")
"""How the points of a settlement begin."""
AT_ONCE: Final = 12
"""Groups played at once: they wait more than others."""


# -- the ways --------------------------------------------------------------------------------------------------------------


def go_its_way(stage: Stage) -> None:
    """The process that plays a run dies; what is unknown then is found out at the destination."""

    def die(crash_at: str, key: str) -> bool:
        return stage.has_died(stage.start(key, crash_at=crash_at))

    assert {"submit.before", "claim.after", "end.inside"} <= stage.arrivals.keys()
    stage.kill(stage.arrivals, die)
    before = stage.facts()
    stage.go_on()
    check_completed(stage, before, stage.facts())


def be_cancelled(stage: Stage) -> None:
    """A run is cancelled in the midst of it; the process that plays it dies as it settles, or the one that cancels dies."""
    by_holder, by_canceller = cancel_in_peace(stage)
    assert {"cancel.before", "cancel.inside", "cancel.after"} <= by_canceller.keys()
    assert {"freeze.after", "outcome.after", "publish.inside", "publish.after"} <= by_holder.keys() | by_canceller.keys()
    stage.kill(by_holder, lambda at, key: cancel(stage, f"holder-{key}", holder_at=at).has_died)
    stage.kill(by_canceller, lambda at, key: cancel(stage, f"canceller-{key}", canceller_at=at).has_died)


def be_handed_back(stage: Stage) -> None:
    """The process that plays a run is told to stop in the midst of it, and dies as it hands the run back.

    Which is quicker, the stop or the end of a short run, is left open: a run that has ended is checked like any other.
    """
    gate, released = stop_in_peace(stage)
    for nth in sorted({1, released} - {0}):
        stage.dies("release.after", nth, lambda at, key: stage.has_died(stop(stage, key, gate, crash_at=at)))
    before = stage.facts()
    stage.go_on()
    check_completed(stage, before, stage.facts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What one cancel came to: the process that cancelled, if the run got to its gate, and whether any process died."""

    canceller: Process | None
    has_died: bool


def cancel(stage: Stage, key: str, *, holder_at: str = "", canceller_at: str = "") -> Cancelled:
    """Cancel a run that stands at its gate, have others finish that, and check what came of it."""
    holder = stage.start(key, gate=stage.first_of(GATES), crash_at=holder_at)
    is_at_gate = stage.is_at_gate(key, holder)
    run_id = stage.run_of(key)
    if not is_at_gate:
        assert not stage.has_died(holder)
        assert stage.world.process("cancel", runs=[run_id]).wait() == 0, stage.world.logs()
        return Cancelled(canceller=None, has_died=False)
    canceller = stage.world.process("cancel", runs=[run_id], wait=False, crash_at=canceller_at, counts=not canceller_at)
    died = stage.has_died(canceller)
    if died:
        assert stage.world.process("cancel", runs=[run_id], wait=False).wait() == 0, stage.world.logs()
    stage.open_gate(key)
    died |= stage.has_died(holder)
    before = after = stage.facts()
    if any(not each.run.is_terminal for each in before.runs.values()):
        stage.go_on()
        after = stage.facts()
    check_cancelled(stage, before, after, run_id)
    return Cancelled(canceller=canceller, has_died=died)


def cancel_in_peace(stage: Stage) -> tuple[Counter[str], Counter[str]]:
    """Return the arrivals, behind the cancel, of the process that plays a run, and those of the process that cancels it.

    Of the former, those of a settlement: whether others come depends on how quick the run is to notice the cancel.
    """
    for number in range(TRIES):
        key = f"cancelled-{number}"
        canceller = cancel(stage, key).canceller
        if canceller is not None:
            rows = [row["arrivals"] for row in stage.world.lines("arrivals.jsonl") if row["pid"] == canceller.pid]
            by_holder = {point: n for point, n in stage.counted(key).items() if point.startswith(SETTLING)}
            return Counter(by_holder), Counter(rows[-1])
    pytest.fail(f"{stage.case} never gets to {stage.first_of(GATES)}")


def stop(stage: Stage, key: str, gate: str, *, crash_at: str = "") -> Process:
    """Tell the process of a run that stands at its gate to stop."""
    holder = stage.start(key, gate=gate, crash_at=crash_at)
    if stage.is_at_gate(key, holder):
        holder.signal(signal.SIGTERM)
    stage.open_gate(key)
    return holder


def stop_in_peace(stage: Stage) -> tuple[str, int]:
    """Return the gate behind which a run is handed back, and how often: its tree may be handed back run by run."""
    for gate in (each for each in STOPS if each in stage.arrivals):
        key = f"stopped-{gate}"
        assert not stage.has_died(stop(stage, key, gate))
        if released := stage.counted(key)["release.after"]:
            return gate, released
    return "", 0


WAYS: Final[Mapping[str, Callable[[Stage], None]]] = {
    "goes-its-way": go_its_way,
    "is-cancelled": be_cancelled,
    "is-handed-back": be_handed_back,
}


# -- tests -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All deaths of one case on one way, over one store."""

    name: str
    way: str
    store: str

    def __str__(self) -> str:
        return f"{self.store}-{self.name}-{self.way}"

    def play(self, new_world: NewWorld) -> None:
        WAYS[self.way](Stage(new_world(self.store, str(self)), self.name))


def survey(stage: Stage) -> set[str]:
    """Return the points that a case gets to on any way."""
    by_holder, by_canceller = cancel_in_peace(stage)
    _, released = stop_in_peace(stage)
    points = {*stage.arrivals, *by_holder, *by_canceller, *(["release.after"] if released else [])}
    if "effect.after" in points:
        stage.dies("effect.after", 1, lambda at, key: stage.has_died(stage.start(key, crash_at=at)))
        stage.go_on()
        asked = unknown_of(stage.facts())
        stage.world.process("decide", counts=True, operations=[(e.run.id, position) for e, position in asked]).wait()
        points |= stage.world.lines("arrivals.jsonl")[-1]["arrivals"].keys()
    return points


GROUPS: Final = [Group(name=name, way=way, store=store) for store in STORES for name in CASES for way in WAYS]


@pytest.mark.req("RR-09", "RR-10", "RR-11", "RR-12", "RR-13", "RR-37", "RR-38", "QA-04", "TR-43", "TR-58", "TR-59")
@pytest.mark.req("C56", "C57", "C58", "C59")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_a_case_that_dies_at_any_point_has_its_effects_once_or_unknown(case: Group, player: Player) -> None:
    player(case).result()


@pytest.mark.req("QA-04")
@pytest.mark.timeout(300)
def test_the_cases_get_to_every_crash_point_but_those_that_are_named_here(new_world: NewWorld) -> None:
    """Both ways: a new point needs a case or a reason, and a reason that no longer holds is found out."""
    stages = [Stage(new_world("sqlite", f"survey-{name}"), name) for name in CASES]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        reached = set[str]().union(*threads.map(survey, stages))
    assert reached == {point for point in POINTS if not point.startswith(tuple(ELSEWHERE))}
