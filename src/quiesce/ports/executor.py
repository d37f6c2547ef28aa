"""Tools in a process of their own: what a cancel can really end (C19). A thread cannot be killed; a process group can."""

from __future__ import annotations

from typing import Protocol


class ToolProcess(Protocol):
    """Runs one tool call in a child process with its own process group."""

    async def run(self, target: str, payload: bytes, *, grace_ms: int) -> bytes:
        """Call an importable function in a child and return its result as JSON bytes.

        `target` is `module:qualname`, or `/path/of/file.py:qualname`. `payload` is JSON: `{"args": [...], "kwargs":
        {...}}`, both optional; an `async def` is run to its end. When this returns or raises, nothing of the child's
        process group is left alive, however it ended.

        Raises `ToolFailed` if the function raised (a definite answer; `error_type` in the details), could not be found or
        returned no JSON value, and `OutcomeUnknown` if the function raised that, or if the process ended without an
        answer: the effect may have happened.

        When the awaiting task is cancelled, the group gets SIGTERM (the tool's `finally` blocks run), after at most
        `grace_ms` SIGKILL, and only then is `CancelledError` raised. A second cancel ends the grace at once. If this
        process itself dies, even by SIGKILL, the group dies too.
        """
