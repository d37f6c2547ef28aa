"""The PostgreSQL store: any number of processes on any number of machines."""

from quiesce.stores.postgres.settings import PostgresSettings
from quiesce.stores.postgres.store import PostgresStore

__all__ = ["PostgresSettings", "PostgresStore"]
