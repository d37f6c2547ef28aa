"""What the processes of the channel's crash tests do: stage beside a fact of their own, deliver, supersede.

Two owners: `book`, local, whose effects are rows of the store itself; and `post`, remote, whose effects are lines in a file
of its own beside the store. A request to `post` may get stuck on its way, and is then delivered by hand, late.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from quiesce.domain.canonical import parse
from quiesce.domain.commands import IntentId, Kind, Target
from quiesce.domain.deliveries import Absent, Admission, AdmissionReceipt, Command, CommandStatus
from quiesce.domain.ids import RunId
from quiesce.domain.instant import after_ms
from quiesce.domain.publication import OutboxMessage
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest, stage_tx, supersede_tx
from quiesce.runtime.correction_owner import owners_of_runs
from quiesce.runtime.crashpoints import CrashPoints
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Decision, Delivery, LocalOwner, RemoteOwner, accepted, rejected
from quiesce.runtime.service import ControlService
from tests.crash.agents import DIRECTORY, append

DO: Final = Kind(name="do")
STRANGE: Final = Kind(name="do", version=2)
Job = Mapping[str, Any]


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def pause() -> None:
    """Stop this process until somebody lets it go on: its leases end meanwhile."""
    append("paused.jsonl", {"pid": os.getpid()})
    os.kill(os.getpid(), signal.SIGSTOP)


class Book(LocalOwner):
    """Writes each effect into the store, in the admission's own transaction."""

    name: ClassVar[str] = "book"
    kinds: ClassVar[tuple[Kind, ...]] = (DO,)

    def decide(self, tx: Transaction, command: Command) -> Decision:
        payload = parse(command.intent.payload)
        assert isinstance(payload, dict)
        if payload.get("refuse"):
            return rejected("not in this book")
        line = f"{command.event_id} {os.getpid()} {os.urandom(4).hex()}"
        tx.outbox.append(OutboxMessage.new(id=line, topic="book", run_id=RunId(""), body=b"{}", created_at=tx.now))
        return accepted(line)


class Post(RemoteOwner):
    """Keeps receipts in a file, locked while it is looked at: a destination that outlives its callers."""

    name: ClassVar[str] = "post"
    kinds: ClassVar[tuple[Kind, ...]] = (DO,)

    def __init__(self, job: Job) -> None:
        self._job = job

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        if self._job.get("unreadable"):
            raise TimeoutError("no answer")
        receipts = [AdmissionReceipt.from_json(row) for row in read_lines("receipts.jsonl")]
        found = [receipt for receipt in receipts if receipt.command_key == command.key]
        return found[0] if found else Absent(excludes_in_flight=False)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        request: dict[str, object] = {
            "key": delivery.command.key,
            "payload": parse(delivery.command.intent.payload),
            "at": env.clock.now(),
        }
        append("requests.jsonl", request)
        if self._job.get("stuck"):
            die()
        return land(request)


def land(request: Mapping[str, Any]) -> AdmissionReceipt:
    """Let a request reach the destination, whoever sent it and when."""
    with (Path(os.environ[DIRECTORY]) / "post.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for row in read_lines("receipts.jsonl"):
            if row["command_key"] == request["key"]:
                return AdmissionReceipt.from_json(row)
        refuse = bool(request["payload"].get("refuse"))
        receipt = {
            "admission_id": os.urandom(8).hex(),
            "command_key": request["key"],
            "verdict": str(Admission.REJECTED if refuse else Admission.ACCEPTED),
            "reason": "",
            "effect_ref": "",
            "at": request["at"],
        }
        if not refuse:
            append("posted.jsonl", {"key": request["key"]})
        append("receipts.jsonl", receipt)
        return AdmissionReceipt.from_json(receipt)


def read_lines(name: str) -> list[dict[str, Any]]:
    path = Path(os.environ[DIRECTORY]) / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wish(job: Job) -> CommandRequest:
    """Return the command that a job is about."""
    return CommandRequest(
        kind=DO,
        target=Target(owner=job["owner"], id="t"),
        producer="test",
        producer_key=job["key"],
        subject="ada",
        payload={"refuse": bool(job.get("refuse"))},
    )


async def stage_alone(_: Environment, service: ControlService, job: Job) -> int:
    """Have the service stage the command, beside no fact."""
    await service.stage(wish(job))
    return 0


async def stage(env: Environment, _: ControlService, job: Job) -> int:
    """Store a fact and stage the command that announces it, in one transaction; die where the job says."""
    if job.get("dies") == "before":
        die()

    def fact_and_command(tx: Transaction) -> None:
        fact = OutboxMessage.new(id=f"fact {job['key']}", topic="fact", run_id=RunId(""), body=b"{}", created_at=tx.now)
        tx.outbox.append(fact)
        due_at = after_ms(tx.now, job["due_ms"]) if job.get("due_ms") else None
        wanted = replace(wish(job), due_at=due_at)
        stage_tx(tx, wanted, intent_id=IntentId(env.new_id(tx.now)), limits=env.limits)
        if job.get("dies") == "inside":
            die()

    await env.store.transact(fact_and_command)
    if job.get("dies") == "after":
        die()
    append("staged.jsonl", {"key": job["key"]})
    return 0


async def deliver(env: Environment, _: ControlService, job: Job) -> int:
    """Relay and deliver until nothing is due any more, now or after any lease or deferral."""
    if "attempts_max" in job:
        env = replace(env, limits=replace(env.limits, command_attempts_max=job["attempts_max"]))
    if "pauses_at" in job:
        env = replace(env, crash=CrashPoints(job["pauses_at"], 1, lambda _: pause()))
    deliverer = Deliverer(env, [Book(), Post(job)])
    rest = (CommandStatus.SETTLED, CommandStatus.DISCARDED, CommandStatus.EXPIRED, CommandStatus.QUARANTINED)
    quiet = (*rest, CommandStatus.UNKNOWN) if job.get("leaves_unknown", True) else rest
    async with asyncio.timeout(40):
        while True:
            dealt = await deliverer.pass_once()
            counts = await env.store.read(lambda tx: tx.commands.counts("local"))
            if not dealt and not any(status not in quiet for status in counts):
                return 0
            if job.get("passes_once"):
                return 0
            await asyncio.sleep(0.02)


async def supersede(env: Environment, _: ControlService, job: Job) -> int:
    """Declare the target's next incarnation."""
    await env.store.transact(lambda tx: supersede_tx(tx, Target(owner=job["owner"], id="t"), 1))
    return 0


async def land_requests(_: Environment, __: ControlService, ___: Job) -> int:
    """Let every request that was ever sent reach the destination."""
    for request in read_lines("requests.jsonl"):
        land(request)
    return 0


async def deliver_to_runs(env: Environment, _: ControlService, __: Job) -> int:
    """Relay and deliver to the owners of runs until nothing is unfinished."""
    deliverer = Deliverer(env, owners_of_runs(env))
    async with asyncio.timeout(40):
        while True:
            dealt = await deliverer.pass_once()
            unfinished = await env.store.read(lambda tx: tx.commands.counts("local"))
            if not dealt and not unfinished:
                return 0
            await asyncio.sleep(0.02)


COMMANDS: Final = {
    "deliver_to_runs": deliver_to_runs,
    "stage": stage,
    "stage_alone": stage_alone,
    "deliver": deliver,
    "supersede": supersede,
    "land": land_requests,
}
