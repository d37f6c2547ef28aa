"""The world outside the store, as the built-in cases see it: a directory with two logs that anybody can count.

`effects.log` gets exactly one line per effect that took place, written in one piece and synced before the effect counts
as done; `model.log` one line per request that a model received. Neither is read by the runtime: what they say is
evidence against it. A destination is made per session, so that two sessions in one process never meet.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quiesce.domain.errors import InvalidInput
from quiesce.ports.models import Model, ModelReply, ModelRequest, user_message
from quiesce.runtime.isolated import Call

EFFECTS_LOG: Final = "effects.log"
MODEL_LOG: Final = "model.log"
TRIES_LOG: Final = "tries.log"
_HOLD_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Hold:
    """How long a model's answer is kept back: while a file exists, or for some seconds."""

    file: Path | None = None
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Hold:
        """Read `QUIESCE_CASE_HOLD`: a number of seconds, or else the path of a file. Raises `InvalidInput`."""
        if not text:
            return cls()
        try:
            seconds = float(text)
        except ValueError:
            return cls(file=Path(text).absolute())
        if not 0 <= seconds <= 86_400:
            raise InvalidInput(field="QUIESCE_CASE_HOLD", value=text, rule="must be 0 to 86400 seconds, or a file's path")
        return cls(seconds=seconds)

    async def wait(self) -> None:
        """Return when the answer may leave."""
        await asyncio.sleep(self.seconds)
        while self.file is not None and self.file.exists():  # noqa: ASYNC110 - another process ends it, by removing the file
            await asyncio.sleep(_HOLD_POLL_S)


class Destination:
    """Where the cases' tools have their effects."""

    def __init__(self, directory: Path, hold: Hold | None = None) -> None:
        self.directory = directory
        self._hold = hold or Hold()

    # -- effects -------------------------------------------------------------------------------------------------------

    def act(self, call: Call) -> None:
        """Have one effect, whatever happened before: a second call is a second effect."""
        append_line(self.directory / EFFECTS_LOG, effect_line(call))

    def act_once_per_key(self, call: Call) -> bool:
        """Have the effect unless this key had it before; return whether it is new. Safe against other processes."""
        path = self.directory / EFFECTS_LOG
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if self.has_happened(call.key):
                return False
            _write(handle, effect_line(call))
            return True
        finally:
            os.close(handle)

    def has_happened(self, key: str) -> bool:
        """Return whether an effect under this key stands in the log."""
        return any(line.split(" ")[2:3] == [key] for line in read_lines(self.directory / EFFECTS_LOG))

    def count_try(self, run_id: str, name: str) -> int:
        """Note a try of something that is to fail a few times, and return how many this run has made. Survives restarts."""
        append_line(self.directory / TRIES_LOG, f"{run_id} {name} {os.getpid()}")
        return sum(line.split(" ")[:2] == [run_id, name] for line in read_lines(self.directory / TRIES_LOG))

    # -- models --------------------------------------------------------------------------------------------------------

    async def ask(self, model: Model, prompt: str, run_id: str, on_text: Callable[[str], Awaitable[None]]) -> ModelReply:
        """Ask a model once: the request is on record before anything else, and may be held there."""
        append_line(self.directory / MODEL_LOG, f"{run_id} {model.binding} {os.getpid()}")
        await self._hold.wait()
        return await model.complete(ModelRequest(messages=(user_message(prompt),), max_tokens=512), on_text)


def effect_line(call: Call) -> str:
    """Return the log's line about a call: run, operation, key, try, process."""
    return f"{call.run_id} {call.operation} {call.key} {call.try_number} {os.getpid()}"


def append_line(path: Path, line: str) -> None:
    """Append a line in one write, and return once it is on the device: lines of several processes never mix."""
    handle = _open(path)
    try:
        _write(handle, line)
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a log; none if nobody has written it."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _write(handle: int, line: str) -> None:
    os.write(handle, f"{line}\n".encode())
    os.fsync(handle)
