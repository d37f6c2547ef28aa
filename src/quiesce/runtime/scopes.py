"""Positions: where in its code a run stands, the same on every replay.

An operation takes the next number of its scope at the moment it is asked for, in program order, so parallel calls keep
their places whichever answers first. A step is a scope for what it does inside; so is a task that the agent's code starts
(`asyncio.create_task`, a `TaskGroup`), which takes its place with its first operation. Positions read like `3.1.2`.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from quiesce.domain.ids import Position


class Scope:
    """A numbered stretch of an agent's code, advanced by one task."""

    __slots__ = ("_next", "path", "task")

    def __init__(self, path: str, task: asyncio.Task[object] | None) -> None:
        self.path = path
        self.task = task
        self._next = 0

    def take(self) -> Position:
        """Take the next position of this scope."""
        self._next += 1
        return Position(f"{self.path}.{self._next}" if self.path else str(self._next))


_CURRENT: ContextVar[Scope] = ContextVar("quiesce_scope")


def enter(scope: Scope) -> None:
    """Make `scope` the current one of this task and of the tasks that it starts from now on."""
    _CURRENT.set(scope)


def current() -> Scope:
    """Return the scope of the calling task; a task without one becomes a scope within the scope it was started in."""
    scope = _CURRENT.get()
    task = asyncio.current_task()
    if scope.task is not task:
        scope = Scope(scope.take(), task)
        _CURRENT.set(scope)
    return scope
