"""Where the explorer holds deliveries up: before each transaction and each call of an owner, one gate.

The deliverers are the real ones. Whatever one of them is about to do next waits at a gate until the explorer lets it go on,
and with which trouble; a worker that dies never comes back from its gates. Between two gates everything stands still, so the
explorer may look at a whole world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeVar

from quiesce.domain.commands import Kind
from quiesce.domain.deliveries import Absent, Admission, AdmissionReceipt, Claim, Command, CommandKey
from quiesce.domain.errors import AdmissionRolledBack, StaleClaim, StoreUnavailable
from quiesce.domain.ids import Fence
from quiesce.domain.writes import Counters, RunWrite, WriteOutcome
from quiesce.ports.notifier import Notifier
from quiesce.ports.store import Capabilities, Store, Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Delivery, RemoteOwner
from tests.channel.kit import DO, PASS, STOP, Ledger, a_receipt

T = TypeVar("T")

TRANSACTION: Final = "transaction"
READ: Final = "read"
DECIDE: Final = "decide"
SEND: Final = "send"

WELL: Final = "well"
TROUBLES: Final = {
    TRANSACTION: ("fails before", "fails behind"),
    READ: ("cut", "answers for another"),
    DECIDE: ("rejects", "raises", "cut before", "cut behind", "lasts"),
    SEND: ("rejects", "rolled back", "refuses", "lost", "stuck", "cut behind", "answers for another"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """Something that a worker is about to do, and the claim under which it does."""

    worker: int
    what: str
    claim: Claim | None
    owner: str
    task: asyncio.Task[object]
    go: asyncio.Future[str]


class Gates:
    """All gates of a world, and what is under way behind them."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.acting: Waiting | None = None
        self.busy: set[asyncio.Future[None]] = set()
        self._claims: dict[asyncio.Task[object], tuple[Claim, str]] = {}

    async def wait(self, worker: int, what: str, command: Command | None = None) -> str:
        """Wait until the explorer lets this go on; return how it goes."""
        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        if command is not None and command.claim is not None:
            self._claims[task] = (command.claim, command.target.owner)
        claim, owner = self._claims.get(task, (None, ""))
        go: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        me = Waiting(worker=worker, what=what, claim=claim, owner=owner, task=task, go=go)
        self.waiting.append(me)
        return await go

    async def let_go(self, one: Waiting, how: str) -> None:
        """Let one go on until it waits again or is done, and the world stands still."""
        self.waiting.remove(one)
        self.acting = one
        one.go.set_result(how)
        await self.still()

    async def kill(self, tasks: list[asyncio.Task[object]]) -> None:
        """End what these would have done next."""
        self.waiting = [one for one in self.waiting if one.task not in tasks]
        for task in tasks:
            task.cancel()
        await self.still()

    async def still(self) -> None:
        """Wait until everything waits at a gate or is done: no transaction is under way, and a few turns bring nothing new."""
        while True:
            for _ in range(8):
                await asyncio.sleep(0)
            if not self.busy:
                return
            await asyncio.wait(set(self.busy))


class GatedStore:
    """A worker's way to the store: each transaction waits at a gate, and may fail before or behind its commit."""

    def __init__(self, inner: Store, gates: Gates, worker: int) -> None:
        self._inner = inner
        self._gates = gates
        self._worker = worker

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def counters(self) -> Counters:
        return self._inner.counters

    @property
    def notifier(self) -> Notifier:
        return self._inner.notifier

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        how = await self._gates.wait(self._worker, TRANSACTION)
        if how == "fails before":
            raise StoreUnavailable("the store is away")
        value = await self._open(fn)
        if how == "fails behind":
            raise StoreUnavailable("whether this was committed is open")
        return value

    async def _open(self, fn: Callable[[Transaction], T]) -> T:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.busy.add(done)
        try:
            return await self._inner.transact(fn)
        finally:
            self._gates.busy.discard(done)
            done.set_result(None)

    def transact_blocking(self, fn: Callable[[Transaction], T]) -> T:
        return self._inner.transact_blocking(fn)

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        return await self._open(fn)

    async def write(self, write: RunWrite) -> WriteOutcome:
        return await self._inner.write(write)

    async def close(self) -> None:
        await self._inner.close()


class OpenStore(GatedStore):
    """The same way to the store without gates: what the owner's own gate has let through already."""

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        return await self._open(fn)


class Desk(Ledger):
    """A worker's way to the local owner."""

    def __init__(self, gates: Gates, worker: int, straight: Environment, lasts: Callable[[], None]) -> None:
        super().__init__()
        self._gates = gates
        self._worker = worker
        self._straight = straight
        self._lasts = lasts

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        if await self._gates.wait(self._worker, READ, command) == "cut":
            raise StoreUnavailable("the store is away")
        return await super().read_receipt(self._straight, command)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        how = await self._gates.wait(self._worker, DECIDE, delivery.command)
        if how == "cut before":
            raise StoreUnavailable("the store is away")
        self.refuses = lambda command: "no" if how == "rejects" else ""
        self.breaks = lambda command: how == "raises"
        self.inside = lambda tx, command: self._lasts() if how == "lasts" else None
        receipt = await super().admit(self._straight, delivery)
        if how == "cut behind":
            raise StoreUnavailable("whether this was committed is open")
        return receipt


class Destination:
    """A service far away: it outlives every worker, and requests reach it whenever they like."""

    def __init__(self, *, proves: bool, dedupes: bool) -> None:
        self.proves = proves
        self.dedupes = dedupes
        self.receipts: dict[CommandKey, AdmissionReceipt] = {}
        self.effects: list[CommandKey] = []
        self.on_the_way: list[tuple[Delivery, str]] = []
        self._asked: dict[CommandKey, Fence] = {}

    def ask(self, command: Command) -> AdmissionReceipt | Absent:
        """Read a receipt. One that proves absence remembers who asked, and refuses whoever comes under an earlier fence."""
        self._see(command.key, command.fence)
        return self.receipts.get(command.key) or Absent(excludes_in_flight=self.proves)

    def land(self, delivery: Delivery, how: str = WELL) -> AdmissionReceipt:
        """Let a request arrive, now or long after its sender died."""
        key = delivery.command.key
        if self.proves and delivery.claim.fence < self._asked.get(key, 0):
            raise StaleClaim("a later fence has asked")
        if self.dedupes and key in self.receipts:
            return self.receipts[key]
        if how == "rejects":
            return self.receipts.setdefault(key, a_receipt(delivery.command, Admission.REJECTED, "no"))
        self.effects.append(key)
        return self.receipts.setdefault(key, a_receipt(delivery.command))

    def _see(self, key: CommandKey, fence: Fence) -> None:
        self._asked[key] = max(self._asked.get(key, fence), fence)


class Wire(RemoteOwner):
    """A worker's way to a destination."""

    name: ClassVar[str] = "post"
    kinds: ClassVar[tuple[Kind, ...]] = (DO, PASS, STOP)

    def __init__(self, gates: Gates, worker: int, destination: Destination) -> None:
        self._gates = gates
        self._worker = worker
        self._destination = destination

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        how = await self._gates.wait(self._worker, READ, command)
        if how == "cut":
            raise TimeoutError("no answer")
        answer = self._destination.ask(command)
        return answer if how == WELL else _for_another(a_receipt(command))

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        match how := await self._gates.wait(self._worker, SEND, delivery.command):
            case "rolled back":
                raise AdmissionRolledBack("could not decide")
            case "refuses":
                raise StaleClaim("not under this claim")
            case "lost":
                raise TimeoutError("no answer")
            case "stuck":
                self._destination.on_the_way.append((delivery, WELL))
                raise TimeoutError("no answer")
        receipt = self._destination.land(delivery, how)
        if how == "cut behind":
            raise ConnectionResetError("cut while the answer was on its way")
        return _for_another(receipt) if how == "answers for another" else receipt


def _for_another(receipt: AdmissionReceipt) -> AdmissionReceipt:
    return replace(receipt, command_key=CommandKey("control:another"))


class Vault(Wire):
    """The same, to one that proves absence."""

    name: ClassVar[str] = "vault"
