"""Clients that leave: nothing by default; where the run has asked for it an end after the grace, which no stop is taken for."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pytest

from quiesce import Quiesce, Run, agent
from quiesce.domain.boundary import ActorKind, Cause, Reason
from quiesce.domain.canonical import canonical
from quiesce.domain.deliveries import Admission, Command
from quiesce.domain.disconnects import DisconnectPolicy, OnDisconnect
from quiesce.domain.errors import IdempotencyConflict, InvalidInput, NotFound, StoreUnavailable
from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus
from quiesce.ports.store import Store, Transaction
from quiesce.runtime.codec import encode
from quiesce.runtime.disconnects import CLIENT_LEFT, attend_tx, attending
from quiesce.runtime.environment import Settings
from quiesce.runtime.run_owner import RunOwner
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.testing.clock import ManualClock
from tests.channel.conftest import _open, channel
from tests.channel.kit import Channel
from tests.runtime.kit import eventually, within
from tests.runtime.line import Line
from tests.stores.meeting import Holding, until_somebody_waits

__all__ = ["channel"]
T = TypeVar("T")
GRACE_MS: Final = 30_000
LEAVES: Final = DisconnectPolicy(on_disconnect=OnDisconnect.CANCEL, grace_ms=GRACE_MS)


class World:
    """A channel with a run in it whose client may leave."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.env = channel.env
        self.service = ControlService(channel.env)

    async def submit(self, policy: DisconnectPolicy = LEAVES, key: str | None = None) -> RunId:
        wanted = Submission(
            agent="any",
            input=encode({"args": [], "kwargs": {}}, field="input"),
            bindings=canonical({}),
            disconnect=policy,
            key=key,
        )
        return (await self.service.submit(wanted)).id

    async def attend(self, run_id: RunId, known: int = 0) -> tuple[int, int] | None:
        return await self.env.store.transact(lambda tx: attend_tx(tx, self.env, run_id, tenant="local", known=known))

    async def passes(self, duration_ms: float) -> None:
        """Let time pass, and deliver what is due then."""
        self.channel.clock.advance(duration_ms)
        await self.channel.quiesce(self.channel.worker(RunOwner(self.env)))

    async def status(self, run_id: RunId) -> RunStatus:
        return (await self.service.get(run_id)).status

    async def is_there(self, run_id: RunId, number: int) -> bool:
        """Whether a run has had a timer of this number."""
        key = f"{run_id}:{number}"
        return await self.env.store.read(lambda tx: tx.intents.by_key("local", "quiesce.disconnect", key)) is not None

    async def renewed(self, run_id: RunId, number: int) -> None:
        """Wait until whoever attends has renewed so often, and waits for its next beat."""
        await eventually(lambda: self.is_there(run_id, number))
        await eventually(lambda: _is_true(self.channel.clock.sleepers > 0))

    async def timer(self, run_id: RunId, number: int) -> Command:
        """The command that a timer of a run became."""
        intent = await self.env.store.read(lambda tx: tx.intents.by_key("local", "quiesce.disconnect", f"{run_id}:{number}"))
        assert intent is not None
        return await self.channel.command(intent)

    async def refusal(self, run_id: RunId, number: int) -> str:
        """Why a timer that came was refused."""
        command = await self.timer(run_id, number)
        receipt = await self.env.store.read(lambda tx: tx.admissions.get(command.key))
        assert receipt is not None
        assert receipt.verdict is Admission.REJECTED
        return receipt.reason


class Failing(Line):
    """A connection over which decisions may fail."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.fails = False
        self.failed = 0

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        if self.fails:
            self.failed += 1
            raise StoreUnavailable("injected")
        return await super().transact(fn)

    async def has_failed(self, count: int) -> bool:
        return self.failed >= count


@pytest.fixture
def world(channel: Channel) -> World:
    return World(channel)


@pytest.mark.req("ST-06", "ST-09", "ST-10", "C35", "G-06")
async def test_a_run_that_asked_for_it_ends_when_its_client_does_not_come_and_nobody_has_pressed_stop(world: World) -> None:
    run_id = await world.submit()
    await world.passes(GRACE_MS - 1)
    assert await world.status(run_id) is RunStatus.PENDING
    await world.passes(1)
    receipt = await world.service.receipt(run_id)
    assert (receipt.cause, receipt.reason) == (Cause.TRANSPORT_INTERRUPTED, Reason.CLIENT_LEFT)
    assert (receipt.actor.kind, receipt.actor.name) == (ActorKind.SERVICE, "on_disconnect")
    assert "on_disconnect=cancel" in receipt.reason_text
    assert receipt.policy.rule == "R9", "an interrupted transport is judged by its own rules"


@pytest.mark.req("ST-06", "ST-07", "ST-08", "ST-10")
async def test_by_default_a_client_that_is_gone_changes_nothing(world: World) -> None:
    run_id = await world.submit(DisconnectPolicy())
    async with attending(world.env, run_id):
        pass
    assert await world.attend(run_id) is None
    await world.passes(100 * GRACE_MS)
    assert await world.status(run_id) is RunStatus.PENDING
    assert await world.channel.used("disconnect") == 0, "it costs nothing either"


@pytest.mark.req("ST-06", "C35")
async def test_while_a_client_is_there_the_run_goes_on_and_after_it_left_the_grace_counts(world: World) -> None:
    run_id = await world.submit()
    number = 0
    for _ in range(10):
        await world.passes(GRACE_MS * 2 / 3)
        answer = await world.attend(run_id, number)
        assert answer == (number + 1, GRACE_MS)
        number += 1
        assert await world.channel.used("disconnect") == 1, "one timer, whatever came before"
    await world.passes(GRACE_MS - 1)
    assert await world.status(run_id) is RunStatus.PENDING
    await world.passes(1)
    assert (await world.service.receipt(run_id)).reason is Reason.CLIENT_LEFT
    assert await world.attend(run_id, number) is None


@pytest.mark.req("ST-10", "C35", "G-06")
async def test_a_client_that_comes_back_within_the_grace_annuls_it_even_when_the_timer_is_on_its_way(world: World) -> None:
    run_id = await world.submit()
    await world.attend(run_id)
    world.channel.clock.advance(GRACE_MS)
    assert await world.channel.relay() == 1
    assert await world.attend(run_id) == (2, GRACE_MS), "from any process: it needs to know nothing"
    await world.passes(0)
    assert await world.refusal(run_id, 1) == "a client was there since"
    assert await world.status(run_id) is RunStatus.PENDING


@pytest.mark.req("ST-06", "C35")
async def test_of_two_clients_the_last_to_leave_counts(world: World) -> None:
    run_id = await world.submit()
    leaves, stays = await world.attend(run_id), await world.attend(run_id)
    assert (leaves, stays) == ((1, GRACE_MS), (2, GRACE_MS))
    await world.passes(GRACE_MS - 1)
    assert await world.attend(run_id, 2) == (3, GRACE_MS)
    await world.passes(GRACE_MS - 1)
    assert await world.status(run_id) is RunStatus.PENDING
    assert await world.attend(run_id, 1) == (4, GRACE_MS), "and one that was away may come back"


@pytest.mark.req("C35", "ST-10")
async def test_when_deliveries_stood_still_the_clients_get_their_grace_again(world: World) -> None:
    run_id = await world.submit()
    await world.passes(2 * GRACE_MS + 1)
    assert "the clients get it again" in await world.refusal(run_id, 0)
    assert await world.status(run_id) is RunStatus.PENDING
    await world.passes(GRACE_MS)
    assert (await world.service.receipt(run_id)).reason is Reason.CLIENT_LEFT


@pytest.mark.req("ST-09", "C35")
async def test_a_stop_stays_a_stop_whether_or_not_the_client_leaves_then(world: World) -> None:
    run_id = await world.submit()
    await world.service.cancel(run_id, reason="enough")
    receipt = await world.service.wait(run_id)
    await world.passes(GRACE_MS)
    assert await world.refusal(run_id, 0) == "already terminal: cancelled"
    assert await world.service.receipt(run_id) == receipt
    assert (receipt.cause, receipt.reason) == (Cause.EXPLICIT_CANCEL, Reason.USER_CANCEL)


@pytest.mark.req("ST-06", "ST-10")
async def test_a_client_that_comes_back_as_the_timer_is_decided_is_waited_for(postgres_url: str, postgres_server: str) -> None:
    clock = ManualClock()
    store = await asyncio.to_thread(_open, postgres_url, clock)
    world = World(Channel(store, clock))
    run_id = await world.submit()
    clock.advance(GRACE_MS)
    assert await world.channel.relay() == 1
    async with Holding(store, lambda tx: attend_tx(tx, world.env, run_id, tenant="local")):
        decided = asyncio.create_task(world.passes(0))
        await until_somebody_waits(postgres_server)
        assert not decided.done()
    await within(decided)
    assert await world.refusal(run_id, 0) == "a client was there since"
    assert await world.status(run_id) is RunStatus.PENDING
    await store.close()


async def test_among_many_numbers_a_newcomer_finds_the_newest(world: World) -> None:
    run_id = await world.submit()
    for number in range(1, 40):
        assert await world.attend(run_id, 0 if number % 7 == 0 else number - 1) == (number, GRACE_MS)


@pytest.mark.req("ST-06", "ST-08")
async def test_whoever_attends_renews_by_the_clock_and_stops_with_the_block(world: World) -> None:
    run_id = await world.submit()
    async with attending(world.env, run_id):
        for number in range(1, 8):
            await world.renewed(run_id, number)
            await world.passes(GRACE_MS / 3)
        await world.renewed(run_id, 8)
    await world.passes(GRACE_MS - 1)
    assert await world.status(run_id) is RunStatus.PENDING
    await world.passes(1)
    assert (await world.service.receipt(run_id)).reason is Reason.CLIENT_LEFT


@pytest.mark.req("ST-06", "ST-10")
async def test_a_renewal_that_does_not_reach_the_store_is_made_again(world: World) -> None:
    run_id = await world.submit()
    line = Failing(world.env.store)
    env = replace(world.env, store=line)
    async with attending(env, run_id):
        await world.renewed(run_id, 1)
        line.fails = True
        await world.passes(GRACE_MS / 3)
        await eventually(lambda: line.has_failed(1))
        line.fails = False
        await world.renewed(run_id, 1)
        await world.passes(GRACE_MS / 3)
        await world.renewed(run_id, 2)


@pytest.mark.req("ST-06")
async def test_an_attended_run_that_ends_is_left_in_peace(world: World) -> None:
    run_id = await world.submit()
    async with attending(world.env, run_id):
        await world.renewed(run_id, 1)
        await world.service.cancel(run_id)
        await world.passes(GRACE_MS / 3)
        await eventually(lambda: _is_true(not world.channel.clock.sleepers))
    assert not await world.is_there(run_id, 2)


@pytest.mark.req("ST-06", "CC-13")
async def test_the_policy_is_part_of_what_a_key_means(world: World) -> None:
    run_id = await world.submit(key="k")
    assert await world.submit(key="k") == run_id
    assert await world.channel.used("disconnect") == 1
    for other in (DisconnectPolicy(), replace(LEAVES, grace_ms=GRACE_MS + 1)):
        with pytest.raises(IdempotencyConflict):
            await world.submit(other, key="k")


@pytest.mark.req("ST-06")
async def test_what_cannot_be_is_refused_by_name(world: World) -> None:
    for grace_ms in (0, 999, 7 * 86_400_000 + 1):
        with pytest.raises(InvalidInput, match="disconnect_grace_ms"):
            await world.submit(replace(LEAVES, grace_ms=grace_ms))
    for policy in (LEAVES, DisconnectPolicy()):
        run_id = await world.submit(policy)
        with pytest.raises(NotFound):
            await world.env.store.transact(partial(attend_tx, env=world.env, run_id=run_id, tenant="other"))


@pytest.mark.req("CC-36", "ST-09")
async def test_nobody_else_can_say_that_a_client_has_left(world: World) -> None:
    run_id = await world.submit()
    timer = await world.env.store.read(lambda tx: tx.intents.by_key("local", "quiesce.disconnect", f"{run_id}:0"))
    assert timer is not None
    forged = world.channel.request(run_id, RunOwner.name, kind=CLIENT_LEFT, payload={"number": 0, "grace_ms": 1})
    intent = await world.channel.stage(forged)
    await world.passes(0)
    settlement = await world.channel.settlement(intent)
    assert settlement is not None
    assert settlement.receipt.reason == "a client's leaving is told by the run's own timer alone"
    assert await world.status(run_id) is RunStatus.PENDING


# -- with processes -----------------------------------------------------------------------------------------------------------


@agent
async def waits_long(run: Run) -> None:
    await run.emit("begun")
    await run.sleep(3_600_000)


CLIENT: Final = """
import asyncio, sys
from quiesce import Quiesce
from tests.readers.test_disconnects import waits_long

async def main():
    async with Quiesce(sys.argv[1], worker=False) as q:
        handle = await q.start(waits_long, on_disconnect="cancel", disconnect_grace_ms=1000)
        async with handle.attending():
            print(handle.id, flush=True)
            async for frame in handle.stream():
                pass

asyncio.run(main())
"""


@pytest.mark.req("ST-06", "ST-09", "ST-10", "C35", "ST-08")
async def test_when_the_clients_process_is_killed_its_run_ends_and_another_one_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    settings = Settings(poll_ms=20, sweep_ms=40, linger_ms=10, lease_ms=60_000)
    async with Quiesce(url, settings=settings, agents=[waits_long]) as q:
        other = await q.start(waits_long)
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, url, stdout=subprocess.PIPE)
        assert client.stdout is not None
        run_id = RunId((await within(client.stdout.readline())).decode().strip())
        client.kill()
        assert await within(client.wait()) == -signal.SIGKILL
        receipt = await within(q.service.wait(run_id))
        assert (receipt.cause, receipt.reason) == (Cause.TRANSPORT_INTERRUPTED, Reason.CLIENT_LEFT)
        assert await other.status() in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING)
        with pytest.raises(InvalidInput, match="on_disconnect"):
            await q.start(waits_long, on_disconnect="stop")


async def _is_true(value: bool) -> bool:
    return value
