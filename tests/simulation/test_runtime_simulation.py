"""The runtime in simulated worlds: nothing breaks in any of them, and what can happen does happen in some."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from quiesce.testing.sim.__main__ import main
from quiesce.testing.sim.config import Config, Deed, Trouble, Whim, Wish
from quiesce.testing.sim.watch import Watch
from quiesce.testing.sim.world import simulate

CI_SEEDS: Final = 300

KEPT: Final = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]

MUST_HAPPEN: Final = (
    # operations, by policy and position
    *(f"call {policy} {status}" for policy in ("idempotent", "probe", "once") for status in ("consumed", "unknown")),
    *("call pure consumed", "step consumed", "child consumed", "timer consumed", "checkpoint consumed"),
    *("step tried again", "call tried again", "over budget"),
    # what becomes of runs
    *("run completed", "run cancelled", "run failed", "never started", "taken over", "released", "lease lost"),
    *("settled by holder", "settled by recovery", "escalated", "clean-up not completed", "chained receipt"),
    *("unresolved at T", "unconsumed at T", "frontier bounded", "attempt parked", "attempt expired"),
    *(f"parked: {kind}" for kind in ("timer", "child", "unknown")),
    *(f"reason {reason}" for reason in ("finished", "user_cancel", "parent_cancel", "deadline", "tool_error", "agent_error")),
    *(f"gap {kind}" for kind in ("none", "recoverable", "part_lost")),
    *(f"{v} {d} completed" for v in ("store_first", "show_first") for d in ("sync", "async", "exit")),
    # streams
    *(f"event: {kind}" for kind in ("data", "superseded", "gap", "status")),
    *("reader resumed", "seen before it was stored"),
    # commands
    *("key repeated", "key conflict", "THREAD_BUSY", "CONTINUATION_REFUSED"),
    *(f"cancel {verdict}" for verdict in ("accepted", "already_accepted", "already_terminal")),
    *(f"decided: {verdict}" for verdict in ("happened", "did_not_happen", "give_up", "cannot_tell")),
    *("evidence probe happened", "evidence probe did_not_happen", "evidence late_proposal happened"),
    # faults
    *(f"trouble: {kind}" for kind in ("kill", "close", "freeze")),
    *(f"fault: {kind}" for kind in ("crash_before_commit", "crash_after_commit", "pause", "store_busy")),
    *(f"fault: {kind}" for kind in ("store_unavailable_after_commit", "lost_bell", "late_bell", "clock_step")),
)


@pytest.mark.timeout(300)
@pytest.mark.req("RR-04", "RR-09", "RR-13", "RR-19", "RR-29", "RR-31", "ST-01", "ST-13", "TR-58", "TR-59", "TR-64", "C56")
def test_nothing_breaks_and_everything_happens() -> None:
    marks: Counter[str] = Counter()
    for seed in range(CI_SEEDS):
        marks.update(simulate(seed).marks)
    assert [name for name in MUST_HAPPEN if not marks[name]] == []


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_broke_something_breaks_nothing(seed: int) -> None:
    simulate(seed)


def test_a_seed_is_one_world() -> None:
    for seed in range(20):
        first, second = simulate(seed), simulate(seed)
        assert (first.digest, first.marks) == (second.digest, second.marks)


def test_a_seed_is_the_same_world_in_every_process_and_under_trace() -> None:
    script = "from quiesce.testing.sim import simulate; print([simulate(s, say=len).digest for s in range(6)])"
    here = str([simulate(seed).digest for seed in range(6)])
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run([sys.executable, "-c", script], env=environment, check=True, stdout=subprocess.PIPE, text=True)
        assert there.stdout.strip() == here


def test_configurations_switch_whole_kinds_on_and_off() -> None:
    drawn = [Config.draw(seed) for seed in range(200)]
    for kinds, chosen in (
        (Deed, [c.deeds for c in drawn]),
        (Wish, [c.wishes for c in drawn]),
        (Trouble, [c.troubles for c in drawn]),
        (Whim, [c.whims for c in drawn]),
    ):
        for kind in kinds:
            times = sum(kind in some for some in chosen)
            assert 0 < times < len(drawn), kind


def test_the_command_replays_a_seed_and_says_how_it_began(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace", "--marks"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed: 3\nhosts: ")
    assert f"digest {simulate(3).digest}" in said
    assert "1 seeds, 0 failed" in said


def test_the_command_fails_with_the_line_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "_see_holder", lambda self, old, run, now: self.require(False, "planted"))
    assert main(["--seed", "0", "--count", "3"]) == 1
    assert "python -m quiesce.testing.sim --seed 0 --trace" in capsys.readouterr().out
