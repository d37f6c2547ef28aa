"""What someone needs who writes an owner, or stages commands to one: the public names of the control channel.

    from quiesce.owners import Kind, LocalOwner, Target, CommandRequest, accepted, rejected

See `docs/control-channel.md`; `quiesce.testing.owners` holds the contract that an owner can be tested against.
"""

from quiesce.domain.commands import Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import Absent, Admission, AdmissionId, AdmissionReceipt, Claim, Command, CommandKey, CommandStatus
from quiesce.domain.errors import AdmissionRolledBack, CapacityExhausted, StaleClaim
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest, Staged, stage_tx, supersede_tx, withdraw_tx
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Decision, Delivery, LocalOwner, Owner, RemoteOwner, accepted, rejected

__all__ = [
    "Absent",
    "Admission",
    "AdmissionId",
    "AdmissionReceipt",
    "AdmissionRolledBack",
    "CapacityExhausted",
    "Claim",
    "Command",
    "CommandKey",
    "CommandRequest",
    "CommandStatus",
    "Decision",
    "Deliverer",
    "Delivery",
    "Environment",
    "Intent",
    "IntentId",
    "IntentStatus",
    "Kind",
    "LocalOwner",
    "Owner",
    "RemoteOwner",
    "Staged",
    "StaleClaim",
    "Target",
    "Transaction",
    "accepted",
    "rejected",
    "stage_tx",
    "supersede_tx",
    "withdraw_tx",
]
