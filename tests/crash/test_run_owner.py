"""A process dies while it brings a command to a run, or while the run takes what came, by SIGKILL; another one goes on.

The effect is judged by the run itself: one accepted end with its one receipt, one value taken, one correction applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from quiesce.bootstrap import make_environment
from quiesce.domain.commands import Intent
from quiesce.domain.deliveries import Command, CommandStatus, Settlement
from quiesce.domain.errors import required
from quiesce.domain.ids import RunId
from quiesce.domain.mailbox import EntryStatus
from quiesce.domain.runs import RunStatus
from quiesce.ports.store import Transaction
from quiesce.runtime.codec import encode
from quiesce.runtime.correction_owner import correct_command
from quiesce.runtime.run_owner import cancel_command, wake_command
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from tests.crash.world import SIGKILLED, World

T = TypeVar("T")


def control(world: World, fn: Callable[[ControlService], Awaitable[T]]) -> T:
    """Do something to a world from here, while no process of it is looked at."""

    async def do() -> T:
        env = await make_environment(world.url)
        try:
            return await fn(ControlService(env))
        finally:
            await env.store.close()

    return asyncio.run(do())


def read(world: World, fn: Callable[[Transaction], T]) -> T:
    return control(world, lambda service: service._env.store.read(fn))


def submitted(world: World) -> RunId:
    wanted = Submission(agent="listener", input=encode({"args": [], "kwargs": {}}, field="input"), bindings=b"{}", key="one")
    return control(world, lambda service: service.submit(wanted)).id


def delivery(world: World, intent: Intent) -> tuple[Command, Settlement | None]:
    def look(tx: Transaction) -> tuple[Command, Settlement | None]:
        command = required(tx.commands.of_intent(intent.id), "relayed")
        return command, tx.commands.settlement(command.event_id)

    return read(world, look)


@pytest.mark.req("CC-68", "CC-69", "CC-22", "CC-47", "CC-63", "RR-29", "C71")
@pytest.mark.parametrize(
    ("point", "is_admitted"),
    [
        ("delivery.claimed", False),
        ("delivery.started", False),
        ("admission.inside", False),
        ("delivery.admitted", True),
        ("delivery.settled", True),
    ],
)
def test_a_staged_cancel_takes_effect_once_wherever_its_deliverer_dies(world: World, point: str, is_admitted: bool) -> None:
    run_id = submitted(world)
    stop = cancel_command(run_id, reason="enough", producer="desk", producer_key="stop", subject="ada")
    intent = control(world, lambda service: service.stage(stop)).intent
    assert world.process("deliver_to_runs", crash_at=point).wait() == SIGKILLED, world.logs()
    before = read(world, lambda tx: tx.terminal.occurrence(run_id))
    assert (before is not None) is is_admitted, "what the run knows, whatever the delivery's state is"
    command, settlement = delivery(world, intent)
    assert (settlement is not None) is (point == "delivery.settled")
    assert world.process("deliver_to_runs").wait() == 0, world.logs()
    receipt = control(world, lambda service: service.wait(run_id, timeout_ms=30_000))
    command, settlement = delivery(world, intent)
    assert settlement is not None
    assert command.status is CommandStatus.SETTLED
    assert settlement.receipt.effect_ref == f"occurrence {receipt.occurrence_id}"
    assert settlement.fence == (1 if point == "delivery.settled" else 2)
    assert (receipt.status, receipt.reason_text, receipt.never_started) == (RunStatus.CANCELLED, "enough", True)
    after = required(read(world, lambda tx: tx.terminal.occurrence(run_id)), "it has ended")
    assert after.command_key == settlement.receipt.command_key
    assert before in (None, after)
    assert world.lines("effects.jsonl") == []


@pytest.mark.req("C13", "C06", "CC-68", "RR-09", "RR-10")
@pytest.mark.parametrize("point", ["intake.before:1", "intake.before:2", "intake.after:1", "intake.after:2", "delivery.admitted"])
def test_what_reaches_a_run_is_taken_once_wherever_a_process_dies(world: World, point: str) -> None:
    run_id = submitted(world)

    async def tell(service: ControlService) -> None:
        await service.stage(correct_command(run_id, "in French", producer="desk", producer_key="c", subject="ada"))
        await service.stage(wake_command(run_id, "order-7", {"paid": 7}, producer="desk", producer_key="w", subject="ada"))

    control(world, tell)
    dies_in_delivery = point.startswith("delivery.")
    code = world.process("deliver_to_runs", crash_at=point if dies_in_delivery else "").wait()
    assert code == (SIGKILLED if dies_in_delivery else 0), world.logs()
    if dies_in_delivery:
        assert world.process("deliver_to_runs").wait() == 0, world.logs()
    else:
        assert world.work(crash_at=point) == SIGKILLED, world.logs()
    assert world.recover() == 0
    assert control(world, lambda service: service.result(run_id)) == ["in French", {"paid": 7}, []]
    entries = control(world, lambda service: service.mailbox(run_id))
    assert {e.name for e in entries} == {"", "order-7"}
    assert [e.status for e in entries] == [EntryStatus.APPLIED] * 2
    assert {e.position for e in entries} == {"1", "3"}
    assert len(world.lines("effects.jsonl")) == 1
