"""How the built-in cases declare themselves: bound to the case's name, with checked parameters."""

from __future__ import annotations

from quiesce.domain.errors import InvalidInput
from quiesce.runtime.registry import Agent, Function, declare_agent


def bound(fn: Function, name: str, **bindings: str) -> Agent:
    """Declare an agent of a case. What it is bound to says that it is a case, so nothing else is taken for it."""
    return declare_agent(fn, name=name, bindings={"case": name, **bindings})


def whole(field: str, value: int, low: int, high: int) -> int:
    """Return `value`, or raise `InvalidInput` unless it lies between the bounds."""
    if not low <= value <= high:
        raise InvalidInput(field=field, value=value, rule=f"must be {low} to {high}")
    return value
