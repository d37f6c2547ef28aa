"""Artifacts in a directory: one folder a run, written to a side file, synced, and renamed into place."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from quiesce.domain.errors import InvalidInput, StoreFull, StoreReadOnly
from quiesce.domain.ids import RunId

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class ArtifactDirectory:
    """Implements `ports.artifacts.ArtifactFiles` on the file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, run_id: RunId, name: str, data: bytes) -> str:
        """Write durably and atomically; return the relative path."""
        if not _NAME.fullmatch(name):
            rule = "must be 1 to 120 letters, digits, dots, dashes or underscores, and begin with a letter or digit"
            raise InvalidInput(field="artifact name", value=name, rule=rule)
        path = f"{run_id}/{name}"
        target = self._root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            side = target.with_name(f".{name}.part")
            with side.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            side.replace(target)
        except OSError as error:
            raise _refusal(error, self._root) from error
        return path

    def read(self, path: str) -> bytes | None:
        """Return the content, or None if there is no such file (or the path leads out of the directory)."""
        target = (self._root / path).resolve()
        if not target.is_relative_to(self._root.resolve()) or not target.is_file():
            return None
        return target.read_bytes()


def _refusal(error: OSError, root: Path) -> StoreFull | StoreReadOnly:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no room left for artifacts in {root}")
    return StoreReadOnly(f"artifacts cannot be written to {root}: {error.strerror}")
