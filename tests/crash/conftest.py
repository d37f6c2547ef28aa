"""Fixtures of the crash tests: the forking parent, and worlds over SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.crash.world import Forker, World

STORES: Final = ("sqlite", "postgres")
AT_ONCE: Final = 8
NewWorld = Callable[[str, str], World]


class Case(Hashable, Protocol):
    """Something that may happen to a world, and what must have come of it: `play` raises if it has not."""

    def play(self, new_world: NewWorld) -> None: ...


Player = Callable[[Case], Future[None]]
_NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """The parent of all processes of this session."""
    parent = Forker()
    yield parent
    parent.close()


@pytest.fixture(scope="session")
def new_world(request: pytest.FixtureRequest, forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> NewWorld:
    """Makes empty worlds, from any thread: `new_world(store, name)`. Schemas go with their server."""

    def make(store: str, name: str) -> World:
        number = next(_NUMBERS)
        directory = base / f"{number:03}-{name}"
        if store == "sqlite":
            return World(forker, f"sqlite:///{directory / 'store.db'}", directory)
        mark = "&" if "?" in server else "?"
        return World(forker, f"{server}{mark}schema=crash_{number}&pool_size=4&application_name=crash_{number}", directory)

    base: Path = tmp_path_factory.mktemp("crash")
    server = str(request.getfixturevalue("postgres_server"))
    return make


@pytest.fixture(scope="module")
def player(request: pytest.FixtureRequest, new_world: NewWorld) -> Iterator[Player]:
    """Plays a module's selected cases side by side, since they mostly wait for leases, and hands out what came of each.

    A module may say with an `AT_ONCE` of its own how many.
    """
    found = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    selected: list[Case] = [each.params["case"] for each in found if each is not None and "case" in each.params]
    with ThreadPoolExecutor(getattr(request.module, "AT_ONCE", AT_ONCE)) as threads:
        played = {case: threads.submit(case.play, new_world) for case in selected}
        yield played.__getitem__
        for future in played.values():
            future.cancel()


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, new_world: NewWorld) -> World:
    """One empty world of each store."""
    return new_world(request.param, request.node.name.partition("[")[0])
