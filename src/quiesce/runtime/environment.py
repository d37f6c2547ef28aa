"""What every actor of the runtime is given: store, clock, entropy, limits, settings and crash points; and nothing global.

Two runtimes in one process (tests, the simulator) therefore never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiesce.domain.ids import uuid7
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.ports.artifacts import ArtifactFiles
from quiesce.ports.clock import Clock, Entropy
from quiesce.ports.executor import ToolProcess
from quiesce.ports.store import Store
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.live import LiveStreams


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times of the runtime, in milliseconds. The defaults are documented in `docs/cancellation.md`."""

    lease_ms: int = 10_000
    """How long a dead holder's runs stay its own."""
    beat_ms: int = 2_500
    """Interval of renewals; well below a third of the lease."""
    poll_ms: int = 250
    """The net under every doorbell: no wake-up is later than this. The documented stop latency of a lost bell."""
    sweep_ms: int = 1_000
    """Interval of rescue, overdue deadlines and unfinished settlements."""
    linger_ms: int = 50
    """How long a run whose branches all wait keeps its process before it parks."""
    grace_ms: int = 2_000
    """How long a cancel waits for what cannot be interrupted, unless the cancel says otherwise."""
    drain_ms: int = 2_000
    """How long after the grace the holder may still store evidence, before others finish the settlement."""
    shutdown_ms: int = 5_000
    """How long a stopping worker lets operations in flight finish before it hands their runs back."""
    deliveries: int = 64
    """Commands that one worker delivers at once."""
    command_lease_ms: int = 10_000
    """How long a claim of a command lasts; a worker that still delivers it extends it."""
    defer_ms: int = 250
    """First wait before an owner's receipt is read again; it doubles with every failure in a row."""
    defer_ms_max: int = 60_000
    """The longest such wait."""
    concurrency: int = 100
    """Runs that one worker advances at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The world of one runtime."""

    store: Store
    clock: Clock
    entropy: Entropy
    limits: Limits = DEFAULT_LIMITS
    settings: Settings = field(default_factory=Settings)
    crash: CrashPoints = field(default_factory=CrashPoints)
    live: LiveStreams = field(default_factory=LiveStreams)
    tool_process: ToolProcess | None = None
    artifacts: ArtifactFiles | None = None

    def new_id(self, now: Instant | None = None, *, after: str | None = None) -> str:
        """Make a UUIDv7, greater than `after` if that is given."""
        return uuid7(self.clock.now() if now is None else now, self.entropy.token(10), after=after)
