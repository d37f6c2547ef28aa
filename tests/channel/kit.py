"""What the channel's tests are written with: a channel under a manual clock, and owners that count their effects.

Owners write each effect under an identity of its own, so an effect that happens twice is seen twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, Final

from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.canonical import canonical, parse
from quiesce.domain.commands import Intent, IntentId, Kind, Target
from quiesce.domain.deliveries import (
    Absent,
    Admission,
    AdmissionId,
    AdmissionReceipt,
    Command,
    CommandKey,
    EventId,
    HistoryEvent,
    Settlement,
)
from quiesce.domain.errors import StaleClaim
from quiesce.domain.ids import RunId, WorkerId
from quiesce.domain.limits import DEFAULT_LIMITS, Limits
from quiesce.domain.publication import OutboxMessage
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.commands import CommandRequest, Staged, stage_tx
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.deliveries import claim_commands_tx
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.owners import Decision, Delivery, LocalOwner, Owner, RemoteOwner, accepted, rejected
from quiesce.runtime.relay import relay_tx
from quiesce.testing.clock import ManualClock

LEASE_MS: Final = 10_000
SETTINGS: Final = Settings(poll_ms=20, command_lease_ms=LEASE_MS, defer_ms=1_000, defer_ms_max=8_000, shutdown_ms=500)

DO: Final = Kind(name="do")
PASS: Final = Kind(name="pass", is_barrier=False)
STOP: Final = Kind(name="stop", overtakes=True)


class Ledger(LocalOwner):
    """A local owner: each accepted command adds one line to the store's outbox, in the admission's own transaction."""

    name: ClassVar[str] = "ledger"
    kinds: ClassVar[tuple[Kind, ...]] = (DO, PASS, STOP)

    def __init__(self) -> None:
        self.asked: list[EventId] = []
        self.refuses: Callable[[Command], str] = lambda command: ""
        self.breaks: Callable[[Command], bool] = lambda command: False
        self.inside: Callable[[Transaction, Command], None] = lambda tx, command: None
        self.follows: Callable[[Command], tuple[CommandRequest, ...]] = lambda command: ()
        self._lines = itertools.count(1)

    def decide(self, tx: Transaction, command: Command) -> Decision:
        self.asked.append(command.event_id)
        if reason := self.refuses(command):
            return rejected(reason)
        line = f"{command.event_id} {next(self._lines)}"
        body = canonical({"payload": parse(command.intent.payload), "event": command.event_id})
        tx.outbox.append(OutboxMessage.new(id=line, topic="ledger", run_id=RunId(""), body=body, created_at=tx.now))
        self.inside(tx, command)
        if self.breaks(command):
            raise ValueError("the ledger is torn")
        return accepted(line, stages=self.follows(command))


class Post(RemoteOwner):
    """A remote owner: a destination with a store of its own, behind a line that may be cut before or behind the effect."""

    name: ClassVar[str] = "post"
    kinds: ClassVar[tuple[Kind, ...]] = (DO, PASS, STOP)

    def __init__(self) -> None:
        self.calls: list[tuple[str, EventId]] = []
        self.receipts: dict[CommandKey, AdmissionReceipt] = {}
        self.effects: list[CommandKey] = []
        self.cut_before = False
        self.cut_behind = False
        self.is_unreadable = False
        self.proves_absence = False
        self.refuses_fence = False
        self.lands_later: list[Delivery] = []
        """Requests on their way that nobody waits for any more."""
        self.gate: Callable[[], Awaitable[None]] | None = None

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        self.calls.append(("read", command.event_id))
        if self.is_unreadable:
            raise TimeoutError("no answer")
        return self.receipts.get(command.key) or Absent(excludes_in_flight=self.proves_absence)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        self.calls.append(("admit", delivery.command.event_id))
        if self.refuses_fence:
            raise StaleClaim("a later fence was seen")
        if self.cut_before:
            self.lands_later.append(delivery)
            raise TimeoutError("no answer")
        if self.gate is not None:
            await self.gate()
        receipt = self.land(delivery)
        if self.cut_behind:
            raise ConnectionResetError("cut while the answer was on its way")
        return receipt

    def land(self, delivery: Delivery) -> AdmissionReceipt:
        """Let a request take effect, now or long after its sender died."""
        key = delivery.command.key
        if key not in self.receipts:
            self.effects.append(key)
            self.receipts[key] = a_receipt(delivery.command)
        return self.receipts[key]


def a_receipt(command: Command, verdict: Admission = Admission.ACCEPTED, reason: str = "") -> AdmissionReceipt:
    """A receipt as an owner elsewhere would give it."""
    return AdmissionReceipt(
        id=AdmissionId(f"receipt of {command.event_id}"),
        command_key=command.key,
        verdict=verdict,
        reason=reason,
        effect_ref="somewhere",
        at=command.accepted_at,
    )


class Channel:
    """A store, a clock, and deliverers over them; each deliverer is a worker of its own."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.ledger = Ledger()
        self.post = Post()
        self.env = self.environment()
        self._keys = itertools.count(1)

    def environment(
        self, *, limits: Limits = DEFAULT_LIMITS, crash: CrashPoints | None = None, settings: Settings = SETTINGS
    ) -> Environment:
        """An environment of a process of its own."""
        return Environment(
            store=self.store,
            clock=self.clock,
            entropy=SystemEntropy(),
            limits=limits,
            settings=settings,
            crash=crash or CrashPoints(),
        )

    def worker(self, *owners: Owner, env: Environment | None = None) -> Deliverer:
        """Another worker; it knows both owners unless told which."""
        return Deliverer(env or self.env, owners or (self.ledger, self.post))

    def request(
        self, target: str = "t", owner: str = "ledger", *, kind: Kind = DO, key: str = "", **more: object
    ) -> CommandRequest:
        """A command to one of the owners, with a key of its own."""
        key = key or f"key-{next(self._keys)}"
        wanted = CommandRequest(
            kind=kind,
            target=Target(owner=owner, id=target),
            producer="test",
            producer_key=key,
            subject="ada",
            payload={"key": key},
        )
        return replace(wanted, **more)  # type: ignore[arg-type]

    async def stage(self, wanted: CommandRequest | None = None, *, env: Environment | None = None) -> Intent:
        """Stage a command in a transaction of its own."""
        return (await self.staging(wanted or self.request(), env=env)).intent

    async def staging(self, wanted: CommandRequest, *, env: Environment | None = None) -> Staged:
        """The same, with the whole answer."""
        env = env or self.env
        intent_id = IntentId(env.new_id())
        return await self.store.transact(lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=env.limits))

    async def quiesce(self, worker: Deliverer | None = None, passes: int = 200) -> None:
        """Relay and deliver until nothing is due."""
        worker = worker or self.worker()
        for _ in range(passes):
            if not await worker.pass_once():
                return
        raise AssertionError("deliveries do not come to rest")

    async def command(self, intent: Intent) -> Command:
        """The command that an intent became."""
        found = await self.store.read(lambda tx: tx.commands.of_intent(intent.id))
        assert found is not None, "not relayed"
        return found

    async def settlement(self, intent: Intent) -> Settlement | None:
        """How its delivery was settled."""
        event_id = (await self.command(intent)).event_id
        return await self.store.read(lambda tx: tx.commands.settlement(event_id))

    async def history(self, intent: Intent) -> list[HistoryEvent]:
        """What happened to its delivery."""
        event_id = (await self.command(intent)).event_id
        lines = await self.store.read(lambda tx: tx.commands.history(event_id, limit=1000))
        return [line.what for line in lines]

    async def effects(self) -> list[object]:
        """The payloads of the ledger's effects, in the order in which they took place."""
        lines = await self.store.read(lambda tx: tx.outbox.pending(limit=100_000))
        return [parse(line.body) for line in lines if line.topic == "ledger"]

    async def keys_done(self) -> list[str]:
        """The producer keys of the ledger's effects, in their order."""
        return [str(effect["payload"]["key"]) for effect in await self.effects()]  # type: ignore[index]

    async def used(self, scope: str = "default") -> int:
        """How many places of a scope are taken."""
        room = await self.store.read(lambda tx: tx.intents.capacity("local", scope))
        return 0 if room is None else room.used

    async def claim(self, owner: Owner | None = None) -> list[Command]:
        """Claim what is due, as a worker that then does nothing."""
        owners: list[Owner] = [owner] if owner else [self.ledger, self.post]
        consumers = [(o.name, k.name, k.version) for o in owners for k in o.kinds]
        worker_id = WorkerId(self.env.new_id())
        claimed = await self.store.transact(
            lambda tx: claim_commands_tx(tx, self.env, worker_id, consumers, limit=64, after=None)
        )
        return claimed.commands

    async def relay(self) -> int:
        """Relay what is due."""
        return await self.store.transact(lambda tx: relay_tx(tx, self.env, limit=1000))


async def gathered(*work: Awaitable[object]) -> list[object]:
    """Run side by side; exceptions are values."""
    return list(await asyncio.gather(*work, return_exceptions=True))
