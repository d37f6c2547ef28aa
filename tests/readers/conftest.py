"""Fixtures of the readers' tests: clusters over every store, as the runtime's tests have them, and shells in a session."""

from tests.cli.conftest import hold, shell, user_code
from tests.runtime.conftest import cluster, store, url

__all__ = ["cluster", "hold", "shell", "store", "url", "user_code"]
