"""Where a command works: a session directory or a store by URL, opened for the length of one command.

A reading verb opens only what exists, and leaves the bytes of a SQLite file as they are (RR-22): SQLite copies its log into
the file when the last connection closes, so a read-only connection of ours is the last to close.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from quiesce.bootstrap import make_environment
from quiesce.cases.destination import Destination, Hold
from quiesce.config import Config, load_config
from quiesce.domain.errors import InvalidInput, NotFound, StoreReadOnly
from quiesce.domain.ids import RunId, parse_run_id
from quiesce.runtime.environment import Environment
from quiesce.runtime.service import ControlService

DATABASE: Final = "session.sqlite"
ARTIFACTS: Final = "artifacts"
LAST: Final = "last"
_PAGE: Final = 500
_LOOKED_AT_MAX: Final = 20_000
_ABBREVIATION_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where runs are kept. `directory`: of a session; None for a store by URL."""

    url: str
    directory: Path | None
    artifacts: Path | None
    config: Config

    @property
    def shown(self) -> str:
        """What to call it on the screen: without a password."""
        return str(self.directory) if self.directory is not None else without_password(self.url)

    @property
    def flags(self) -> str:
        """The flags by which another command reaches the same place; nothing for the default."""
        if self.directory is None:
            files = f" --artifacts {self.artifacts}" if self.artifacts else ""
            return f" --store {without_password(self.url)}{files}"
        return f" --session {self.config.session}"

    @property
    def file(self) -> Path | None:
        """The SQLite file, if it is one."""
        prefix = "sqlite:///"
        if not self.url.startswith(prefix):
            return None
        return Path(unquote(self.url.removeprefix(prefix).partition("?")[0]))

    def destination(self) -> Destination:
        """Return the world of the built-in cases. Raises `InvalidInput` if there is no directory for it."""
        if self.artifacts is None:
            raise InvalidInput(field="artifacts", value=None, rule="the built-in cases need --artifacts DIR with --store")
        return Destination(self.artifacts.absolute(), Hold.parse(self.config.case_hold))


def locate(session: Path | None, store: str | None, artifacts: Path | None) -> Place:
    """Return the place that flags, environment and `quiesce.toml` name. Raises `InvalidInput`."""
    config = load_config(session=session, store=store, artifacts=artifacts)
    if config.store is not None:
        if config.store.startswith("memory"):
            raise InvalidInput(field="store", value=config.store, rule="a memory store would end with this command")
        return Place(url=config.store, directory=None, artifacts=config.artifacts, config=config)
    directory = (config.session or Path.cwd()).absolute()
    url = "sqlite:///" + quote(str(directory / DATABASE))
    return Place(url=url, directory=directory, artifacts=config.artifacts or directory / ARTIFACTS, config=config)


@contextlib.asynccontextmanager
async def opened(place: Place, *, creates: bool = False, writes: bool = True) -> AsyncIterator[Environment]:
    """Open the store for one command. Without `creates`, raises `NotFound` for a session that does not exist."""
    file = place.file
    if creates and place.directory is not None:
        _make_directory(place.directory)
    elif file is not None and not file.exists():
        raise NotFound("session", place.shown, "quiesce start makes one; --session names another")
    env = await make_environment(place.url, artifacts=place.artifacts, settings=place.config.settings)
    with contextlib.nullcontext() if writes or file is None else _left_alone(file):
        try:
            yield env
        finally:
            await env.store.close()


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreReadOnly(f"{directory}: the session directory cannot be made ({error.strerror})") from error


@contextlib.contextmanager
def _left_alone(file: Path) -> Iterator[None]:
    """Keep a read-only connection open to the end, so that no other one copies the log into the file as it closes.

    Made once the store is open: whoever opens and closes the file by other means than SQLite, as the store does to look at
    its header, takes the locks of all connections of the process away.
    """
    guard = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)
    try:
        guard.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield
    finally:
        guard.close()


async def find_run(service: ControlService, name: str) -> RunId:
    """Return the run that `name` means: an id, its unique beginning or ending, or `last` for the newest root run.

    Raises `NotFound`, or `InvalidInput` that lists the candidates of an ambiguous abbreviation.
    """
    try:
        return (await service.get(parse_run_id(name))).id
    except InvalidInput:
        if name != LAST and (len(name) < _ABBREVIATION_MIN or not set(name) <= set("0123456789abcdef-")):
            raise
    found: list[RunId] = []
    before: RunId | None = None
    looked_at = 0
    while looked_at < _LOOKED_AT_MAX and (page := await service.list(before=before, limit=_PAGE)):
        for run in page:
            if name == LAST and run.parent_id is None:
                return run.id
            if run.id.startswith(name) or run.id.endswith(name):
                found.append(run.id)
        before, looked_at = page[-1].id, looked_at + len(page)
    if len(found) > 1:
        raise InvalidInput(field="run", value=name, rule="could be any of " + ", ".join(found[:5]))
    if not found:
        raise NotFound("run", name, "see `quiesce list`")
    return found[0]


def without_password(url: str) -> str:
    """Return a URL that may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
