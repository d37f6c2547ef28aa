"""An explorer of the control channel: one seed, one world, played step by step in an order that nobody planned.

Real deliverers run over a store; what they are about to do waits at gates (`gates.py`). The explorer chooses what happens
next: one goes on, well or in trouble, another dies, a request lands late, somebody stages, supersedes, withdraws, holds or
offers again, the clock moves. After every step the whole world is compared with what really happened (`truth.py`). At the end
everything is healed, and all must come to rest.

A seed switches kinds of steps and troubles off, so that some worlds see one kind alone. Everything is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from quiesce.domain.commands import IntentId, IntentStatus, Target
from quiesce.domain.deliveries import Claim, Command, CommandStatus, EventId
from quiesce.domain.errors import InvalidInput, Refused, StaleClaim, StoreUnavailable
from quiesce.domain.instant import Instant
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.deliveries import (
    push_receipt_tx,
    release_claims_tx,
    renew_claims_tx,
)
from quiesce.runtime.environment import Environment
from quiesce.testing.clock import ManualClock
from quiesce.testing.simloop import SimEntropy
from tests.channel.gates import (
    DECIDE,
    READ,
    SEND,
    TRANSACTION,
    TROUBLES,
    WELL,
    Desk,
    Destination,
    GatedStore,
    Gates,
    OpenStore,
    Vault,
    Waiting,
    Wire,
)
from tests.channel.kit import DO, LEASE_MS, PASS, SETTINGS, STOP
from tests.channel.people import LIMITS, STRANGE, People
from tests.channel.truth import BY_OWNER, ENDED, Moment, Picture, Truth, must

Deed = Callable[[], Awaitable[None]]
OWNERS: Final = ("ledger", "post", "vault")
TARGETS: Final = [Target(owner=owner, id=name) for owner in OWNERS for name in "ab"]
WORKERS: Final = 3
OFTEN: Final = {TRANSACTION: 0.2, READ: 0.4, DECIDE: 1.5, SEND: 1.5}
"""How often each sort of gate brings trouble: most where an effect may take place."""


@dataclass(slots=True)
class Hand:
    """A worker as the explorer sees it."""

    number: int
    deliverer: Deliverer
    is_paused: bool = False
    under_way: asyncio.Task[int] | None = None


class World:
    """One seed's world."""

    def __init__(self, seed: int, store: Store, clock: ManualClock) -> None:
        self.rng = random.Random(seed)
        self.limits = replace(LIMITS, command_attempts_max=self.rng.choice([1, 2, 4]))
        self.store = store
        self.clock = clock
        self.gates = Gates()
        self.env = self._environment(store, seed)
        dedupes = self.rng.random() < 0.5
        self.post = Destination(proves=False, dedupes=dedupes)
        self.vault = Destination(proves=True, dedupes=dedupes)
        self.truth = Truth(self.limits.command_attempts_max)
        self.marks: Counter[str] = Counter()
        self.requests: dict[IntentId, CommandRequest] = {}
        self.claims: list[tuple[EventId, Claim]] = []
        self._born = 0
        self.hands = [self._hand() for _ in range(WORKERS)]
        self.owners = self.rng.choice([("ledger",), ("post",), ("vault",), OWNERS])
        self.kinds = self.rng.choice([(DO,), (DO, PASS), (DO, STOP), (DO, DO, PASS, STOP, STRANGE)])
        self.trouble = self.rng.choice([0.1, 0.3, 0.6])
        self.people = People(self)
        self.steps = self._drawn_steps()

    def _environment(self, store: Store, seed: int) -> Environment:
        return Environment(store=store, clock=self.clock, entropy=SimEntropy(seed), limits=self.limits, settings=SETTINGS)

    def _hand(self) -> Hand:
        self._born += 1
        number = self._born
        gated = GatedStore(self.store, self.gates, number)
        straight = replace(self.env, store=OpenStore(self.store, self.gates, number))
        desk = Desk(self.gates, number, straight, lambda: self._move_on(self.rng.choice([LEASE_MS // 2, LEASE_MS])))
        owners = (desk, Wire(self.gates, number, self.post), Vault(self.gates, number, self.vault))
        settings = replace(SETTINGS, deliveries=self.rng.choice([1, 3]))
        env = replace(self.env, store=gated, settings=settings)
        return Hand(number, Deliverer(env, owners, name=f"w{number}"))

    def _drawn_steps(self) -> dict[Deed, float]:
        always: dict[Deed, float] = {self.people.stage: 3.0, self.begin: 4.0, self.go_on: 22.0, self.wait: 1.5}
        swarm: dict[Deed, float] = {
            self.die: 0.7,
            self.pause: 2.0,
            self.renew: 1.0,
            self.release: 0.7,
            self.people.supersede: 0.3,
            self.land: 1.0,
            self.push: 0.7,
            self.people.quarantine: 0.3,
            self.people.requeue: 1.0,
            self.people.reconcile: 1.0,
            self.people.withdraw: 0.3,
        }
        return always | {step: weight for step, weight in swarm.items() if self.rng.random() < 0.7}

    async def play(self, length: int) -> None:
        """Play so many steps, then heal everything and see all come to rest. Raises `Broken`."""
        await self._look(Moment())
        steps, weights = list(self.steps), list(self.steps.values())
        for _ in range(length):
            self.gates.acting = None
            await self.rng.choices(steps, weights)[0]()
            acting = self.gates.acting
            await self._look(_moment(acting))
        await self._heal()

    async def _look(self, moment: Moment) -> None:
        known = list(self.requests)
        stored = await self.store.read(lambda tx: Picture.take(tx, self.clock.now(), known, TARGETS))
        picture = replace(
            stored,
            receipts={**stored.receipts, **self.post.receipts, **self.vault.receipts},
            effects=(*stored.effects, *self.post.effects, *self.vault.effects),
        )
        self.truth.see(picture, moment)
        must(all(hand.deliverer.state.broken == 0 for hand in self.hands), "a delivery breaks off of no error of its own")
        for command in picture.commands.values():
            if command.claim is not None and (command.event_id, command.claim) not in self.claims:
                self.claims.append((command.event_id, command.claim))
            self.marks[command.status] += 1

    @property
    def picture(self) -> Picture:
        """The world as it was last seen."""
        assert self.truth.last is not None
        return self.truth.last

    def _move_on(self, duration_ms: float) -> None:
        self.clock.advance(duration_ms)

    # What workers do.

    async def begin(self) -> None:
        """Let an idle worker relay, claim and deliver; let time pass if nothing is due."""
        if not self._is_due():
            await self.wait()
            return
        idle = [hand for hand in self.hands if hand.under_way is None or hand.under_way.done()]
        if idle:
            hand = self.rng.choice(idle)
            _forgive(hand.under_way)
            hand.under_way = asyncio.get_running_loop().create_task(hand.deliverer.pass_once())
            await self.gates.still()

    def _is_due(self) -> bool:
        staged = any(i.status is IntentStatus.STAGED and i.due_at <= self.clock.now() for i in self.picture.intents.values())
        at = [c.claimable_at for c in self.picture.commands.values() if c.claimable_at is not None and c.intent.kind != STRANGE]
        return staged or min(at, default=self.clock.now() + 1) <= self.clock.now()

    async def go_on(self) -> None:
        """Let something go on that waits, well or in trouble."""
        asleep = {hand.number for hand in self.hands if hand.is_paused}
        awake = [one for one in self.gates.waiting if one.worker not in asleep]
        if not awake:
            await self.begin()
            return
        one = self.rng.choice(awake)
        trouble = self.trouble * OFTEN[one.what]
        how = self.rng.choice(TROUBLES[one.what]) if self.rng.random() < trouble else WELL
        self.marks[f"{one.what} {how}"] += 1
        await self.gates.let_go(one, how)

    async def pause(self) -> None:
        """A worker stops for a while, longer than its claims last; or goes on as if nothing had happened."""
        hand = self.rng.choice(self.hands)
        hand.is_paused = not hand.is_paused
        if hand.is_paused and self.rng.random() < 0.5:
            self._move_on(LEASE_MS)

    async def die(self) -> None:
        """A worker dies with everything that it was about to do, and another one takes its place."""
        place = self.rng.randrange(WORKERS)
        await self._kill(self.hands[place])
        self.hands[place] = self._hand()

    async def _kill(self, hand: Hand) -> None:
        tasks: list[asyncio.Task[object]] = [one.task for one in self.gates.waiting if one.worker == hand.number]
        if hand.under_way is not None:
            tasks.append(hand.under_way)
        await self.gates.kill(tasks)
        _forgive(hand.under_way)

    async def renew(self) -> None:
        """Extend a claim that somebody holds, or held once."""
        if not self.claims:
            return
        event_id, claim = self.rng.choice(self.claims[-6:])
        is_held = self._is_held(event_id, claim)
        lost = await self.store.transact(lambda tx: renew_claims_tx(tx, {event_id: claim}, lease_ms=LEASE_MS))
        must((event_id not in lost) == is_held, "a beat says whether the claim is held", claim)
        self.marks["renewed" if is_held else "lost"] += 1

    async def release(self) -> None:
        """Hand a claim back that somebody holds, or held once."""
        if self.claims:
            event_id, claim = self.rng.choice(self.claims[-6:])
            await self.store.transact(lambda tx: release_claims_tx(tx, {event_id: claim}))

    def _is_held(self, event_id: EventId, claim: Claim) -> bool:
        now = self.picture.commands[event_id]
        same = now.claim is not None and (now.fence, now.worker_id) == (claim.fence, claim.worker_id)
        return same and now.expires_at is not None and self.clock.now() < now.expires_at

    # What the world does.

    async def wait(self) -> None:
        """Let time pass: a little, up to the last moment of a lease, or beyond."""
        self._move_on(self.rng.choice([1, 500, 1_000, LEASE_MS - 1, LEASE_MS, LEASE_MS + 1]))

    async def land(self) -> None:
        """Let a request arrive that nobody waits for any more."""
        for destination in self._in_any_order(self.post, self.vault):
            if destination.on_the_way:
                self._arrive(destination, self.rng.randrange(len(destination.on_the_way)))
                return

    def _arrive(self, destination: Destination, place: int) -> None:
        delivery, how = destination.on_the_way.pop(place)
        try:
            destination.land(delivery, how)
            self.marks["landed late"] += 1
        except StaleClaim:
            self.marks["refused by its fence"] += 1

    def _in_any_order(self, *destinations: Destination) -> list[Destination]:
        return self.rng.sample(destinations, len(destinations))

    async def push(self) -> None:
        """An owner brings a receipt by itself, now and then to the wrong command."""
        held = [c for c in self.picture.commands.values() if c.key in self.picture.receipts]
        if not held:
            return
        command = self.rng.choice(held)
        if self.rng.random() < 0.2:
            await self._push_wrong(command)
        else:
            await self.bring(command)

    async def bring(self, command: Command) -> None:
        receipt = self.picture.receipts[command.key]
        settled = await self.store.transact(lambda tx: push_receipt_tx(tx, command.event_id, receipt, by=BY_OWNER))
        must(settled.status is CommandStatus.SETTLED, "a true receipt settles", (command, receipt))
        self.marks["pushed"] += command.status is not CommandStatus.SETTLED

    async def _push_wrong(self, command: Command) -> None:
        others = [c for c in self.picture.commands.values() if c.key != command.key and c.status not in ENDED]
        if others:
            other, receipt = self.rng.choice(others), self.picture.receipts[command.key]
            try:
                await self.store.transact(lambda tx: push_receipt_tx(tx, other.event_id, receipt, by=BY_OWNER))
            except (InvalidInput, Refused):
                self.marks["pushed to the wrong one"] += 1
            else:
                must(False, "another command's receipt settles nothing", other)

    def any_command(self) -> Command | None:
        commands = list(self.picture.commands.values())
        return self.rng.choice(commands) if commands else None

    # The end.

    async def _heal(self) -> None:
        """Let everything that waits go on well, land what is on its way, and deliver until nothing is due any more."""
        while self.gates.waiting:
            await self.gates.let_go(self.gates.waiting[0], WELL)
            await self._look(_moment(self.gates.acting))
        if self.rng.random() < 0.5:
            await self._land_all()
        await self._rest()
        await self._land_all()
        for command in list(self.picture.commands.values()):
            await self.people.care_for(command)
            self.gates.acting = None
            await self._look(Moment())
        await self._rest()
        for command in self.picture.commands.values():
            self._at_rest(command)
        for intent in self.picture.intents.values():
            must(intent.status is not IntentStatus.STAGED, "what is due is relayed", intent)

    async def end(self) -> None:
        """End whatever still waits."""
        for hand in self.hands:
            await self._kill(hand)

    async def _land_all(self) -> None:
        for destination in (self.post, self.vault):
            while destination.on_the_way:
                self._arrive(destination, 0)
        self.gates.acting = None
        await self._look(Moment())

    async def _rest(self) -> None:
        """Deliver, and let time pass, until nothing changes any more and nothing falls due at any later time."""
        hand = self._hand()
        self.hands.append(hand)
        for _ in range(400):
            before, now = self.picture.commands, self.clock.now()
            hand.under_way = asyncio.get_running_loop().create_task(hand.deliverer.pass_once())
            await self.gates.still()
            while self.gates.waiting:
                await self.gates.let_go(self.gates.waiting[0], WELL)
                await self._look(_moment(self.gates.acting))
            if not await hand.under_way and self.picture.commands == before:
                due_at = await self.store.read(partial(_due_after, now))
                if due_at is None:
                    return
                self._move_on((due_at - now) / 1000)
        must(False, "deliveries come to rest")

    def _at_rest(self, command: Command) -> None:
        match command.status:
            case CommandStatus.PENDING:
                ahead = [c for c in self.picture.ahead_of(command) if c.status is CommandStatus.QUARANTINED]
                must(bool(ahead), "what nothing holds up is delivered", command)
                self.marks["held up for a person"] += 1
            case CommandStatus.QUARANTINED:
                fine = command.is_uncertain or command.intent.kind == STRANGE
                must(fine and command.key not in self.picture.receipts, "only a person's answer is awaited", command)
                self.marks["uncertain to the end"] += command.is_uncertain
            case _:
                must(command.status in ENDED, "everything has ended", command)


def _due_after(now: Instant, tx: Transaction) -> Instant | None:
    return tx.commands.next_due(now=now)


def _moment(acting: Waiting | None) -> Moment:
    return Moment() if acting is None else Moment(claim=acting.claim, is_delivery=acting.claim is not None)


def _forgive(task: asyncio.Task[int] | None) -> None:
    """Take the end of a pass: it died, its store failed, or all went well."""
    if task is not None and task.done() and not task.cancelled():
        error = task.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            raise error
