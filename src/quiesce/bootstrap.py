"""Puts concrete pieces together: the one module that names stores and adapters."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from quiesce.adapters.artifact_directory import ArtifactDirectory
from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.adapters.process_tools import ProcessTools
from quiesce.domain.errors import InvalidInput, StoreError
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.ports.clock import Clock
from quiesce.ports.store import Store
from quiesce.runtime.crashpoints import parse_plan
from quiesce.runtime.environment import Environment, Settings

_RULE: Final = "must begin with sqlite:///, postgresql:// or memory://"


def open_store(url: str, *, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None) -> Store:
    """Open the store that a URL names, creating it or bringing its schema up to date. Blocks for as long as that takes.

    `sqlite:///file.db` (`sqlite:////absolute/file.db`), `postgresql://...`, `memory://`; see the settings of each store
    for what a query string may say. `clock` replaces the store's own clock. Raises `InvalidInput` that names the field,
    `NotAStore`, `SchemaTooNew`, `StoreReadOnly`, `StoreBusy`, `StoreUnavailable`, or `StoreError` if the driver of the
    store is not installed.
    """
    scheme, mark, _ = url.partition("://")
    match scheme if mark else "":
        case "memory":
            from quiesce.stores.memory.store import MemoryStore

            return MemoryStore(clock or SystemClock(), limits=limits)
        case "sqlite":
            from quiesce.stores.sqlite import SqliteSettings, SqliteStore

            return SqliteStore(SqliteSettings.from_url(url), limits=limits, clock=clock)
        case "postgresql" | "postgres":
            return _open_postgres(url, limits=limits, clock=clock)
        case _:
            raise InvalidInput(field="url", value=url, rule=_RULE)


async def make_environment(
    url: str, *, artifacts: Path | None = None, settings: Settings | None = None, limits: Limits = DEFAULT_LIMITS
) -> Environment:
    """Open the store and make the environment of a real process: system clock and entropy, isolated tools, crash points.

    `QUIESCE_CRASH_AT=name[:n]` in the process environment arms a crash point (see `runtime.crashpoints`). Raises what
    `open_store` raises.
    """
    crash = parse_plan(os.environ.get("QUIESCE_CRASH_AT", ""), _die)
    store = await asyncio.to_thread(open_store, url, limits=limits)
    return Environment(
        store=store,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        limits=limits,
        settings=settings or Settings(),
        crash=crash,
        tool_process=ProcessTools(),
        artifacts=None if artifacts is None else ArtifactDirectory(artifacts),
    )


def _die(_: str) -> None:
    """End this process as a power cut would: nothing is flushed, nobody is told."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _open_postgres(url: str, *, limits: Limits, clock: Clock | None) -> Store:
    try:
        import psycopg  # noqa: F401 - asked for here, so that its absence can be told from a fault of our own
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'quiesce[postgres]'", missing=error.name) from error
    from quiesce.stores.postgres import PostgresSettings, PostgresStore

    return PostgresStore(PostgresSettings.from_url(url), limits=limits, clock=clock)
