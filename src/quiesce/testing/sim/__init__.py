"""The whole runtime under seeded faults: several simulated processes over one shared store, on virtual time, from one number.

    report = simulate(22)           # raises `Broken`, which names the seed and what does not hold
    python -m quiesce.testing.sim --seed 22 --trace

Processes die, freeze, and lose answers; clients submit, cancel and decide; tools act on a world outside that keeps its own
record. `watch` judges every commit, `verdicts` the whole at the end. Not simulated, and so for other tests to find: threads
and child processes, files and fsync, SQL and its isolation, agents whose code differs from run to run.
"""

from quiesce.testing.sim.config import Config, Deed, Trouble, Whim, Wish
from quiesce.testing.sim.world import Broken, Report, simulate

__all__ = ["Broken", "Config", "Deed", "Report", "Trouble", "Whim", "Wish", "simulate"]
