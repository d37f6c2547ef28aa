"""The disconnect policy of a run: what is to happen when its client is gone and does not come back (ST-06).

Keeps: it is a setting of its own, beside resumability (ST-07); the default is that a lost client changes nothing (ST-08). An
end by this policy is `transport_interrupted`, never `explicit_cancel`: nobody pressed stop (ST-09, ST-10, G-06).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.domain.errors import InvalidInput

GRACE_MS_MIN: Final = 1_000
"""Less than a network may take to come back is no grace."""
GRACE_MS_MAX: Final = 7 * 86_400_000
GRACE_MS_DEFAULT: Final = 30_000


class OnDisconnect(StrEnum):
    """What a client that is gone means for the run."""

    CONTINUE = "continue"
    """Nothing: it goes on, and can be joined again."""
    CANCEL = "cancel"
    """After the grace it is ended, unless a client has joined again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectPolicy:
    """What happens when no client has been heard of for `grace_ms`."""

    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    grace_ms: int = GRACE_MS_DEFAULT

    def check(self) -> None:
        """Raise `InvalidInput` for a grace that cannot be."""
        if not GRACE_MS_MIN <= self.grace_ms <= GRACE_MS_MAX:
            rule = f"must be {GRACE_MS_MIN} to {GRACE_MS_MAX}"
            raise InvalidInput(field="disconnect_grace_ms", value=self.grace_ms, rule=rule)

    def facts(self) -> dict[str, str | int]:
        """Return what of it gives a submission its meaning: nothing, if a client that is gone means nothing."""
        if self.on_disconnect is OnDisconnect.CONTINUE:
            return {}
        return {"on_disconnect": str(self.on_disconnect), "disconnect_grace_ms": self.grace_ms}
