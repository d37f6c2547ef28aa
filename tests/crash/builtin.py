"""What the processes of the built-in cases' crash tests do: play one case as `quiesce start` does, or go on with all of them.

A process that plays a case drives that one run's tree and claims nothing else, so many may die over the same store, each
of its own run. It notes how often it gets to each crash point; at a gate it stops, in the midst of the run, until a file
lets it go on: so a cancel or a signal comes at a known place, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from quiesce.adapters.models.scripted import ScriptedModel, Turn
from quiesce.cases import agents_of, registry, reports
from quiesce.cases.destination import Destination
from quiesce.cli.driving import Ending, Stop, drive
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import Refused
from quiesce.domain.ids import RunId
from quiesce.runtime.codec import encode
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.environment import Environment
from quiesce.runtime.registry import Registry
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker
from tests.crash.agents import append, directory
from tests.crash.rest import PATIENCE_S, until_quiet

INPUTS: Final[Mapping[str, Mapping[str, object]]] = {
    "slow-stream": {"tokens": 16, "delay_ms": 5, "every": 4},
    "thread-tool": {"block_ms": 20},
    "process-tool": {"block_ms": 20},
    "retrying": {"delay_ms": 1},
    "family": {"ticks": 1, "delay_ms": 40},
    "sleeper": {"seconds": 0.3},
}
"""What makes slow cases quick; any other case is played as it is."""

LEASE_MS: Final = 2000
"""Of who plays a case: a busy machine is not to take a run from the process that is to die with it."""

Job = Mapping[str, Any]


class Arrivals(CrashPoints):
    """Counts arrivals, and passes them on to a plan. What comes before the gate has opened is neither counted nor passed on."""

    def __init__(self, plan: CrashPoints, *, key: str, gate: str) -> None:
        super().__init__()
        self._plan = plan
        self._key = key
        self._gate = gate
        self._is_open = not gate
        self.counted: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        if self._is_open:
            self.counted[name] += 1
            self._plan.reach(name)
        elif name == self._gate:
            self._gate = ""
            append("gates.jsonl", {"key": self._key})
            until = time.monotonic() + PATIENCE_S  # whoever is to open it may have died
            while not gate_file(self._key).exists():
                assert time.monotonic() < until, f"nobody opens the gate of {self._key}"
                time.sleep(0.005)  # the loop stands still meanwhile; the lease is kept by a thread
            self._is_open = True


def gate_file(key: str) -> Path:
    """Return the file that opens the gate of a run."""
    return directory() / f"open-{key}"


@contextmanager
def stand_in() -> Iterator[None]:
    """Have a script in the place of the model whose weights take an extra: the case's own code is played all the same."""
    model = ScriptedModel("stand-in", [Turn(text="A lighthouse stood where the land ends.")], token_delay_ms=3)
    with patch.object(reports, "LocalSmolLM", lambda: model):
        yield


async def submit(service: ControlService, destination: Destination, case: str, key: str) -> RunId:
    """Submit a run of a case under a key, and write durably down that it was answered; return its id."""
    agent = agents_of(case, destination)[0]
    wanted = Submission(
        agent=agent.name,
        input=encode({"args": [], "kwargs": dict(INPUTS.get(case, {}))}, field="input"),
        bindings=canonical(dict(agent.bindings), field="bindings"),
        key=key,
    )
    run = await service.submit(wanted)
    append("answered.jsonl", {"key": key, "run": run.id})
    return run.id


async def play(env: Environment, _: ControlService, job: Job) -> int:
    """Play one run of a case to its end, or until a signal makes this process hand it back."""
    arrivals = Arrivals(env.crash, key=job["key"], gate=job.get("gate", ""))
    env = replace(env, crash=arrivals, settings=replace(env.settings, lease_ms=LEASE_MS))
    destination = Destination(directory() / "artifacts")
    stop = Stop()
    async with asyncio.timeout(PATIENCE_S):
        with stop.listening(), stand_in():
            service = ControlService(env)
            run_id = await submit(service, destination, job["case"], job["key"])
            known = Registry(agents_of(job["case"], destination))
            while await drive(env, known, run_id, stop, patience_ms=60_000, may_follow=True) is Ending.PARKED:
                if not await say_yes(service):
                    break
    append("arrivals.jsonl", {"key": job["key"], "arrivals": dict(arrivals.counted)})
    return 0


async def say_yes(service: ControlService) -> bool:
    """Be the person who is asked: answer what is open; return whether there was anything."""
    asked = await service.questions()
    for question in asked:
        with suppress(Refused):  # somebody else, or the end of the run, was quicker
            await service.answer(question.id, value=True)
    return bool(asked)


async def go_on(env: Environment, service: ControlService, job: Job) -> int:
    """Ask again for every run of the case, by its key, and advance whatever is there until nothing moves."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    destination = Destination(directory() / "artifacts")
    with stand_in():
        for key in job["keys"]:
            await submit(service, destination, job["case"], key)
        worker = RunWorker(env, registry(destination), name="successor")
        await worker.start()
        code = await until_quiet(service, stop)
        while code == 0 and await say_yes(service):
            code = await until_quiet(service, stop)
        await worker.close()
    return code


COMMANDS: Final = {"play": play, "go on": go_on}
