"""Fixtures of the tests of staging: a store with a producer's table beside its own, and a producer on each kind of connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from tests.staging.kit import KINDS, Producer, World, make_orders, producing


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of connection in turn."""
    return str(request.param)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of a place for the store that this kind of connection belongs to."""
    return str(request.getfixturevalue(f"{KINDS[kind][0]}_url"))


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    """An open store there, with a table of orders beside it."""
    store = await asyncio.to_thread(open_store, url)
    await make_orders(url)
    yield World(store)
    await store.close()


@pytest.fixture
async def producer(world: World, kind: str, url: str) -> AsyncIterator[Producer]:
    """A producer on a connection of this kind; whatever it left open is rolled back."""
    async with producing(kind, url) as producer:
        yield producer
