"""The processes of the crash tests: what one of them does, and a parent that forks them quickly.

`python -m tests.crash.driver` imports everything once and then reads jobs, one JSON object a line. Each job becomes a
process of its own by `fork`: real pids, real signals, no shared state, and no 0.4 s of imports. Deaths are reported as
they happen, with the code that `waitpid` gave.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import quiesce.stores.postgres.store
import quiesce.stores.sqlite.store  # noqa: F401 - imported before the fork, so that no child has to
from quiesce.bootstrap import make_environment
from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.budgets import Budget
from quiesce.domain.errors import Refused
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import Position, RunId
from quiesce.domain.streams import Visibility
from quiesce.runtime.codec import encode
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.registry import Registry
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker
from tests.crash import builtin, channel, schedules
from tests.crash.agents import AGENTS, DIRECTORY, append
from tests.crash.rest import PATIENCE_S, until_quiet

SETTINGS: Final = Settings(
    lease_ms=1000,
    beat_ms=250,
    poll_ms=40,
    sweep_ms=100,
    linger_ms=30,
    grace_ms=300,
    drain_ms=400,
    shutdown_ms=1000,
    concurrency=50,
    command_lease_ms=1000,
    defer_ms=20,
    defer_ms_max=200,
)
LIMITS: Final = {"tool_calls": 60, "tokens": 1000}

Job = Mapping[str, Any]


class CountingPoints(CrashPoints):
    """Counts arrivals instead of dying."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        self.arrivals[name] += 1


# -- what a process does ---------------------------------------------------------------------------------------------------


async def submit(service: ControlService, job: Job) -> None:
    """Submit the job's runs; what was answered is written down durably, as a caller would know it."""
    for wanted in job.get("start", ()):
        run = await service.submit(
            Submission(
                agent=wanted["agent"],
                input=encode({"args": wanted.get("args", ["why?"]), "kwargs": {}}, field="input"),
                bindings=b'{"authority":"tests"}',
                key=wanted["key"],
                deadline_at=wanted.get("deadline_at"),
                budget=Budget.of_limits(LIMITS),
                visibility=Visibility(wanted.get("visibility", "store_first")),
            )
        )
        append("answered.jsonl", {"key": wanted["key"], "run": run.id})


async def work(env: Environment, service: ControlService, job: Job) -> int:
    """Advance runs until told to stop, or until nothing moves any more if the job says so."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    worker = RunWorker(env, Registry(AGENTS), name=job.get("name", "twin"))
    await submit(service, job)
    await worker.start()
    append("started.jsonl", {"worker": worker.id})
    code = 0
    if job.get("until_quiet"):
        code = await until_quiet(service, stop)
    else:
        await stop.wait()
    await worker.close()
    append("closed.jsonl", {"ends": {str(end): n for end, n in worker.state.ends.items()}})
    return code


async def cancel(_: Environment, service: ControlService, job: Job) -> int:
    """Cancel runs, one after the other; with `wait`, then wait for every boundary."""
    for run_id in job["runs"]:
        admission = await service.cancel(RunId(run_id), reason="enough", key=f"stop:{run_id}")
        append("cancelled.jsonl", {"run": run_id, "verdict": str(admission.verdict)})
    for run_id in job["runs"] if job.get("wait", True) else ():
        receipt = await service.wait(RunId(run_id), timeout_ms=PATIENCE_S * 1000)
        append("receipts.jsonl", {"run": run_id, "receipt": receipt.id})
    return 0


async def decide(_: Environment, service: ControlService, job: Job) -> int:
    """Record what became of unknown effects; who asks twice is refused the second time, which is fine.

    Each operation may bring a verdict and a result of its own.
    """
    for run_id, position, *found in job["operations"]:
        verdict, result = found or (job.get("verdict", "happened"), "decided")
        decision = Decision(
            run_id=RunId(run_id),
            position=Position(position),
            verdict=Verdict(verdict),
            actor=Actor(kind=ActorKind.USER, name="ana"),
            grounds="asked the shop",
            result=result,
        )
        try:
            await service.reconcile(decision)
        except Refused as refusal:
            append("refused.jsonl", {"operation": position, "code": refusal.code})
    return 0


async def answer(_: Environment, service: ControlService, job: Job) -> int:
    """Answer a question; who comes second is refused, which is fine."""
    try:
        await service.answer(job["question"], job["value"], actor="ana")
    except Refused as refusal:
        append("refused.jsonl", {"question": job["question"], "code": refusal.code})
    return 0


COMMANDS: Final = {
    "work": work,
    "cancel": cancel,
    "decide": decide,
    "answer": answer,
    **builtin.COMMANDS,
    **channel.COMMANDS,
    **schedules.COMMANDS,
}


async def perform(job: Job) -> int:
    """Do one job in this process; return the exit code."""
    env = await make_environment(job["url"], artifacts=Path(os.environ[DIRECTORY]) / "artifacts", settings=SETTINGS)
    counting = CountingPoints()
    if job.get("counts"):
        env = replace(env, crash=counting)
    code = await COMMANDS[job["do"]](env, ControlService(env), job)
    await env.store.close()
    if job.get("counts"):
        append("arrivals.jsonl", {"arrivals": dict(counting.arrivals)})
    return code


# -- the parent ------------------------------------------------------------------------------------------------------------


def become(job: Job) -> NoReturn:
    """Be the process of a job, in a fresh fork; never return."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(job["env"])
        code = asyncio.run(perform(job))
    except BaseException:  # noqa: BLE001 - the boundary of a process: what happened goes into its log
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def reap() -> None:
    """Report the processes that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def say(row: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Fork a process for each job read, until the input ends."""
    ears, mouth = os.pipe()
    os.set_blocking(mouth, False)
    os.set_blocking(ears, False)
    signal.set_wakeup_fd(mouth)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(ears, selectors.EVENT_READ)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fd == ears:
                os.read(ears, 4096)
                reap()
                continue
            data = os.read(0, 65536)
            if not data:
                return
            *jobs, pending = (pending + data).split(b"\n")
            for text in jobs:
                job = json.loads(text)
                pid = os.fork()
                if pid == 0:
                    become(job)
                say({"started": pid, "job": job["id"]})


if __name__ == "__main__":
    serve()
