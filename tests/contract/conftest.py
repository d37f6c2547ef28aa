"""Fixtures of the contract tests: every store, opened empty."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.ports.store import Store
from quiesce.testing.clock import ManualClock
from quiesce.testing.conformance import StoreUnderTest

STORES = ("memory", "sqlite", "postgres")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn what the suite says that its tests prove into this project's marker."""
    for item in items:
        ids = getattr(getattr(item, "function", None), "proves", ())
        if ids:
            item.add_marker(pytest.mark.req(*ids))


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else "memory://"


@pytest.fixture
def store(url: str) -> Iterator[StoreUnderTest]:
    """The store under test."""

    async def opened(clock: ManualClock) -> Store:
        return await asyncio.to_thread(open_store, url, clock=clock)

    with StoreUnderTest(opened) as under_test:
        yield under_test
