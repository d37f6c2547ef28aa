"""`python -m quiesce.testing.sim --seed N [--count K] [--trace]`: replay worlds, and say what came of them.

Prints seed and configuration first. Exits with 1 if something that must hold did not, with the line that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from quiesce.testing.sim.config import Config
from quiesce.testing.sim.world import Broken, simulate
from quiesce.testing.simloop import SimDeadlock, SimEndless


def main(arguments: list[str] | None = None) -> int:
    """Run the worlds asked for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m quiesce.testing.sim", description="Simulate the runtime under faults.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds (1)")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--marks", action="store_true", help="print what was seen to happen, and how often")
    asked = parser.parse_args(arguments)
    marks: Counter[str] = Counter()
    failed: list[int] = []
    steps = 0
    begun = time.perf_counter()
    for seed in range(asked.seed, asked.seed + asked.count):
        if asked.count == 1 or asked.trace:
            _print(str(Config.draw(seed)) + "\n")
        try:
            report = simulate(seed, say=_print if asked.trace else None)
        except (Broken, SimDeadlock, SimEndless) as error:
            failed.append(seed)
            _print(f"{error}\n  repeat it: python -m quiesce.testing.sim --seed {seed} --trace")
            continue
        marks.update(report.marks)
        steps += report.steps
        if asked.count == 1:
            _print(f"digest {report.digest}\n{report.runs} runs, {report.commits} commits, {report.elapsed_ms:.0f} ms")
    for name in sorted(marks) if asked.marks else ():
        _print(f"{marks[name]:8} {name}")
    elapsed_s = time.perf_counter() - begun
    _print(f"{asked.count} seeds, {len(failed)} failed, {steps} steps in {elapsed_s:.1f} s")
    return 1 if failed else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
