"""Verbs about the installation: `doctor`, `crash-points`."""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, SessionOption, StoreOption
from quiesce.cli.output import console, listing, print_json
from quiesce.cli.session import Place, locate, opened
from quiesce.domain.errors import NotFound, QuiesceError
from quiesce.domain.instant import Instant, to_iso
from quiesce.runtime.crashpoints import POINTS

_PACKAGES: Final = ("quiesce", "msgspec", "rfc8785", "typer", "rich")
_EXTRAS: Final = (("postgres", "psycopg"), ("postgres", "psycopg_pool"), ("openai", "openai"), ("local-model", "llama_cpp"))
_SKEW_MS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that `doctor` looked at. `ok` None: neither good nor bad."""

    name: str
    ok: bool | None
    found: str

    def to_json(self) -> dict[str, object]:
        """Return the form that `doctor --json` shows."""
        return {"name": self.name, "ok": self.ok, "found": self.found}


def doctor(
    *,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this installation and the store."""

    async def work() -> int:
        place = locate(session, store, artifacts)
        findings = [*_versions(), *_extras(), *await _store(place)]
        is_well = all(finding.ok is not False for finding in findings)
        if as_json:
            print_json({"ok": is_well, "findings": [finding.to_json() for finding in findings]})
        else:
            show_findings(findings)
        return Exit.OK if is_well else Exit.STORE

    perform(work, as_json=as_json)


def crash_points(*, as_json: JsonOption = False) -> None:
    """List the crash points."""

    async def work() -> int:
        if as_json:
            print_json(dict(POINTS))
        else:
            console().print(listing(("point", "what is stored when the process dies there"), POINTS.items()))
        return Exit.OK

    perform(work, as_json=as_json)


def show_findings(findings: Sequence[Finding]) -> None:
    """Print findings, a line each."""
    marks = {True: Text("ok", style="green"), False: Text("BAD", style="bold red"), None: Text("-", style="dim")}
    console().print(listing(("", "what", "found"), [(marks[f.ok], f.name, f.found) for f in findings]))


def _versions() -> list[Finding]:
    findings = [Finding(name="python", ok=True, found=f"{platform.python_version()} on {platform.platform()}")]
    for package in _PACKAGES:
        try:
            findings.append(Finding(name=package, ok=True, found=version(package)))
        except PackageNotFoundError:
            findings.append(Finding(name=package, ok=None, found="run from its sources"))
    return [*findings, Finding(name="sqlite", ok=True, found=sqlite3.sqlite_version)]


def _extras() -> list[Finding]:
    return [
        Finding(name=f"extra {extra}", ok=None, found=f"{module} {'found' if _has(module) else 'not installed'}")
        for extra, module in _EXTRAS
    ]


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


async def _store(place: Place) -> list[Finding]:
    """Look at the store without changing it: first at the file, then through the product's own eyes."""
    where = Finding(name="store", ok=None, found=place.shown)
    try:
        async with opened(place, writes=False) as env:
            now, runs = await env.store.read(
                lambda tx: (tx.now, len(tx.runs.page(tenant="local", statuses=(), before=None, limit=100)))
            )
            capabilities = env.store.capabilities
            skew_ms = abs(env.clock.now() - now) / 1000
    except NotFound:
        return [where, Finding(name="reachable", ok=None, found="nothing there yet: quiesce start makes it")]
    except QuiesceError as error:
        return [where, Finding(name="reachable", ok=False, found=f"{error.code}: {error.message}")]
    return [
        where,
        Finding(name="reachable", ok=True, found=f"{capabilities.name}, {'100 or more' if runs == 100 else runs} runs"),
        Finding(name="durability", ok=capabilities.durability == "full", found=capabilities.durability),
        *_file(place.file),
        _clock(now, skew_ms),
        Finding(name="artifacts", ok=None, found=str(place.artifacts or "no directory")),
    ]


def _clock(now: Instant, skew_ms: float) -> Finding:
    found = f"store {to_iso(now)}, {skew_ms:.0f} ms from this process's clock"
    return Finding(name="clock", ok=True if skew_ms <= _SKEW_MS_MAX else None, found=found)


def _file(path: Path | None) -> list[Finding]:
    if path is None:
        return []
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    try:
        ask: Callable[[str], str] = lambda sql: ", ".join(str(value) for (value,) in connection.execute(sql))  # noqa: E731
        mode, check = ask("PRAGMA journal_mode"), ask("PRAGMA quick_check")
        schema = ask("SELECT number || ' ' || name FROM migration ORDER BY number")
    finally:
        connection.close()
    return [
        Finding(name="journal", ok=mode == "wal", found=mode),
        Finding(name="schema", ok=True, found=f"migrations {schema}"),
        Finding(name="integrity", ok=check == "ok", found=check),
    ]
