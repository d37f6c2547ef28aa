"""The deliverer: relays what is due, claims commands its owners understand, and brings each to its owner.

Per command always the same: read the owner's receipt; settle from it; or, only if absence is proven and no admission may be
in flight, write the mark ahead, let the owner admit, settle from its answer (CC-39). What cannot be read is put off, what
cannot be known stays unknown. Leader-free: any number of deliverers work side by side, and one that dies leaves nothing
that another would not find.

Decides nothing itself: `domain.deliveries.next_step` does, in `deliveries.act_tx`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from quiesce.domain.deliveries import Absent, AdmissionReceipt, Claim, Command, EventId, Reading, Step, Unreadable
from quiesce.domain.errors import AdmissionRolledBack, InvalidInput, StaleClaim, StoreError, required
from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant, elapsed_ms
from quiesce.ports.commands import Consumer, ScopeKey
from quiesce.ports.notifier import COMMANDS
from quiesce.ports.store import Transaction
from quiesce.runtime.deliveries import (
    act_tx,
    answered_tx,
    claim_commands_tx,
    release_claims_tx,
    renew_claims_tx,
    unanswered_tx,
    undone_tx,
)
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Delivery, Owner
from quiesce.runtime.relay import relay_tx

log = logging.getLogger("quiesce.deliverer")


@dataclass(slots=True)
class DelivererState:
    """What a deliverer has done, for people and tests. Says nothing of effects."""

    relayed: int = 0
    claimed: int = 0
    lost: int = 0
    broken: int = 0
    steps: dict[Step, int] = field(default_factory=dict)


class Deliverer:
    """Delivers commands to the given owners until closed."""

    def __init__(self, env: Environment, owners: Sequence[Owner], *, name: str = "deliverer") -> None:
        """Raise `InvalidInput` if two owners have one name."""
        self._env = env
        self._owners = {owner.name: owner for owner in owners}
        if len(self._owners) < len(owners):
            raise InvalidInput(field="owners", value=[owner.name for owner in owners], rule="must have different names")
        self._consumers: list[Consumer] = [(o.name, k.name, k.version) for o in owners for k in o.kinds]
        self._worker_id = WorkerId(f"{name}:{env.new_id()}")
        self._under_way: dict[EventId, Claim] = {}
        self._deliveries: set[asyncio.Task[None]] = set()
        self._after: ScopeKey | None = None
        self._loops: list[asyncio.Task[None]] = []
        self.state = DelivererState()

    async def start(self) -> None:
        """Begin to relay and deliver."""
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._attend(), name="deliver"), loop.create_task(self._keep(), name="keep claims")]

    async def close(self) -> None:
        """Claim nothing more, let what is under way end for a while, and hand back the rest. Idempotent."""
        await _ended(self._loops[:1])
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=self._env.settings.shutdown_ms / 1000)
        await _ended([*self._deliveries, *self._loops[1:]])
        self._loops = []
        if self._under_way:
            claims, self._under_way = self._under_way, {}
            with contextlib.suppress(StoreError):
                await self._env.store.transact(lambda tx: release_claims_tx(tx, claims))

    async def pass_once(self) -> int:
        """Relay and claim one batch, and deliver it; return how many intents and commands were dealt with."""
        dealt = await self._relay() + await self._claim()
        if self._deliveries:
            await asyncio.wait(set(self._deliveries))
        return dealt

    async def _relay(self) -> int:
        limit = self._env.limits.command_batch_max
        relayed = await self._env.store.transact(lambda tx: relay_tx(tx, self._env, limit=limit))
        self.state.relayed += relayed
        if relayed:
            self._env.crash.reach("relay.after")
        return relayed

    async def _claim(self) -> int:
        """Claim as many as there is room for, and begin to deliver them; return how many were dealt with.

        Those that were only closed count: behind each of them another may have become claimable.
        """
        env, after = self._env, self._after
        limit = min(env.settings.deliveries - len(self._deliveries), env.limits.command_batch_max)
        if not self._consumers or limit <= 0:
            return 0
        claimed = await env.store.transact(
            lambda tx: claim_commands_tx(tx, env, self._worker_id, self._consumers, limit=limit, after=after)
        )
        commands = claimed.commands
        if commands:
            env.crash.reach("delivery.claimed")
        scopes = list(dict.fromkeys((c.intent.tenant, c.intent.scope) for c in commands))
        self._after = scopes[-1] if scopes else None
        for command in commands:
            self._under_way[command.event_id] = required(command.claim, "a claimed command has its claim")
            task = asyncio.get_running_loop().create_task(self._deliver(command), name=f"delivery {command.event_id}")
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)
        self.state.claimed += len(commands)
        return len(commands) + claimed.put_aside

    async def _deliver(self, command: Command) -> None:
        """Bring one command as far as it goes. Any trouble leaves it to whoever claims it next: its claim is kept no longer."""
        env = self._env
        owner = self._owners[command.target.owner]
        try:
            reading = await self._read(owner, command)
            env.crash.reach("delivery.read")
            step, marked = await env.store.transact(lambda tx: act_tx(tx, env, command, reading))
            self._count(step)
            if step is Step.ADMIT:
                env.crash.reach("delivery.started")
                await self._admit(owner, marked)
            else:
                env.crash.reach("delivery.acted")
        except StoreError as error:
            log.warning("delivery put off", extra={"action": "delivery_put_off", "code": error.code})
        except Exception:  # a fault of ours or of an owner: one delivery is left to its lease, the others go on
            self.state.broken += 1
            log.exception("delivery broken off", extra={"action": "delivery_broken_off", "event_id": command.event_id})
        self._under_way.pop(command.event_id, None)
        self._env.store.notifier.ring(COMMANDS)

    async def _read(self, owner: Owner, command: Command) -> Reading:
        try:
            answer = await owner.read_receipt(self._env, command)
            return answer if isinstance(answer, Absent) else _receipt_of(command, answer)
        except Exception as error:  # noqa: BLE001 - whatever an owner raises: it could not tell
            log.warning("receipt unreadable", extra={"action": "receipt_unreadable", "owner": owner.name})
            return Unreadable(why=f"receipt unreadable: {type(error).__name__}")

    async def _admit(self, owner: Owner, command: Command) -> None:
        """Let the owner decide, and settle from its answer; what it leaves open stays unknown."""
        env = self._env
        claim = required(command.claim, "an admission begins under a claim")
        try:
            receipt = _receipt_of(command, await owner.admit(env, Delivery(command=command, claim=claim)))
        except StaleClaim:
            self.state.lost += 1
            return
        except AdmissionRolledBack as error:
            why = error.message
            await env.store.transact(lambda tx: undone_tx(tx, env, command, why))
            return
        except Exception as error:  # noqa: BLE001 - whatever an owner raises else: it may have taken effect
            why = f"the answer of the admission was lost: {type(error).__name__}"
            await env.store.transact(lambda tx: unanswered_tx(tx, env, command, why))
            return
        env.crash.reach("delivery.admitted")
        settled = await env.store.transact(lambda tx: answered_tx(tx, command, receipt))
        env.crash.reach("delivery.settled")
        if settled is None:
            self.state.lost += 1

    def _count(self, step: Step | None) -> None:
        if step is None:
            self.state.lost += 1
        else:
            self.state.steps[step] = self.state.steps.get(step, 0) + 1

    async def _attend(self) -> None:
        """Relay and deliver what is due, on every ring and on every poll. Where nothing is due, nothing is written."""
        while True:
            bell = self._env.store.notifier.bell(COMMANDS)
            try:
                due_ms = await self._env.store.read(_due_ms)
                is_due = due_ms is not None and due_ms <= 0
                if not (is_due and await self._relay() + await self._claim()):
                    poll_ms = float(self._env.settings.poll_ms)
                    await bell.wait(poll_ms if due_ms is None or is_due else min(poll_ms, max(1.0, due_ms)))
            except StoreError as error:
                log.warning("store trouble", extra={"action": "store_trouble", "code": error.code})
                await self._env.clock.sleep(self._env.settings.poll_ms)
            finally:
                bell.close()

    async def _keep(self) -> None:
        """Extend the claims of what is still being delivered."""
        while True:
            await self._env.clock.sleep(self._env.settings.command_lease_ms / 4)
            if not self._under_way:
                continue
            renew = partial(renew_claims_tx, claims=dict(self._under_way), lease_ms=self._env.settings.command_lease_ms)
            try:
                lost = await self._env.store.transact(renew)
            except StoreError:
                continue  # the next beat tries again; whether a claim held is judged by the store
            for event_id in lost:
                self._under_way.pop(event_id, None)


def _due_ms(tx: Transaction) -> float | None:
    """Return how long it is until an intent or a command is due, below zero for one that is; None if there is none."""
    due_at = tx.commands.next_due(now=Instant(0))
    return None if due_at is None else elapsed_ms(tx.now, due_at)


def _receipt_of(command: Command, answer: object) -> AdmissionReceipt:
    """Return an owner's answer. Raises `InvalidInput` for what is no receipt of this command: then nothing is known."""
    if not isinstance(answer, AdmissionReceipt) or answer.command_key != command.key:
        raise InvalidInput(field="receipt", value=type(answer).__name__, rule=f"is not the receipt of {command.key}")
    return answer


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
