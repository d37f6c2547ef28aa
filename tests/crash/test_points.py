"""A process dies at every crash point there is, by SIGKILL, and other processes finish what it left.

Each scenario is played once per point, arrival and store, by real processes over a real file or server. `again` means that
the first process to recover dies at the same point too. The scenarios wait a lot (for leases to run out), so all that
were selected are played side by side; each test then reports its own.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pytest

from quiesce.adapters.clock_system import SystemClock
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import EffectPolicy, OperationStatus
from quiesce.domain.runs import RunStatus
from quiesce.runtime.crashpoints import POINTS
from tests.crash.agents import WORDS
from tests.crash.conftest import STORES, NewWorld, Player
from tests.crash.world import (
    SIGKILLED,
    Facts,
    World,
    check_always,
    check_progress,
    check_rest,
    shown_words,
)

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One death: in which scenario, where, at which arrival, over which store."""

    scenario: str
    point: str
    nth: int
    store: str
    again: bool = False

    def __str__(self) -> str:
        return f"{self.store}-{self.scenario}-{self.point}:{self.nth}" + ("-again" if self.again else "")

    @property
    def crash_at(self) -> str:
        return f"{self.point}:{self.nth}"

    def play(self, new_world: NewWorld) -> None:
        SCENARIOS[self.scenario](new_world(self.store, str(self).replace(":", "-")), self)


# -- scenarios -------------------------------------------------------------------------------------------------------------


def play_everything(world: World, case: Case) -> None:
    """A run that passes every boundary by itself, advanced by a process that dies."""
    start = [{"agent": "everything", "key": "one", "deadline_at": after_ms(SystemClock().now(), HOUR_MS)}]
    assert world.work(crash_at=case.crash_at, start=start) == SIGKILLED, world.logs()
    facts = recovered(world, case, start=start)
    (run,) = facts.of("everything")
    assert run.run.status is RunStatus.COMPLETED, (run.receipt, facts.about)
    assert shown_words(run.events) == list(WORDS), facts.about + "".join(f"\n{e.to_json()}" for e in run.events)
    for each in facts.runs.values():
        for operation in each.operations:
            check_effects_of_whole(facts, operation.policy, facts.effects_of(operation))
    tries = Counter(line["step"] for line in facts.steps if line["run"] == run.run.id)
    assert 3 <= tries["stumble"] <= 4 + case.again, (
        f"the tries that were left, and those whose results were lost (C62)\n{run.attempts}\n{run.operations[1]}\n{facts.steps}"
    )
    if case.nth == 1 and case.point in ("dispatch.after", "effect.after"):
        assert [line["tool"] for line in facts.effects][:1] == ["look"]


def check_effects_of_whole(facts: Facts, policy: EffectPolicy, seen: int) -> None:
    if policy is EffectPolicy.PROBE:
        assert seen == 1, facts.about
    elif policy is EffectPolicy.ONCE:
        assert seen <= 1, facts.about


def play_showing(world: World, case: Case) -> None:
    """A stream that shows before it stores: what died with the process is accounted for, and nothing comes twice."""
    start = [{"agent": "everything", "key": "one", "visibility": "show_first"}]
    assert world.work(crash_at=case.crash_at, start=start) == SIGKILLED, world.logs()
    facts = recovered(world, case, start=start)
    (run,) = facts.of("everything")
    assert shown_words(run.events) == list(WORDS), facts.about + "".join(f"\n{e.to_json()}" for e in run.events)


def play_holder(world: World, case: Case) -> None:
    """A run and its child are cancelled; the process that holds them dies while it settles."""
    holder = world.process("work", crash_at=case.crash_at, start=[{"agent": "endless", "key": "one"}])
    await_endless(world)
    (endless,) = world.facts().of("endless")
    canceller = world.process("cancel", runs=[endless.run.id])
    assert holder.wait() == SIGKILLED, world.logs()
    assert canceller.wait() == 0, world.logs()
    check_cancelled(recovered(world, case))


def play_caller(world: World, case: Case) -> None:
    """The process that cancels dies; the holder lives and obeys what was stored, or goes on as if nothing had been."""
    holder = world.process("work", start=[{"agent": "endless", "key": "one"}])
    await_endless(world)
    before = world.facts()
    (endless,) = before.of("endless")
    assert world.process("cancel", crash_at=case.crash_at, runs=[endless.run.id]).wait() == SIGKILLED, world.logs()
    between = world.facts()
    assert (between.runs[endless.run.id].occurrence is not None) == (case.point == "cancel.after")
    assert world.process("cancel", runs=[endless.run.id]).wait() == 0, world.logs()
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0, world.logs()
    facts = world.facts()
    check_progress(before, facts)
    check_cancelled(recovered(world, case))


def play_orphans(world: World, case: Case) -> None:
    """Runs that nobody holds are cancelled; the canceller settles them itself and dies at it."""
    starts = [{"agent": "steady", "key": key} for key in ("one", "two")]
    assert world.process("work", crash_at="claim.after", start=starts).wait() == SIGKILLED, world.logs()
    runs = [r.run.id for r in world.facts().runs.values()]
    assert world.process("cancel", crash_at=case.crash_at, runs=runs).wait() == SIGKILLED, world.logs()
    before = world.facts()
    check_always(before)
    if case.again:
        code = world.process("cancel", crash_at=f"{case.point}:1", runs=runs).wait()
        assert code in (0, SIGKILLED), world.logs()
    assert world.process("cancel", runs=runs).wait() == 0, world.logs()
    check_progress(before, world.facts())
    facts = recovered(world, case)
    assert {r.run.status for r in facts.runs.values()} == {RunStatus.CANCELLED}
    assert not facts.effects


def play_handback(world: World, case: Case) -> None:
    """A worker is asked to stop and dies while it hands its runs back."""
    starts = [{"agent": "steady", "key": key} for key in ("one", "two", "three")]
    worker = world.process("work", crash_at=case.crash_at, start=starts)
    world.until(lambda: len({line["run"] for line in world.lines("effects.jsonl")}) == 3, "all runs are under way")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == SIGKILLED, world.logs()
    facts = recovered(world, case)
    assert {r.run.status for r in facts.runs.values()} == {RunStatus.COMPLETED}


def play_decision(world: World, case: Case) -> None:
    """Two effects are unknown; who records the decisions dies at it."""
    start = [{"agent": "doubtful", "key": "one"}]
    assert world.work(start=start) == 0, world.logs()
    before = world.facts()
    assert world.decide_unknowns(before, crash_at=case.crash_at) == SIGKILLED, world.logs()
    assert world.decide_unknowns(before) == 0, world.logs()
    facts = recovered(world, case)
    (run,) = facts.of("doubtful")
    assert run.run.status is RunStatus.COMPLETED
    assert [json.loads(o.result or b"null") for o in run.operations] == ["decided", "decided"]
    assert len(facts.effects) == 2
    assert sum(e.kind == "decision" for e in run.evidence) == 2, "a decision is recorded once"


def await_endless(world: World) -> None:
    """Wait until a run has an effect in flight and its child is at work."""
    world.until(lambda: any(line["tool"] == "linger" for line in world.lines("effects.jsonl")), "the effect is in flight")
    world.until(lambda: any(line["step"] == "stay" for line in world.lines("steps.jsonl")), "the child is at work")


def check_cancelled(facts: Facts) -> None:
    """Check the end of `endless`: cancelled with its child, and the effect in flight neither repeated nor forgotten."""
    (run,) = facts.of("endless")
    (child,) = facts.of("forever")
    assert (run.run.status, child.run.status) == (RunStatus.CANCELLED, RunStatus.CANCELLED), facts.about
    assert run.receipt is not None
    assert child.occurrence is not None
    assert run.occurrence is not None
    assert child.occurrence.origin_id == run.occurrence.id
    assert [o["name"] for o in run.receipt.unresolved] == ["linger"]
    assert run.receipt.policy.rule == "R2"
    assert Counter(line["tool"] for line in facts.effects) == {"order": 1, "linger": 1}


def recovered(world: World, case: Case, start: Sequence[object] = ()) -> Facts:
    """Have other processes finish; decide what is unknown; return the facts, which have been checked all the way."""
    seen = [checked(world)]
    if case.again:
        world.recover(crash_at=f"{case.point}:1", start=start)
        seen.append(checked(world))
    world.recover(start=start)
    seen.append(checked(world))
    check_rest(seen[-1], allow_unknown=True)
    for _ in range(6):
        if not any(r.run.status is RunStatus.WAITING for r in seen[-1].runs.values()):
            break
        check_unknown(seen)
        assert world.decide_unknowns(seen[-1]) == 0, world.logs()
        world.recover(start=start)
        seen.append(checked(world))
    for before, after in pairwise(seen):
        if not awaits_decision(before):
            check_progress(before, after)
    check_rest(seen[-1], allow_unknown=False)
    world.check_file()
    return seen[-1]


def checked(world: World) -> Facts:
    facts = world.facts()
    check_always(facts)
    return facts


def awaits_decision(facts: Facts) -> bool:
    """Whether a decision was recorded right after these facts, which may change what was unknown."""
    return any(r.run.status is RunStatus.WAITING and r.run.due_at is None for r in facts.runs.values())


def check_unknown(seen: list[Facts]) -> None:
    """Check that what is unknown now was dispatched by somebody who died, and was not answered (RR-12, RR-38)."""
    for each in seen[-1].runs.values():
        for operation in each.operations:
            if operation.status is OperationStatus.UNKNOWN:
                assert operation.policy is EffectPolicy.ONCE
                assert operation.result is None


SCENARIOS: Final[Mapping[str, Callable[[World, Case], None]]] = {
    "everything": play_everything,
    "showing": play_showing,
    "holder": play_holder,
    "caller": play_caller,
    "orphans": play_orphans,
    "handback": play_handback,
    "decision": play_decision,
}

ARRIVALS: Final[Mapping[str, Mapping[str, int]]] = {
    "everything": {
        "submit.before": 1,
        "submit.after": 1,
        "claim.after": 3,
        "step.before": 4,
        "step.after": 4,
        "retry.after": 2,
        "dispatch.before": 4,
        "dispatch.after": 10,
        "effect.after": 10,
        "result.after": 8,
        "emit.before": 4,
        "emit.after": 4,
        "checkpoint.before": 2,
        "checkpoint.after": 2,
        "artifact.before": 2,
        "artifact.after": 2,
        "spawn.before": 2,
        "spawn.after": 2,
        "park.before": 2,
        "park.after": 2,
        "end.before": 3,
        "end.inside": 3,
        "end.after": 3,
    },
    "showing": {"emit.before": 4, "emit.after": 4},
    "holder": {"freeze.after": 2, "outcome.after": 2, "publish.inside": 2, "publish.after": 2},
    "caller": {"cancel.before": 1, "cancel.inside": 1, "cancel.after": 1},
    "orphans": {
        "cancel.before": 2,
        "cancel.inside": 2,
        "cancel.after": 2,
        "freeze.after": 2,
        "outcome.after": 2,
        "publish.inside": 2,
        "publish.after": 2,
    },
    "handback": {"release.after": 2},
    "decision": {"reconcile.after": 2},
}
"""How often each scenario gets to each point, up to where another arrival would show nothing new."""

ELSEWHERE: Final = {
    "stage.": "test_channel",
    "relay.": "test_channel",
    "delivery.": "test_channel",
    "admission.": "test_channel",
    "intake.": "test_run_owner",
    "ask.": "test_builtin_cases",
    "answer.": "test_builtin_cases",
}
"""Points that another module of these tests plays, by how they begin."""

ON_POSTGRES_MAX: Final = 2
"""Arrivals played over PostgreSQL: the runtime is the same, only the boundary itself differs."""

AGAIN_ON_POSTGRES: Final = (
    "submit.after",
    "claim.after",
    "dispatch.after",
    "effect.after",
    "result.after",
    "park.after",
    "end.inside",
)


def all_cases() -> Iterator[Case]:
    for store in STORES:
        for scenario, points in ARRIVALS.items():
            for point, arrivals in points.items():
                for nth in range(1, (arrivals if store == "sqlite" else min(arrivals, ON_POSTGRES_MAX)) + 1):
                    yield Case(scenario=scenario, point=point, nth=nth, store=store)
                if scenario == "orphans" or (scenario == "everything" and (store == "sqlite" or point in AGAIN_ON_POSTGRES)):
                    yield Case(scenario=scenario, point=point, nth=1, store=store, again=True)


CASES: Final = tuple(all_cases())


@pytest.mark.req("RR-09", "RR-10", "RR-11", "RR-12", "RR-13", "RR-14", "RR-15", "RR-16", "RR-17", "RR-18", "RR-19")
@pytest.mark.req("RR-37", "RR-38", "RR-43", "QA-04", "TR-43", "TR-44", "TR-59", "ST-01", "ST-04", "ST-14")
@pytest.mark.req("C22", "C56", "C57", "C58", "C59", "C62")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_death_at_any_point_leaves_one_right_continuation(case: Case, player: Player) -> None:
    player(case).result()


@pytest.mark.req("QA-04")
@pytest.mark.parametrize("scenario", ["everything", "settling"])
def test_every_crash_point_is_reached_as_often_as_is_claimed(scenario: str, new_world: NewWorld) -> None:
    """Both ways: no point that no scenario gets to, and no scenario that claims an arrival which does not come."""
    world = new_world("sqlite", f"coverage-{scenario}")
    if scenario == "everything":
        assert world.work(start=[{"agent": "everything", "key": "one"}], counts=True) == 0
        expect_arrivals(world, "everything", "showing")
        return
    agents = ("endless", "patient", "patient", "doubtful")
    starts = [{"agent": name, "key": f"run-{number}"} for number, name in enumerate(agents)]
    holder = world.process("work", start=starts, counts=True)
    await_endless(world)
    world.until(lambda: sum(line["step"] == "ask" for line in world.lines("steps.jsonl")) == 2, "the steps are under way")
    world.until(lambda: sum(line["tool"] == "doubt" for line in world.lines("effects.jsonl")) == 2, "the doubts are there")
    (endless,) = world.facts().of("endless")
    assert world.process("cancel", runs=[endless.run.id], counts=True).wait() == 0
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    (handed_back, *_) = (run.run.id for run in world.facts().of("patient"))
    assert world.process("cancel", runs=[handed_back, handed_back], counts=True).wait() == 0
    world.process("decide", counts=True, operations=[(r.run.id, "1") for r in world.facts().of("doubtful")]).wait()
    world.process("decide", counts=True, operations=[(r.run.id, "2") for r in world.facts().of("doubtful")]).wait()
    expect_arrivals(world, "holder", "caller", "handback", "decision")
    here = {point for points in ARRIVALS.values() for point in points}
    assert here == {point for point in POINTS if not point.startswith(tuple(ELSEWHERE))}


def expect_arrivals(world: World, *scenarios: str) -> None:
    counted: Counter[str] = Counter()
    for line in world.lines("arrivals.jsonl"):
        counted.update(line["arrivals"])
    for scenario in scenarios:
        for point, arrivals in ARRIVALS[scenario].items():
            assert counted[point] >= arrivals, f"{scenario} gets to {point} {counted[point]} times"
            assert arrivals > 1 or counted[point] == 1 or scenario == "caller", f"{point} is reached more than once: play that"
