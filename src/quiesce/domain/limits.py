"""Every limit of the product, in one place, each with the reason for its size.

A `Limits` value is handed to whoever enforces one; nothing else in the code has a bound of its own. Reaching a limit is
always a typed error or a typed outcome that names the limit, never a silent cut.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what comes from outside and on the work of one sweep. Sizes in bytes, durations in milliseconds."""

    payload_bytes_max: int = 4 * 1024 * 1024
    """One input, argument list, result, event or checkpoint in canonical JSON. Larger things are artifacts."""
    payload_depth_max: int = 100
    """Nesting of one payload; far below where a recursive reader of any language gives up."""
    key_chars_max: int = 512
    """An idempotency key."""
    text_chars_max: int = 4096
    """A cancel reason, an actor, evidence of a decision."""
    name_chars_max: int = 200
    """Names of agents, tools, channels, units."""
    events_buffered_max: int = 1024
    """Events of one run that wait for their commit; `emit` then waits."""
    events_page_max: int = 500
    """Events that one read of a reader fetches."""
    reserve_block: int = 256
    """Numbers that a show-first stream reserves at a time; the bound of what a death leaves inexact."""
    operations_max: int = 100_000
    """Journaled operations of one run; beyond it replay would take longer than the lease."""
    claim_batch_max: int = 32
    """Runs that one claim transaction takes."""
    sweep_batch_max: int = 200
    """Rows that one pass of a rescuer or timekeeper touches."""
    tree_runs_max: int = 10_000
    """Runs that one cancel of a tree may reach."""
    write_batch_max: int = 512
    """Writes that one group commit takes."""
    tries_max: int = 50
    """Tries of one operation, whatever its retry policy says."""
    attempts_max: int = 1000
    """Attempts of one run; a run that kills its process each time ends `failed` (`process_lost`) when they are used up."""


DEFAULT_LIMITS = Limits()
