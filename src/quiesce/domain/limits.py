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
    command_scope_bound: int = 10_000
    """Unfinished commands of a scope, unless its own bound says otherwise; what a worker delivers within minutes."""
    command_scope_reserve: int = 100
    """Places of a scope on top of its bound for commands that may overtake: a full scope still takes a cancel."""
    command_scopes_max: int = 64
    """Scopes from which one claim of commands takes; the next claim begins behind the last of them."""
    command_attempts_max: int = 20
    """Claims of one command; then it is held for a person. Readings of an unknown one are counted by themselves."""
    command_batch_max: int = 64
    """Intents that one relay, and commands that one claim transaction takes."""
    command_history_max: int = 500
    """Lines of a command's history that one read returns: the newest."""
    questions_page_max: int = 200
    """Questions that one read of the inbox returns; the next page begins behind the last of them."""
    mailbox_queued_max: int = 1000
    """Wakes and corrections of one run that nobody has taken; beyond it something sends and nobody reads."""
    corrections_batch_max: int = 32
    """Corrections that one safe boundary takes; with the next bound, they fit into one payload."""
    correction_chars_max: int = 16_384
    """One correction."""
    schedules_max: int = 4_000
    """Schedules of one tenant. Each holds at most two places of its scope: a timer that waits, one that is being settled."""
    catchup_max: int = 1_000
    """Runs that one timer may make for planned times that were missed: what one transaction stores within moments."""
    fire_grace_ms: int = 30_000
    """A planned time decided later than this was missed. Less than a minute: of several that are due, only the newest is not."""
    fires_counted_max: int = 10_000
    """Planned times that one timer counts, a week of minutes; of more, the newest, and the receipt says that there were more."""
    fires_named_max: int = 1_000
    """Planned times that one fire receipt names: the newest. It counts all of them."""
    thread_queue_max: int = 1_000
    """Runs queued in one thread; an interrupt cancels them all in one transaction."""
    history_turns_max: int = 200
    """Turns of a thread that one read of its history returns: the newest."""
    write_batch_max: int = 512
    """Writes that one group commit takes."""
    tries_max: int = 50
    """Tries of one operation, whatever its retry policy says."""
    attempts_max: int = 1000
    """Attempts of one run; a run that kills its process each time ends `failed` (`process_lost`) when they are used up."""


DEFAULT_LIMITS = Limits()
