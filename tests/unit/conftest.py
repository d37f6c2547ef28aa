"""Settings of the property tests: no deadlines, since the machine may be shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quiesce", deadline=None)
settings.load_profile("quiesce")
