"""Settings of the command line, from flags, the environment and `quiesce.toml`, in that order; read here and nowhere else.

    session = "work"                  # a directory: session.sqlite and artifacts/ in it
    store = "postgresql://host/db"    # or a store by URL, with
    artifacts = "files"               # a directory for what its runs save
    patience_ms = 10000               # how long `start` and `resume` sit out a timer before they leave a run parked

    [settings]                        # times of the runtime, by their names in `runtime.environment.Settings`
    lease_ms = 10000

In the environment: `QUIESCE_SESSION`, `QUIESCE_STORE`, `QUIESCE_ARTIFACTS`, `QUIESCE_PATIENCE_MS`, `QUIESCE_LEASE_MS` and so
on. What neither names has a default. A misspelt name in the file is an error and not a silent default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from quiesce.domain.errors import InvalidInput
from quiesce.runtime.environment import Settings

FILE: Final = "quiesce.toml"
DEFAULT_SESSION: Final = "quiesce-session"
_MS_MAX: Final = 7 * 86_400_000
_TIMES: Final = tuple(field.name for field in fields(Settings))
_KEYS: Final = ("session", "store", "artifacts", "patience_ms", "settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Where runs are kept, and the runtime's times. Of `session` and `store` exactly one is set."""

    session: Path | None
    store: str | None
    artifacts: Path | None
    patience_ms: int = 10_000
    settings: Settings = field(default_factory=Settings)
    case_hold: str = ""
    """`QUIESCE_CASE_HOLD`: how long the built-in cases' models keep their answers back."""


Source = Mapping[str, object]


def load_config(
    *,
    session: Path | None = None,
    store: str | None = None,
    artifacts: Path | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Config:
    """Put the settings together. Raises `InvalidInput` that names the setting and where it was read."""
    environment = os.environ if environment is None else environment
    file = _read_file((directory or Path.cwd()) / FILE)
    flags: dict[str, object] = {"session": session, "store": store, "artifacts": artifacts}
    variables: dict[str, object] = {
        name: environment.get(f"QUIESCE_{name.upper()}") for name in (*_KEYS, *_TIMES) if name != "settings"
    }
    place = _place(flags, variables, file)
    kept = next((source["artifacts"] for source in (flags, variables, file) if source.get("artifacts")), None)
    patience = variables["patience_ms"] if variables["patience_ms"] is not None else file.get("patience_ms", 10_000)
    return Config(
        session=place if isinstance(place, Path) else None,
        store=place if isinstance(place, str) else None,
        artifacts=None if kept is None else Path(str(kept)),
        patience_ms=_number("patience_ms", patience),
        settings=_settings(variables, file),
        case_hold=environment.get("QUIESCE_CASE_HOLD", ""),
    )


def _place(*sources: Source) -> Path | str:
    """Return the session or store that the first source with an opinion names."""
    for source in sources:
        session, store = source.get("session"), source.get("store")
        if session and store:
            raise InvalidInput(field="store", value=store, rule=f"cannot go with a session ({session}): name one of them")
        if session:
            return Path(str(session))
        if store:
            return str(store)
    return Path(DEFAULT_SESSION)


def _settings(variables: Source, file: Source) -> Settings:
    table = file.get("settings", {})
    if not isinstance(table, dict):
        raise InvalidInput(field=f"{FILE}: settings", value=table, rule="must be a table")
    for name in table:
        if name not in _TIMES:
            raise InvalidInput(field=f"{FILE}: settings", value=name, rule="is no setting; there are " + ", ".join(_TIMES))
    given = {name: variables[name] if variables[name] is not None else table.get(name) for name in _TIMES}
    return Settings(**{name: _number(name, value, low=1) for name, value in given.items() if value is not None})


def _number(name: str, value: object, *, low: int = 0) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not low <= int(text) <= _MS_MAX:
        raise InvalidInput(field=name, value=value, rule=f"must be a whole number from {low} to {_MS_MAX}")
    return int(text)


def _read_file(path: Path) -> dict[str, object]:
    try:
        table: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(field=str(path), value=str(error), rule="cannot be read") from None
    for name in table:
        if name not in _KEYS:
            raise InvalidInput(field=FILE, value=name, rule="is no setting; there are " + ", ".join(_KEYS))
    return table
