"""Owners: whoever alone decides an effect, and what the channel asks of one (NO-15).

Two operations: read the receipt of a command key from the authoritative store, and admit a command in a transaction that
deduplicates by that key and checks the claim. Two classes, with different proofs of absence (G-13):

* a **local** owner decides inside a transaction of the same database in which the claims live. The claim is checked there,
  behind everything the owner did, under the command's lock and by a clock read after it was obtained (CC-34, CC-35, K14).
  If no receipt is found under a newer claim, none can come from an older one.
* a **remote** owner is somewhere else: another store, a service. A request to it may take effect at any later time, also
  after its sender died, so an admission that began without an answer is never repeated unless the owner itself proves that
  it cannot land any more.

Keeps: an effect and its receipt are stored together or not at all (CC-47); a live claim is no permission, the owner still
decides (CC-36). Knows nothing of how commands are found or settled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Protocol

from quiesce.domain.commands import IntentId, Kind
from quiesce.domain.deliveries import Absent, Admission, AdmissionId, AdmissionReceipt, Claim, Command
from quiesce.domain.errors import AdmissionRolledBack, StaleClaim, StoreUnavailable, required
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest, stage_tx
from quiesce.runtime.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A command and the claim under which it is delivered: what goes to its owner, and over the wire."""

    command: Command
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a local owner decided. `effect_ref` names the effect in its own words.

    `stages`: commands that follow from it, staged in the same transaction behind the check of the claim, so that locks
    are taken in their one order.
    """

    verdict: Admission
    reason: str = ""
    effect_ref: str = ""
    stages: tuple[CommandRequest, ...] = ()


def accepted(effect_ref: str = "", *, stages: tuple[CommandRequest, ...] = ()) -> Decision:
    """Return the decision that the command took effect."""
    return Decision(verdict=Admission.ACCEPTED, effect_ref=effect_ref, stages=stages)


def rejected(reason: str, *, effect_ref: str = "") -> Decision:
    """Return the decision that the command has no effect, for a stated reason. As definite as acceptance (CC-42)."""
    return Decision(verdict=Admission.REJECTED, reason=reason, effect_ref=effect_ref)


class _AlreadyAdmitted(StaleClaim):
    """Another admission of the same command stored its receipt while this one was under way."""


class Owner(Protocol):
    """What delivery asks of an owner, local or remote."""

    @property
    def name(self) -> str:
        """The class of targets that it decides about."""

    @property
    def kinds(self) -> Collection[Kind]:
        """The kinds and versions that it understands; others are not handed to this worker (CC-32)."""

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        """Return the receipt under the command's key, or `Absent` if the authoritative store positively has none.

        Raises whenever it cannot know: a failed read is never absence (CC-43, CC-44).
        """

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """Decide, once per command key, and return the receipt; a second admission returns the first one (CC-47).

        Raises `StaleClaim` if the claim is not live any more, `AdmissionRolledBack` if certainly nothing was decided; any
        other error leaves open whether it took effect.
        """


class LocalOwner(ABC):
    """Base of owners whose effects live in the store's own database. Implements `Owner`; override `decide`.

    `decide` runs inside the transaction of the admission. It locks its own rows first, reads and writes through `tx` (or
    `tx.connection` for tables of its own), does nothing outside the database, and returns `accepted(...)` or
    `rejected(...)`. It never sees a command twice once it has decided. What it raises rolls everything back; the command is
    offered again later, and quarantined when its attempts are used up.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]

    @abstractmethod
    def decide(self, tx: Transaction, command: Command) -> Decision:
        """Decide about a command."""

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        """See `Owner`. The store is authoritative: what it does not hold is absent, and fenced out."""
        receipt = await env.store.read(lambda tx: tx.admissions.get(command.key))
        return receipt or Absent(excludes_in_flight=True)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """See `Owner`."""
        try:
            return await env.store.transact(lambda tx: self.admit_tx(tx, env, delivery))
        except _AlreadyAdmitted:
            receipt = await env.store.read(lambda tx: tx.admissions.get(delivery.command.key))
            return required(receipt, "an admission that another one found stored has its receipt")
        except (StaleClaim, StoreUnavailable):
            raise
        except Exception as error:  # whatever `decide` raises, everything was rolled back
            why = f"owner {self.name} could not decide: {type(error).__name__}"
            raise AdmissionRolledBack(why, owner=self.name) from error

    def admit_tx(self, tx: Transaction, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """Admit inside a transaction: effect, receipt and what follows from it, or nothing (V14)."""
        command = delivery.command
        if (known := tx.admissions.get(command.key)) is not None:
            return known
        decision = self.decide(tx, command)
        _check_claim(tx, delivery)
        receipt = AdmissionReceipt(
            id=AdmissionId(env.new_id(tx.now)),
            command_key=command.key,
            verdict=decision.verdict,
            reason=decision.reason[: env.limits.text_chars_max],
            effect_ref=decision.effect_ref[: env.limits.text_chars_max],
            at=tx.now,
        )
        if not tx.admissions.add(receipt):
            raise _AlreadyAdmitted(f"command {command.event_id} was admitted meanwhile", command_key=command.key)
        for wanted in decision.stages:
            stage_tx(tx, wanted, intent_id=IntentId(env.new_id(tx.now)), limits=env.limits)
        env.crash.reach("admission.inside")
        return receipt


def _check_claim(tx: Transaction, delivery: Delivery) -> None:
    """Check under the command's lock: key, worker, fence, target, revision, and that neither claim nor command came too late.

    The clock is read after the lock was obtained, so time spent waiting for it counts. Raises `StaleClaim`.
    """
    handed, claim = delivery.command, delivery.claim
    current = tx.commands.lock(handed.event_id)
    if current is None or (current.intent.id, current.target) != (handed.intent.id, handed.target):
        raise StaleClaim(f"command {handed.event_id} is not what was handed over", event_id=handed.event_id)
    revision = tx.commands.lock_targets([current.target])[current.target].revision
    now = tx.read_clock()
    if not current.holds(claim, now):
        raise StaleClaim(f"the claim of command {handed.event_id} under fence {claim.fence} is over", fence=claim.fence)
    if current.intent.not_after is not None and current.intent.not_after <= now:
        raise StaleClaim(f"command {handed.event_id} came too late: its not_after has passed", not_after=current.intent.not_after)
    if current.intent.revision != revision:
        raise StaleClaim(
            f"command {handed.event_id} is meant for revision {current.intent.revision}; its target stands at {revision}",
            revision=revision,
        )


class RemoteOwner(ABC):
    """Base of owners whose effects live elsewhere. Implements `Owner`; override `read_receipt` and `admit`.

    Send `delivery.command.key` as the idempotency key and `delivery.claim.fence` as the fence; the owner deduplicates by
    the key for ever and may refuse a lower fence. `read_receipt` returns `Absent(excludes_in_flight=True)` only if the owner
    has made sure, before it answered, that an admission under an earlier fence can no longer take effect.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]

    @abstractmethod
    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        """See `Owner`."""

    @abstractmethod
    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """See `Owner`."""
