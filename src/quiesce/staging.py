"""What a producer needs that stages commands on a connection of its own: the public names.

    from quiesce.staging import CommandRequest, Kind, Target, stage

See `docs/staging.md` for an example per driver.
"""

from quiesce.adapters.staging import (
    DEFAULT_SCHEMA,
    stage,
    stage_async,
    stage_many,
    stage_many_async,
    supersede,
    supersede_async,
    withdraw,
    withdraw_async,
)
from quiesce.domain.commands import Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import TargetState
from quiesce.domain.errors import (
    CapacityExhausted,
    IdempotencyConflict,
    InvalidInput,
    NotAStore,
    NotFound,
    Refused,
    SchemaTooNew,
    StoreError,
)
from quiesce.runtime.commands import CommandRequest, Staged

__all__ = [
    "DEFAULT_SCHEMA",
    "CapacityExhausted",
    "CommandRequest",
    "IdempotencyConflict",
    "Intent",
    "IntentId",
    "IntentStatus",
    "InvalidInput",
    "Kind",
    "NotAStore",
    "NotFound",
    "Refused",
    "SchemaTooNew",
    "Staged",
    "StoreError",
    "Target",
    "TargetState",
    "stage",
    "stage_async",
    "stage_many",
    "stage_many_async",
    "supersede",
    "supersede_async",
    "withdraw",
    "withdraw_async",
]
