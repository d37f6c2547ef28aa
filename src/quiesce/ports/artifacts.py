"""Where artifacts (files and reports of runs) are kept. Content is found by path; its digest is kept in the store."""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.ids import RunId


class ArtifactFiles(Protocol):
    """A directory of artifacts."""

    def write(self, run_id: RunId, name: str, data: bytes) -> str:
        """Write a file durably and atomically; return its path relative to the directory.

        Writing the same name of a run again replaces the file as a whole. Raises `InvalidInput` for a name that could lead
        elsewhere, `StoreReadOnly` or `StoreFull` where the directory cannot take it.
        """

    def read(self, path: str) -> bytes | None:
        """Return the content, or None if there is no such file."""
