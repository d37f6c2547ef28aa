"""The SQLite store: one file, any number of processes of one machine, nothing to install."""

from quiesce.stores.sqlite.settings import SqliteSettings
from quiesce.stores.sqlite.store import SqliteStore

__all__ = ["SqliteSettings", "SqliteStore"]
