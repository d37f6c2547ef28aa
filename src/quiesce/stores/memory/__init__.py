"""The memory store: the oracle of the other stores, and the ephemeral mode."""

from quiesce.stores.memory.store import CommitHooks, MemoryStore

__all__ = ["CommitHooks", "MemoryStore"]
