"""Fixtures of the runtime tests: every store, opened empty, and a cluster of hosts over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.ports.store import Store
from quiesce.stores.postgres import PostgresSettings, PostgresStore
from tests.runtime.kit import Cluster

STORES = ("memory", "sqlite", "postgres")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else "memory://"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """The store under the runtime."""
    opened = await asyncio.to_thread(_open, url)
    yield opened
    await opened.close()


def _open(url: str) -> Store:
    """Open a store; one on PostgreSQL with a listener that notices within 50 ms that it is being closed."""
    if url.startswith("postgresql"):
        return PostgresStore(replace(PostgresSettings.from_url(url), ping_ms=50))
    return open_store(url)


@pytest.fixture
async def cluster(store: Store) -> AsyncIterator[Cluster]:
    """Hosts over the store, closed with the test."""
    hosts = Cluster(store)
    yield hosts
    await hosts.close()
