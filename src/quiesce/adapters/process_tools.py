"""Runs tool calls in child processes that a cancel can really end.

Keeps one promise: when `run` returns or raises, nothing of the child's process group is alive. The child leads a group of
its own, all signals go to the group, and what a tool leaves running when it has answered is killed too (what must outlive
its call has to start a session of its own). See `process_child` for the other side.

asyncio's `Process` is not used: its `wait` also waits for the pipes to end, which a forked grandchild can hold open.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Final, cast

from quiesce.adapters.process_child import FRAME, RAISED, RETURNED
from quiesce.domain.errors import OutcomeUnknown, QuiesceError, ToolFailed

_OUTPUT_BYTES_MAX: Final = 4096
"""How much of what a tool prints is kept for the error message: its end."""
_POLL_MS: Final = 5
_LINGER_MS: Final = 500
"""How long a killed group may take to be gone and its pipes to end. Only what has escaped the group takes longer."""


class ProcessTools:
    """Implements `ports.executor.ToolProcess` on POSIX systems."""

    async def run(self, target: str, payload: bytes, *, grace_ms: int) -> bytes:
        """Call `target` in a child process; see the port for outcomes."""
        child = await _Child.start()
        try:
            answer = await child.converse(target, payload)
            await child.end(grace_ms)
        except asyncio.CancelledError:
            await child.stop(grace_ms)
            raise
        finally:
            child.close()
        if answer is None:
            raise OutcomeUnknown(
                f"the process of {target} {child.death} before it answered; its effect may have happened",
                target=target,
                death=child.death,
                output=child.output,
            )
        if answer[:1] != RETURNED:
            raise _error(target, answer, child.output)
        return answer[1:]


class _Child(asyncio.SubprocessProtocol):
    """One child process with its pipes."""

    def __init__(self) -> None:
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._output = b""
        self._transport: asyncio.SubprocessTransport
        self._answers = asyncio.StreamReader()
        self._answer_pipe: asyncio.BaseTransport | None = None
        self._group = 0

    @classmethod
    async def start(cls) -> _Child:
        """Start an interpreter that waits for its call. It imports from where this one does."""
        loop = asyncio.get_running_loop()
        child = cls()
        read_fd, write_fd = os.pipe()
        try:
            child._answer_pipe, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(child._answers), os.fdopen(read_fd, "rb", buffering=0)
            )
            await loop.subprocess_exec(
                lambda: child,
                *(sys.executable, "-P", "-m", "quiesce.adapters.process_child", str(write_fd)),
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(write_fd,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except BaseException:
            child._close_answer_pipe()
            raise
        finally:
            os.close(write_fd)
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. The child leads its group, so the group has its number."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._group = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:  # noqa: ARG002 - one pipe carries all output
        """Keep the end of what the tool prints."""
        if isinstance(data, bytes):
            self._output = (self._output + data)[-_OUTPUT_BYTES_MAX:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        """Note that nothing more will be printed."""
        if fd == 1:
            self._silent.set()

    def process_exited(self) -> None:
        """Note the exit, however long others hold the pipes."""
        self._exited.set()

    async def converse(self, target: str, payload: bytes) -> bytes | None:
        """Hand over the call and return the answer; None if the process ended without one."""
        stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        for frame in (target.encode(), payload):
            stdin.write(FRAME.pack(len(frame)) + frame)
        answer = asyncio.create_task(self._read_answer())
        exited = asyncio.create_task(self._exited.wait())
        try:
            await asyncio.wait({answer, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                # A forked grandchild may hold the answer pipe open: with its death the pipe ends.
                self._signal(signal.SIGKILL)
                await asyncio.wait({answer}, timeout=_LINGER_MS / 1000)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()
            exited.cancel()

    async def stop(self, grace_ms: int) -> None:
        """Ask the group to stop and see it end, whatever happens meanwhile; a cancel ends the grace."""
        stopping = asyncio.create_task(self._stop(grace_ms))
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                self._signal(signal.SIGKILL)

    async def end(self, grace_ms: int) -> None:
        """See the process exit by itself within the grace, then kill what is left of its group and reap it."""
        await _within(grace_ms, self._exited)
        self._signal(signal.SIGKILL)
        await _within(_LINGER_MS, self._exited)
        await self._gone(_LINGER_MS)
        await _within(_LINGER_MS, self._silent)

    def close(self) -> None:
        """Release the pipes; kill what another way out than `end` or `stop` has left."""
        if not self._exited.is_set():
            self._signal(signal.SIGKILL)
        self._close_answer_pipe()
        self._transport.close()

    @property
    def death(self) -> str:
        """How the process ended, in words."""
        code = self._transport.get_returncode()
        if code is None:
            return "did not end"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    @property
    def output(self) -> str:
        """The end of what the tool printed."""
        return self._output.decode("utf-8", "replace")

    async def _stop(self, grace_ms: int) -> None:
        try:
            self._signal(signal.SIGTERM)
            await self._gone(grace_ms)
        finally:
            await self.end(0)

    async def _gone(self, within_ms: int) -> None:
        """Wait until nothing of the group lives. There is no event for it: its members are not all our children."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_ms / 1000
        while self._signal(0) and _has_living_members(self._group) and loop.time() < deadline:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_POLL_MS / 1000)

    def _signal(self, number: int) -> bool:
        """Send a signal to the group (0: none) and return whether there still is one.

        The group outlives its leader as long as it has members, and its number is not given to another meanwhile.
        """
        try:
            os.killpg(self._group, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _close_answer_pipe(self) -> None:
        if self._answer_pipe is not None:
            self._answer_pipe.close()

    async def _read_answer(self) -> bytes | None:
        try:
            size: int = FRAME.unpack(await self._answers.readexactly(FRAME.size))[0]
            return await self._answers.readexactly(size)
        except asyncio.IncompleteReadError:
            return None


async def _within(limit_ms: int, event: asyncio.Event) -> None:
    if event.is_set():
        return
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=limit_ms / 1000)
    finally:
        waiting.cancel()


def _has_living_members(group: int) -> bool:
    """Return whether a group that exists holds more than the dead that nobody has reaped (as far as /proc tells).

    Orphans are reaped by the first process of the system, which in many containers does not do it.
    """
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    return not stats or any(_is_living_member(stat, group) for stat in stats)


def _is_living_member(stat: Path, group: int) -> bool:
    try:
        state, _, member_of = stat.read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(member_of) == group and state not in {"Z", "X"}


def _error(target: str, answer: bytes, output: str) -> QuiesceError:
    described: dict[str, str] = json.loads(answer[1:])
    kind = ToolFailed if answer[:1] == RAISED else OutcomeUnknown
    message = f"{target}: {described['type']}: {described['message']}"
    return kind(message, target=target, error_type=described["type"], output=output)
