"""Fixtures of the channel's tests: a channel over every store, under a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.ports.store import Store
from quiesce.stores.postgres import PostgresSettings, PostgresStore
from quiesce.testing.clock import ManualClock
from tests.channel.kit import Channel

STORES = ("memory", "sqlite", "postgres")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else "memory://"


@pytest.fixture
async def channel(url: str) -> AsyncIterator[Channel]:
    """A channel over the store, closed with the test."""
    clock = ManualClock()
    store = await asyncio.to_thread(_open, url, clock)
    yield Channel(store, clock)
    await store.close()


def _open(url: str, clock: ManualClock) -> Store:
    if url.startswith("postgresql"):
        return PostgresStore(replace(PostgresSettings.from_url(url), ping_ms=50), clock=clock)
    return open_store(url, clock=clock)
