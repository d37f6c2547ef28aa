"""Runs `quiesce` as a person would: real processes, with a session directory and a clean environment of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WAIT_S: Final = 100.0
SHORT_LEASE: Final = {"QUIESCE_LEASE_MS": "1500", "QUIESCE_BEAT_MS": "300"}
"""For tests that wait for a dead holder's lease to run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return what stands on stdout."""
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        """Return the error object of a command with `--json`."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return found


class Running:
    """A command under way. Its output goes to files, so that nothing has to be read for it to go on."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out = out
        self._err = err

    def read_until(self, text: str, *, on_stderr: bool = False) -> str:
        """Return the output so far, once it holds `text`."""
        path = self._err if on_stderr else self._out
        until = time.monotonic() + WAIT_S
        while text not in (found := path.read_text()):
            if time.monotonic() > until or self.process.poll() is not None:
                raise AssertionError(f"{text!r} never came: {found!r}, stderr {self._err.read_text()!r}")
            time.sleep(0.01)
        return found

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> Done:
        """Wait for the end."""
        code = self.process.wait(timeout=WAIT_S)
        return Done(code=code, out=self._out.read_text(), err=self._err.read_text())


class Shell:
    """A working directory with a session in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.session = directory / "session"
        self._numbers = iter(range(1_000_000))

    @property
    def database(self) -> Path:
        """The session's file."""
        return self.session / "session.sqlite"

    def run(self, *arguments: str, **environment: str) -> Done:
        """Run a command to its end."""
        done = subprocess.run(
            self._command(arguments),
            cwd=self.directory,
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    @contextlib.contextmanager
    def begin(self, *arguments: str, **environment: str) -> Iterator[Running]:
        """Start a command; whatever is left of it ends with the block."""
        number = next(self._numbers)
        out, err = self.directory / f"out-{number}", self.directory / f"err-{number}"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                self._command(arguments),
                cwd=self.directory,
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
            )
        try:
            yield Running(process, out, err)
        finally:
            process.kill()
            process.wait()

    def effects(self, run_id: str) -> list[str]:
        """Return a run's lines in the effects log."""
        log = self.session / "artifacts" / "effects.log"
        return [line for line in log.read_text().splitlines() if line.startswith(run_id)] if log.exists() else []

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "quiesce", *arguments]

    def _environment(self, given: dict[str, str]) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("QUIESCE_") and k != "COLUMNS"}
        return {**ours, "QUIESCE_SESSION": str(self.session), **given}


def until(holds: Callable[[], bool]) -> None:
    """Return once something that other processes do has come about."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def first_line(text: str) -> str:
    """Return the run id that `start` says first."""
    return text.split()[1]
