"""Builders of valid records of the control channel, for tests. See `samples`: everything made ascends."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from quiesce.domain.canonical import canonical
from quiesce.domain.commands import DEFAULT_SCOPE, Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import (
    Admission,
    AdmissionId,
    AdmissionReceipt,
    Command,
    CommandStatus,
    EventId,
    HistoryEvent,
    HistoryLine,
    Settlement,
)
from quiesce.domain.ids import Fence
from quiesce.domain.instant import Instant
from quiesce.testing.samples import TENANT, USER, Samples

CORRECT = Kind(name="correct")
NOTE = Kind(name="note", is_barrier=False)
CANCEL = Kind(name="cancel", overtakes=True)
OWNER = "desk"


class IntentFields(TypedDict, total=False):
    """What tests vary of an intent."""

    tenant: str
    scope: str
    producer: str
    key: str
    target: Target
    kind: Kind
    revision: int
    payload: object
    due_at: Instant
    not_after: Instant


class ChannelSamples(Samples):
    """Makes intents, commands and what becomes of them."""

    def target(self, owner: str = OWNER) -> Target:
        """Make the name of a target that nobody knows yet."""
        return Target(owner=owner, id=self.id())

    def intent(self, **fields: Unpack[IntentFields]) -> Intent:
        """Make a staged intent that is due at once; key and target of its own unless they are given."""
        intent_id = IntentId(self.id())
        return Intent(
            id=intent_id,
            tenant=fields.get("tenant", TENANT),
            scope=fields.get("scope", DEFAULT_SCOPE),
            producer=fields.get("producer", "console"),
            producer_key=fields.get("key", f"key-{intent_id}"),
            subject=USER.name,
            target=fields.get("target") or self.target(),
            revision=fields.get("revision", 0),
            kind=fields.get("kind", CORRECT),
            payload=canonical(fields.get("payload")),
            due_at=fields.get("due_at", self.now),
            not_after=fields.get("not_after"),
            staged_at=self.now,
        )

    def command(
        self, intent: Intent | None = None, *, number: int = 1, is_blocked: bool = False, **fields: Unpack[IntentFields]
    ) -> Command:
        """Make a pending command: of this intent, or of a new one with these fields."""
        wanted = intent or self.intent(**fields)
        event_id = EventId(self.id())
        return Command(
            event_id=event_id,
            intent=wanted,
            number=number,
            accepted_at=self.now,
            status=CommandStatus.PENDING,
            claimable_at=None if is_blocked else self.now,
            fence=Fence(0),
        )

    def admission(self, command: Command, *, verdict: Admission = Admission.ACCEPTED, reason: str = "") -> AdmissionReceipt:
        """Make an owner's receipt."""
        admission_id = AdmissionId(self.id())
        return AdmissionReceipt(
            id=admission_id,
            command_key=command.key,
            verdict=verdict,
            reason=reason,
            effect_ref=f"effect-{admission_id}",
            at=self.now,
        )

    def settlement(self, command: Command, receipt: AdmissionReceipt | None = None) -> Settlement:
        """Make the settlement of a command from a receipt, by default an accepting one."""
        of = receipt or self.admission(command)
        return Settlement(event_id=command.event_id, receipt=of, fence=command.fence, at=self.now)

    def line(self, command: Command, what: HistoryEvent = HistoryEvent.CLAIMED, *, reason: str = "") -> HistoryLine:
        """Make a line of a command's history."""
        by = self.id()
        return HistoryLine(event_id=command.event_id, what=what, fence=command.fence, by=by, reason=reason, at=self.now)


def relayed(command: Command) -> Command:
    """Return the command as it is read once its intent is marked as relayed at its acceptance."""
    intent = replace(command.intent, status=IntentStatus.RELAYED, ended_at=command.accepted_at)
    return replace(command, intent=intent)
