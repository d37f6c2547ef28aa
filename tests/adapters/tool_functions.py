"""Functions that the process-tool tests run in a child. Each is called by path and name."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from quiesce.domain.errors import OutcomeUnknown


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, *, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


class Namespace:
    @staticmethod
    def nested() -> str:
        return "nested"


def echo(value: object) -> object:
    return value


def leads_its_group(group_of_caller: int) -> bool:
    return os.getpid() == os.getpgrp() != group_of_caller


def print_much(count: int) -> str:
    for number in range(count):
        sys.stdout.write(f"noise {number}\n")
        sys.stderr.write(f"louder noise {number}\n")
    return "quiet"


def read_stdin() -> str:
    return sys.stdin.read()


def fail(message: str) -> None:
    sys.stdout.write("on my way down")
    raise ValueError(message)


def cannot_tell() -> None:
    raise OutcomeUnknown("timed out after sending")


def no_json() -> object:
    return object()


def kill_oneself() -> None:
    sys.stdout.write("last words")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status: int) -> None:
    sys.exit(status)


def leave_a_forked_child_and_die(pids: str) -> None:
    if (child := os.fork()) == 0:
        time.sleep(600)
    report(pids, child)
    os.kill(os.getpid(), signal.SIGKILL)


def answer_and_leave_a_child(pids: str) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report(pids, child.pid)
    return "answered"


def stubborn_family(pids: str) -> None:
    """A child and a grandchild that both ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    report(pids, os.getpid(), child.pid)
    time.sleep(600)


def hold_the_interpreter(pids: str) -> None:
    """Busy in a way that lets no other thread run for long."""
    report(pids, os.getpid())
    while True:
        pass


def tidy(begun: str, done: str) -> None:
    try:
        report(begun, os.getpid())
        time.sleep(600)
    finally:
        Path(done).write_text("tidied")


async def tidy_later(begun: str, done: str) -> None:
    try:
        report(begun, os.getpid())
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        Path(done).write_text("tidied")  # noqa: ASYNC240


def report(path: str, *pids: int) -> None:
    """Write the ids for the test, all at once."""
    partial = Path(path + ".partial")
    partial.write_text(" ".join(map(str, pids)))
    partial.rename(path)
