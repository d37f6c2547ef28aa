"""What one seed is made of: which operations, commands and faults exist in it at all, and how often they come.

Swarm configuration: a seed switches whole kinds off, so that some worlds see one kind alone, undisturbed by the others,
and some see all. Everything is drawn from the seed, before the world begins, and printed first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final, TypeVar

from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.runtime.environment import Settings
from quiesce.testing.faults import Fault

T = TypeVar("T")

SETTINGS: Final = Settings(
    lease_ms=2_000,
    beat_ms=450,
    poll_ms=230,
    sweep_ms=470,
    linger_ms=30,
    grace_ms=400,
    drain_ms=300,
    shutdown_ms=300,
    concurrency=8,
)


class Deed(StrEnum):
    """What the agents of a world may do."""

    STEP = "step"
    FLAKY = "flaky"
    """A step that fails some times, and is tried again."""
    NESTED = "nested"
    """A step with operations inside."""
    STUBBORN = "stubborn"
    """A step that ignores its interruption for a while."""
    SPEND = "spend"
    """A step that reserves units."""
    EMIT = "emit"
    TALK = "talk"
    """A step that emits."""
    CHECKPOINT = "checkpoint"
    PURE = "pure"
    IDEMPOTENT = "idempotent"
    PROBE = "probe"
    ONCE = "once"
    GATHER = "gather"
    """Operations side by side."""
    CHILD = "child"
    SLEEP = "sleep"
    LONG_SLEEP = "long_sleep"
    RAISE = "raise"
    """An error of the agent's own code."""


class Wish(StrEnum):
    """What the clients of a world may ask."""

    AGAIN = "again"
    """The same submission under the same key; sometimes with other content."""
    CANCEL = "cancel"
    CANCEL_SOFTLY = "cancel_softly"
    CANCEL_ALONE = "cancel_alone"
    CANCEL_AGAIN = "cancel_again"
    """The same cancel key; and others on top."""
    RECONCILE = "reconcile"
    WAIT = "wait"
    THREADS = "threads"
    """Several runs on few threads."""
    DEADLINES = "deadlines"
    BUDGETS = "budgets"


class Trouble(StrEnum):
    """What befalls processes, apart from what their store does to them."""

    KILL = "kill"
    CLOSE = "close"
    """An orderly shutdown, and a restart."""
    FREEZE = "freeze"
    CRASH_POINT = "crash_point"
    """Death at one of the runtime's named boundaries."""
    SKEW = "skew"
    """Clocks that are wrong from the beginning."""


class Whim(StrEnum):
    """How the world outside may fail its callers."""

    REFUSES = "refuses"
    """An error before anything happened."""
    LOSES_ANSWER = "loses_answer"
    LOSES_REQUEST = "loses_request"
    IS_SLOW = "is_slow"
    CANNOT_TELL = "cannot_tell"
    """A probe gets no answer that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One world. Times in milliseconds of virtual time."""

    seed: int
    hosts: int
    clients: int
    readers: int
    busy_ms: int
    """How long there are clients and faults; then liveness is asked for."""
    runs_max: int
    acts_max: int
    deeds: tuple[Deed, ...]
    wishes: tuple[Wish, ...]
    troubles: tuple[Trouble, ...]
    whims: tuple[Whim, ...]
    faults: tuple[Fault, ...]
    strike_probability: float
    trouble_every_ms: int
    latency_ms: int
    """How long the way to the store takes at most, and the way back."""
    hot: float
    """How often a client goes for the newest run rather than for any."""
    resolves_all: bool
    """Whether every unknown effect is decided in the end, or left parked."""
    settings: Settings
    limits: Limits

    @classmethod
    def draw(cls, seed: int) -> Config:
        """Make the configuration of a seed."""
        rng = random.Random(f"configuration {seed}")  # noqa: S311 - repeatable on purpose
        deeds = _some(rng, Deed, 0.6)
        speaking = (Deed.STEP, Deed.EMIT, Deed.ONCE, Deed.TALK, Deed.PROBE)
        return cls(
            seed=seed,
            hosts=rng.randint(2, 4),
            clients=rng.randint(1, 3),
            readers=rng.choice((0, 1, 2, 3)),
            busy_ms=rng.choice((2_000, 4_000, 7_000)),
            runs_max=rng.randint(1, 8),
            acts_max=rng.randint(2, 6),
            deeds=deeds or (rng.choice(speaking),),
            wishes=_some(rng, Wish, 0.6),
            troubles=_some(rng, Trouble, 0.45),
            whims=_some(rng, Whim, 0.45),
            faults=_some(rng, Fault, 0.4),
            strike_probability=rng.choice((0.003, 0.01, 0.03)),
            trouble_every_ms=rng.choice((400, 1_000, 2_500)),
            latency_ms=rng.choice((0, 0, 4, 40)),
            hot=rng.choice((0.2, 0.8)),
            resolves_all=rng.random() < 0.6,
            settings=replace(SETTINGS, concurrency=rng.choice((1, 2, 8)), grace_ms=rng.choice((100, 400))),
            limits=_limits(rng),
        )

    def __str__(self) -> str:
        """Say everything, one thing a line."""
        lines = [f"{f.name}: {_shown(getattr(self, f.name))}" for f in fields(self) if f.name not in ("settings", "limits")]
        changed = [f.name for f in fields(Limits) if getattr(self.limits, f.name) != getattr(DEFAULT_LIMITS, f.name)]
        lines += [f"limits.{name}: {getattr(self.limits, name)}" for name in changed]
        lines += [f"settings.{f.name}: {getattr(self.settings, f.name)}" for f in fields(Settings)]
        return "\n".join(lines)


def _limits(rng: random.Random) -> Limits:
    """Draw small limits, whose edges a small world gets to."""
    return replace(
        DEFAULT_LIMITS,
        events_buffered_max=rng.choice((2, 64)),
        events_page_max=rng.choice((2, 5, 500)),
        reserve_block=rng.choice((1, 3, 16)),
        claim_batch_max=rng.choice((1, 3, 32)),
        sweep_batch_max=rng.choice((1, 3, 200)),
        attempts_max=rng.choice((3, 1000, 1000)),
    )


def _some(rng: random.Random, kinds: type[T], probability: float) -> tuple[T, ...]:
    members: Sequence[T] = list(kinds)  # type: ignore[call-overload]
    return tuple(member for member in members if rng.random() < probability)


def _shown(value: object) -> str:
    return ", ".join(str(v) for v in value) or "none" if isinstance(value, tuple) else str(value)
