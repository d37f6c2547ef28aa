"""Crash points: a name for each side of each durable boundary, where a test makes the process die.

`QUIESCE_CRASH_AT=name[:n]` makes the n-th arrival at a point end the process with SIGKILL: no clean-up, no flush, as when
the machine takes it. Without that variable `reach` compares one attribute and returns. A test in the process gives a plan
of its own instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quiesce.domain.errors import InvalidInput

POINTS: Final[Mapping[str, str]] = {
    "submit.before": "a run is about to be stored; nothing is",
    "submit.after": "the run is stored; the caller has no answer yet",
    "claim.after": "a worker holds the run; nothing has been executed",
    "step.before": "a step's code has run; its result is not stored",
    "step.after": "a step's result is stored; the agent has not been given it",
    "dispatch.before": "a call is decided; neither sealed nor dispatched",
    "dispatch.after": "the dispatch mark is stored; the tool has not been called",
    "effect.after": "the tool has answered; its result is not stored",
    "result.after": "the result is stored; the agent has not been given it",
    "retry.after": "a failed try and its due time are stored; the back-off has not begun",
    "emit.before": "an event has its number; it is not stored",
    "emit.after": "events are stored",
    "checkpoint.before": "a checkpoint is about to be stored",
    "checkpoint.after": "the checkpoint is stored",
    "artifact.before": "the file is written; its receipt is not stored",
    "artifact.after": "the artifact receipt is stored",
    "spawn.before": "a child is about to be submitted",
    "spawn.after": "the child is stored; the parent's code has no handle yet",
    "intake.before": "a wake or a correction is there; the run's code has not taken it",
    "intake.after": "it is taken and journaled; the agent has not been given it",
    "ask.before": "a question is about to be stored; nobody can see it",
    "ask.after": "the question is stored with its operation; the run has not begun to wait",
    "answer.after": "an answer is stored and the run woken; who answered has not been told",
    "park.before": "every branch waits; the run is still held",
    "park.after": "the run waits and holds no process",
    "cancel.before": "a cancel is about to be admitted",
    "cancel.inside": "inside the transaction of C and X, before its commit",
    "cancel.after": "C and X are stored: the run settles; nothing is frozen",
    "freeze.after": "F is stored: the frontier is frozen; no outcome is established",
    "outcome.after": "P is stored; no receipt is published",
    "publish.inside": "inside the transaction of T, before its commit",
    "publish.after": "T is published; nobody has been told",
    "end.before": "the agent has returned or raised; nothing of its end is stored",
    "end.inside": "inside the transaction that ends the run, before its commit",
    "end.after": "the run has ended; nobody has been told",
    "release.after": "the run is handed back",
    "stage.before": "a command is about to be staged; nothing is",
    "stage.after": "the intent is stored; its producer has no answer yet",
    "relay.inside": "inside the transaction that relays intents, before its commit",
    "relay.after": "intents are relayed; nobody has claimed them",
    "delivery.claiming": "inside the transaction that claims, closes or quarantines commands, before its commit",
    "delivery.claimed": "commands are claimed; no receipt has been read",
    "delivery.read": "an owner's receipt has been read; nothing follows from it yet",
    "delivery.acting": "inside the transaction that stores what follows from a reading, before its commit",
    "delivery.acted": "a delivery is settled, put off, unknown or closed after a reading",
    "delivery.started": "the mark that an admission begins is stored; the owner has not been asked",
    "admission.inside": "inside a local owner's transaction, effect and receipt written, before its commit",
    "delivery.admitted": "the owner has answered; the delivery is not settled",
    "delivery.settled": "the delivery is settled from the owner's answer",
    "reconcile.after": "a decision about an unknown effect is stored",
}
"""Every crash point, and what is stored when the process dies there."""


class CrashPoints:
    """Arrivals at crash points. Inert unless made with a plan."""

    __slots__ = ("_die", "_left", "_name")

    def __init__(self, name: str = "", nth: int = 1, die: Callable[[str], None] | None = None) -> None:
        self._name = name
        self._left = nth
        self._die = die

    def reach(self, name: str) -> None:
        """Die here if the plan says so; otherwise do nothing."""
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0 and self._die is not None:
            self._die(name)


def parse_plan(text: str, die: Callable[[str], None]) -> CrashPoints:
    """Make crash points from `name[:n]`. Raises `InvalidInput` for an unknown name or a count below 1."""
    if not text:
        return CrashPoints()
    name, _, count = text.partition(":")
    if name not in POINTS:
        raise InvalidInput(field="QUIESCE_CRASH_AT", value=name, rule="is not a crash point; see `quiesce crash-points`")
    if count and (not count.isdigit() or int(count) < 1):
        raise InvalidInput(field="QUIESCE_CRASH_AT", value=text, rule="takes a count of 1 or more behind the colon")
    return CrashPoints(name, int(count or 1), die)
