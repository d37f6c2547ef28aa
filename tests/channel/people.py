"""Producers and people of an explored world: they stage, take back, supersede, hold and offer again.

Each says beforehand, from what really happened, whether it will be refused, and is surprised otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from quiesce.domain.commands import Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import Command, CommandStatus
from quiesce.domain.errors import CapacityExhausted, IdempotencyConflict, InvalidInput, Refused
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.runtime.commands import CommandRequest, stage_tx, supersede_tx, withdraw_tx
from quiesce.runtime.deliveries import quarantine_tx, reconcile_tx, requeue_tx
from tests.channel.truth import BY_HAND, ENDED, must

if TYPE_CHECKING:
    from tests.channel.machine import World

STRANGE: Final = Kind(name="do", version=2)
"""Nobody knows it."""
LIMITS: Final = replace(DEFAULT_LIMITS, command_scope_bound=5, command_scope_reserve=1)
SCOPES: Final = ("left", "right")


class People:
    """Who asks, and who cares."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def stage(self) -> None:
        """Stage something new, again, or under a key that means something else."""
        known = list(self._world.requests.items())
        again = self._world.rng.random()
        if known and again < 0.15:
            await self._stage_again(*self._world.rng.choice(known), changed=again < 0.07)
            return
        wanted = self._wanted()
        room = self._world.picture.rooms.get(wanted.scope)
        bound = LIMITS.command_scope_bound + (LIMITS.command_scope_reserve if wanted.kind.overtakes else 0)
        is_full = room is not None and self._world.picture.used(wanted.scope) >= bound
        is_early = wanted.revision > self._world.picture.revision(wanted.target)
        try:
            intent = await self._staged(wanted)
        except CapacityExhausted:
            must(is_full and not is_early, "only a full scope refuses", wanted)
            self._world.marks["a full scope"] += 1
        except InvalidInput:
            must(is_early, "only a revision that is not reached yet is refused", wanted)
        else:
            must(not is_full and not is_early, "a full scope takes nothing", wanted)
            self._world.requests[intent.id] = wanted

    def _wanted(self) -> CommandRequest:
        rng, now = self._world.rng, self._world.clock.now()
        target = Target(owner=rng.choice(self._world.owners), id=rng.choice("ab"))
        due_at = after_ms(now, rng.choice([500, 5_000])) if rng.random() < 0.2 else None
        not_after = after_ms(due_at or now, rng.choice([600, 12_000])) if rng.random() < 0.15 else None
        number = len(self._world.requests)
        return CommandRequest(
            kind=rng.choice(self._world.kinds),
            target=target,
            producer="test",
            producer_key=f"key {number}",
            subject="ada",
            payload={"number": number},
            revision=max(0, self._revision(target) + rng.choice([0, 0, 0, 0, 0, -1, 1])),
            scope=rng.choice(SCOPES),
            due_at=due_at,
            not_after=not_after,
        )

    def _revision(self, target: Target) -> int:
        return self._world.picture.revision(target)

    async def _staged(self, wanted: CommandRequest) -> Intent:
        intent_id = IntentId(self._world.env.new_id())
        staged = await self._world.store.transact(lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=self._world.limits))
        must(staged.is_new == (staged.intent.id == intent_id), "it says whether it is new", staged)
        return staged.intent

    async def _stage_again(self, intent_id: IntentId, wanted: CommandRequest, *, changed: bool) -> None:
        if not changed:
            must((await self._staged(wanted)).id == intent_id, "the same key is the same request", wanted)
            return
        try:
            await self._staged(replace(wanted, payload={"number": -1}, due_at=None, not_after=None))
        except IdempotencyConflict:
            self._world.marks["a conflict"] += 1
            return
        must(False, "another request under the same key is a conflict", wanted)

    async def withdraw(self) -> None:
        """Take something back."""
        if not self._world.requests:
            return
        intent_id = self._world.rng.choice(list(self._world.requests))
        was = self._world.picture.intents[intent_id].status
        try:
            await self._world.store.transact(lambda tx: withdraw_tx(tx, intent_id, tenant="local"))
        except Refused:
            must(was in (IntentStatus.RELAYED, IntentStatus.EXPIRED), "what was not relayed can be withdrawn", was)
        else:
            must(was in (IntentStatus.STAGED, IntentStatus.WITHDRAWN), "what was relayed is not withdrawn", was)
            self._world.marks["withdrawn"] += 1

    async def supersede(self) -> None:
        """Declare a target's next incarnation."""
        target = Target(owner=self._world.rng.choice(self._world.owners), id=self._world.rng.choice("ab"))
        revision = self._revision(target) + 1
        await self._world.store.transact(lambda tx: supersede_tx(tx, target, revision))

    async def quarantine(self) -> None:
        """Hold something for a person."""
        if (command := self._world.any_command()) is not None:
            await self.hold(command)

    async def hold(self, command: Command) -> None:
        try:
            await self._world.store.transact(lambda tx: quarantine_tx(tx, command.event_id, why="held", by=BY_HAND))
        except Refused:
            fine = command.status not in (CommandStatus.PENDING, CommandStatus.UNKNOWN)
            must(fine, "what nobody holds can be quarantined", command)

    async def requeue(self) -> None:
        """Offer again what is held."""
        held = [c for c in self._world.picture.commands.values() if c.status is CommandStatus.QUARANTINED]
        if held:
            await self.offer_again(self._world.rng.choice(held))

    async def offer_again(self, command: Command) -> None:
        try:
            await self._world.store.transact(lambda tx: requeue_tx(tx, command.event_id, why="mended", by=BY_HAND))
            self._world.marks["requeued"] += 1
        except Refused as refused:
            fine = command.is_uncertain or "only quarantined" in str(refused)
            must(fine, "what is certain can be offered again", command)

    async def reconcile(self) -> None:
        """Have something held read again, be it uncertain or not."""
        if (command := self._world.any_command()) is not None:
            await self.read_again(command)

    async def read_again(self, command: Command) -> None:
        fine = command.status is CommandStatus.QUARANTINED and command.is_uncertain
        try:
            await self._world.store.transact(lambda tx: reconcile_tx(tx, command.event_id, why="look again", by=BY_HAND))
        except Refused:
            must(not fine, "what is held in uncertainty can be read again", command)
        else:
            must(fine, "only what is held in uncertainty is read again", command)
            self._world.marks["reconciled"] += 1

    async def care_for(self, command: Command) -> None:
        """What a person or an owner does about a command that is held, or that nobody knows."""
        is_strange = command.intent.kind == STRANGE
        if command.status is CommandStatus.PENDING and is_strange:
            await self.hold(command)
        if command.status is CommandStatus.QUARANTINED and not is_strange and self._world.rng.random() < 0.7:
            await self.offer_again(command)
        if command.status not in ENDED and command.key in self._world.picture.receipts:
            await self._world.bring(command)
        elif command.status is CommandStatus.QUARANTINED and not is_strange:
            await (self.read_again(command) if command.is_uncertain else self.offer_again(command))
