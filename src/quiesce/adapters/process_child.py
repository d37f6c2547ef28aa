"""The child's side of an isolated tool call: `python -P -m quiesce.adapters.process_child FD`.

Reads target and payload from stdin, calls the function, writes one answer to the pipe with number FD, and exits. The
answer has a pipe of its own, so that nothing that a tool prints can corrupt it; both pipes are out of the tool's reach.

Stdin stays open at the other end as long as the parent lives. A guardian, forked before the tool's code is loaded, waits
for its end and then kills the whole process group: so the death of the parent, even by SIGKILL, ends the tool and all that
it started, also while the tool holds the interpreter lock. (PR_SET_PDEATHSIG was rejected: it reaches one process only, is
tied to a thread of the parent, and exists on one system.)

SIGTERM is the parent's request to stop: it raises `SystemExit` in a plain function and cancels an async one, so that
`finally` blocks run. What remains after the grace is killed from outside.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import BinaryIO, Final

from quiesce.domain.canonical import canonical
from quiesce.domain.errors import OutcomeUnknown

FRAME: Final = struct.Struct(">Q")
"""Length of what follows, before every message in both directions."""

RETURNED: Final = b"R"
RAISED: Final = b"E"
UNKNOWN: Final = b"U"
"""First byte of an answer. After it: the result's JSON, or an object with `type` and `message`."""

STOPPED: Final = 128 + signal.SIGTERM
"""Exit status of a child that has obeyed a request to stop."""

_MESSAGE_CHARS_MAX: Final = 4096


def main() -> None:
    """Serve the one call."""
    answer_fd = int(sys.argv[1])
    os.set_inheritable(answer_fd, False)
    target = _read_frame(sys.stdin.buffer).decode()
    payload = _read_frame(sys.stdin.buffer)
    guardian = _fork_guardian(answer_fd)
    try:
        _take_stdin_away()
        signal.signal(signal.SIGTERM, _stop)
        answer = _answer(target, payload)
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(answer_fd, "wb") as pipe:
            pipe.write(FRAME.pack(len(answer)) + answer)
    finally:
        os.kill(guardian, signal.SIGKILL)
        os.waitpid(guardian, 0)


def _read_frame(stream: BinaryIO) -> bytes:
    """Return one message; exit if the parent has died before it was whole."""
    header = stream.read(FRAME.size)
    size = FRAME.unpack(header)[0] if len(header) == FRAME.size else 0
    body = stream.read(size)
    if len(header) < FRAME.size or len(body) < size:
        sys.exit(STOPPED)
    return body


def _fork_guardian(answer_fd: int) -> int:
    """Leave a process behind that kills the group when stdin ends. It holds none of the tool's pipes open."""
    guardian = os.fork()
    if guardian != 0:
        return guardian
    os.close(answer_fd)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
    os._exit(STOPPED)


def _take_stdin_away() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape of a signal handler
    sys.exit(STOPPED)


def _answer(target: str, payload: bytes) -> bytes:
    """Call the function and describe what came of it. What it raises is its answer, whatever it is."""
    try:
        function = _resolve(target)
        call = json.loads(payload)
        value = _call(function, call.get("args", []), call.get("kwargs", {}))
        return RETURNED + canonical(value, field="result")
    except OutcomeUnknown as error:
        return UNKNOWN + _described(error)
    except Exception as error:  # noqa: BLE001 - the boundary to foreign code; the parent raises a typed error from it
        return RAISED + _described(error)


def _described(error: Exception) -> bytes:
    message = str(error).encode("utf-8", "replace").decode()[:_MESSAGE_CHARS_MAX]
    return json.dumps({"type": type(error).__name__, "message": message}).encode()


def _resolve(target: str) -> Callable[..., object]:
    module, _, qualname = target.rpartition(":")
    found: object = _load_file(module) if module.endswith(".py") else importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{target} is not callable")
    return found


def _load_file(path: str) -> object:
    """Import a file by its path. It is registered like any module, which dataclasses in it rely on."""
    name = "__tool__"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _call(function: Callable[..., object], args: list[object], kwargs: dict[str, object]) -> object:
    value = function(*args, **kwargs)
    return asyncio.run(_cancellable(value)) if inspect.iscoroutine(value) else value


async def _cancellable(coroutine: Coroutine[object, object, object]) -> object:
    """Await the coroutine as a task that SIGTERM cancels."""
    task = asyncio.ensure_future(coroutine)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
