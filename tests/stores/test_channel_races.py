"""Two who do the same in the control channel at the same time: one wins, the other is told, and nothing is done twice.

On PostgreSQL the two transactions overlap and meet at a barrier in the middle. SQLite has one writer at a time: there two
stores, as of two processes, go for the same file at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from quiesce.domain.commands import Intent, IntentStatus, Target
from quiesce.domain.deliveries import Command, CommandStatus
from quiesce.domain.ids import WorkerId
from quiesce.domain.instant import Instant, after_ms
from quiesce.ports.store import Store, Transaction
from quiesce.testing.channel_samples import CORRECT, OWNER, ChannelSamples
from quiesce.testing.samples import TENANT
from tests.stores.meeting import BOUND_S, Holding, until_somebody_waits

T = TypeVar("T")
Open = Callable[[str], Awaitable[Store]]
CONSUMERS = [(OWNER, CORRECT.name, CORRECT.version)]
SCOPES = ("a", "b")
TARGETS = [Target(owner=OWNER, id=id_) for id_ in ("a", "b")]


@pytest.fixture
def make() -> ChannelSamples:
    return ChannelSamples()


@pytest.fixture
async def pair(url: str, opened: Open) -> tuple[Store, Store]:
    """Two stores on one place."""
    return await opened(url), await opened(url)


@pytest.fixture
async def store(postgres_url: str, opened: Open) -> Store:
    return await opened(postgres_url)


async def _at_once(
    pair: tuple[Store, Store], look: Callable[[Transaction], object], act: Callable[[Transaction, int], T]
) -> list[T]:
    """Run two decisions at once. Where transactions overlap, both have looked before either acts."""
    both_have_looked = threading.Barrier(2, timeout=BOUND_S)
    has_met = [False, False]

    def decide(number: int) -> Callable[[Transaction], T]:
        def fn(tx: Transaction) -> T:
            look(tx)
            if pair[0].capabilities.name == "postgres" and not has_met[number]:
                has_met[number] = True
                both_have_looked.wait()
            return act(tx, number)

        return fn

    return list(await asyncio.gather(*(store.transact(decide(number)) for number, store in enumerate(pair))))


def _newest(tx: Transaction) -> list[Command]:
    return tx.commands.page(tenant=TENANT, statuses=[], before=None, limit=9)[::-1]


async def _stage(store: Store, *intents: Intent) -> None:
    await store.transact(lambda tx: [tx.intents.insert(intent) for intent in intents])


async def _relay(store: Store, *commands: Command) -> None:
    await _stage(store, *(command.intent for command in commands))
    await store.transact(lambda tx: tx.commands.insert_many(commands))


def _claim(tx: Transaction, worker: str, now: Instant, limit: int = 10) -> list[Command]:
    found = tx.commands.claimable(CONSUMERS, now=now, limit=limit, after=None)
    taken = [command.taken(WorkerId(worker), after_ms(now, 60_000)) for command in found]
    tx.commands.save_many(taken)
    return taken


@pytest.mark.req("CC-12", "CC-13")
async def test_of_two_intents_under_one_key_one_is_stored(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    candidates = [make.intent(key="order-7") for _ in range(2)]

    def look(tx: Transaction) -> Intent | None:
        return tx.intents.by_key(TENANT, "console", "order-7")

    def act(tx: Transaction, number: int) -> tuple[bool, Intent | None]:
        return tx.intents.insert(candidates[number]), look(tx)

    answers = await _at_once(pair, look, act)
    assert sorted(added for added, _ in answers) == [False, True]
    assert answers[0][1] == answers[1][1]
    assert answers[0][1] in candidates


@pytest.mark.req("CC-12", "CC-20")
async def test_a_key_is_free_again_if_the_producer_that_was_waited_for_rolls_back(
    store: Store, make: ChannelSamples, postgres_server: str
) -> None:
    first, second = make.intent(key="k"), make.intent(key="k")

    async with Holding(store, lambda tx: tx.intents.insert(first), commits=False):
        waiting = asyncio.ensure_future(store.transact(lambda tx: tx.intents.insert(second)))
        await until_somebody_waits(postgres_server)
    assert await waiting
    assert await store.read(lambda tx: tx.intents.by_key(TENANT, "console", "k")) == second


@pytest.mark.req("CC-24", "CC-26", "CC-27")
@pytest.mark.parametrize("is_known", [False, True])
async def test_the_last_place_of_a_scope_goes_to_one(pair: tuple[Store, Store], is_known: bool) -> None:
    def take(tx: Transaction) -> bool:
        return tx.intents.take_place(TENANT, "s", overtakes=False, bound=1 + is_known, reserve=0)

    if is_known:
        assert await pair[0].transact(take)
    answers = await _at_once(pair, lambda tx: tx.intents.capacity(TENANT, "s"), lambda tx, _: take(tx))
    assert sorted(answers) == [False, True]
    room = await pair[0].read(lambda tx: tx.intents.capacity(TENANT, "s"))
    assert room is not None
    assert room.used == room.bound


@pytest.mark.req("CC-24")
async def test_a_place_given_back_while_another_waits_for_it_is_taken(store: Store, postgres_server: str) -> None:
    def take(tx: Transaction) -> bool:
        return tx.intents.take_place(TENANT, "s", overtakes=False, bound=1, reserve=0)

    assert await store.transact(take)
    async with Holding(store, lambda tx: tx.intents.give_back({(TENANT, "s"): 1})):
        waiting = asyncio.ensure_future(store.transact(take))
        await until_somebody_waits(postgres_server)
    assert await waiting


ORDERED: dict[str, Callable[[Transaction, Sequence[int]], object]] = {
    "places": lambda tx, numbers: tx.intents.give_back({(TENANT, SCOPES[n]): 1 for n in numbers}),
    "targets": lambda tx, numbers: tx.commands.lock_targets([TARGETS[n] for n in numbers]),
    "commands": lambda tx, numbers: tx.commands.lock_many([_newest(tx)[n].event_id for n in numbers]),
}


@pytest.mark.req("CC-18", "CC-24")
@pytest.mark.parametrize("kind", ORDERED)
async def test_rows_are_locked_by_ascending_key_whatever_order_they_are_named_in(
    store: Store, make: ChannelSamples, postgres_server: str, kind: str
) -> None:
    """Who waits for the first row holds none of the later ones: a third may have them."""
    lock = ORDERED[kind]
    await _relay(store, make.command(target=TARGETS[0]), make.command(target=TARGETS[1]))

    def fill(tx: Transaction) -> None:
        for scope in SCOPES * 3:
            tx.intents.take_place(TENANT, scope, overtakes=False, bound=9, reserve=0)
        tx.commands.lock_targets(TARGETS)

    await store.transact(fill)
    async with Holding(store, lambda tx: lock(tx, [0])):
        waiting = asyncio.ensure_future(store.transact(lambda tx: lock(tx, [1, 0])))
        await until_somebody_waits(postgres_server)
        await store.transact(lambda tx: lock(tx, [1]))
    await waiting


@pytest.mark.req("CC-29", "CC-30")
async def test_of_two_claimers_of_one_command_one_gets_it(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    command = make.command()
    await _relay(pair[0], command)
    answers = await _at_once(
        pair, lambda tx: tx.commands.get(command.event_id), lambda tx, number: _claim(tx, f"worker {number}", make.now)
    )
    assert sorted(len(taken) for taken in answers) == [0, 1]
    stored = await pair[0].read(lambda tx: tx.commands.get(command.event_id))
    assert stored is not None
    assert (stored.fence, stored.attempts, stored.status) == (1, 1, CommandStatus.CLAIMED)


@pytest.mark.req("CC-29")
async def test_a_claim_passes_over_what_another_holds_and_finds_what_lies_behind(store: Store, make: ChannelSamples) -> None:
    commands = [make.command(scope=scope) for scope in "aabb"]
    await _relay(store, *commands)
    async with Holding(store, lambda tx: tx.commands.lock_many([commands[0].event_id, commands[2].event_id])):
        found = await store.transact(lambda tx: _claim(tx, "w", make.now))
    assert [command.event_id for command in found] == [commands[1].event_id, commands[3].event_id]


@pytest.mark.req("CC-29", "CC-30")
async def test_many_claimers_share_the_work_and_never_one_command(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    commands = [make.command(scope=f"scope {n % 7}") for n in range(120)]
    await _relay(pair[0], *commands)

    async def work(store: Store, worker: str) -> list[Command]:
        taken: list[Command] = []
        while found := await store.transact(lambda tx: _claim(tx, worker, make.now, limit=5)):
            taken += found
        return taken

    shares = await asyncio.gather(*(work(pair[n % 2], f"worker {n}") for n in range(4)))
    taken = [command.event_id for share in shares for command in share]
    assert len(taken) == len(set(taken))
    left = await pair[0].transact(lambda tx: _claim(tx, "the last", make.now, limit=1000))
    assert sorted(taken + [command.event_id for command in left]) == sorted(command.event_id for command in commands)
    stored = await pair[0].read(lambda tx: tx.commands.page(tenant=TENANT, statuses=[], before=None, limit=1000))
    assert {(command.fence, command.attempts) for command in stored} == {(1, 1)}


@pytest.mark.req("CC-22")
async def test_of_two_relays_of_one_intent_one_gets_it(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    intent = make.intent()
    await _stage(pair[0], intent)

    def relay(tx: Transaction, number: int) -> int:
        due = tx.intents.due(now=make.now, limit=10)
        tx.intents.end([found.id for found in due], IntentStatus.RELAYED, make.now)
        tx.commands.insert_many([replace(make.command(found), number=number + 1) for found in due])
        return len(due)

    answers = await _at_once(pair, lambda tx: tx.intents.get(intent.id), relay)
    assert sorted(answers) == [0, 1]
    assert await pair[0].read(lambda tx: tx.commands.of_intent(intent.id)) is not None
    assert await pair[0].transact(lambda tx: tx.intents.due(now=make.now, limit=10)) == []


@pytest.mark.req("CC-22")
async def test_a_relay_passes_over_what_another_holds(store: Store, make: ChannelSamples) -> None:
    intents = [make.intent() for _ in range(3)]
    await _stage(store, *intents)
    async with Holding(store, lambda tx: tx.intents.lock(intents[1].id)):
        found = await store.transact(lambda tx: tx.intents.due(now=make.now, limit=2))
    assert found == [intents[0], intents[2]]


def _number(tx: Transaction) -> list[int]:
    """Give each target its next number."""
    states = tx.commands.lock_targets(TARGETS)
    following = [replace(state, last_number=state.last_number + 1) for state in states.values()]
    tx.commands.save_targets(following)
    return [state.last_number for state in following]


@pytest.mark.req("CC-16")
async def test_two_who_meet_a_new_target_number_one_after_the_other(pair: tuple[Store, Store]) -> None:
    answers = await _at_once(pair, lambda tx: tx.commands.targets(TARGETS), lambda tx, _: _number(tx))
    assert sorted(answers) == [[1, 1], [2, 2]]


@pytest.mark.req("CC-16")
async def test_who_waits_for_a_target_sees_the_number_that_was_given_meanwhile(store: Store, postgres_server: str) -> None:
    await store.transact(_number)
    async with Holding(store, _number):
        waiting = asyncio.ensure_future(store.transact(_number))
        await until_somebody_waits(postgres_server)
    assert await waiting == [3, 3]


@pytest.mark.req("CC-34", "CC-35")
async def test_the_clock_read_after_a_lock_was_waited_for_counts_the_waiting(
    store: Store, make: ChannelSamples, postgres_server: str
) -> None:
    command = make.command()
    await _relay(store, command)
    released: list[Instant] = []

    def wait_and_read(tx: Transaction) -> tuple[Instant, Instant]:
        began = tx.now
        tx.commands.lock(command.event_id)
        assert tx.now == began
        return began, tx.read_clock()

    async with Holding(store, lambda tx: tx.commands.lock(command.event_id)):
        waiting = asyncio.ensure_future(store.transact(wait_and_read))
        await until_somebody_waits(postgres_server)
        released.append(await store.read(lambda tx: tx.read_clock()))
    began, read = await waiting
    assert began < released[0] <= read


@pytest.mark.req("CC-35")
async def test_what_is_locked_after_waiting_is_seen_as_it_is_then(
    store: Store, make: ChannelSamples, postgres_server: str
) -> None:
    command = make.command()
    await _relay(store, command)

    def take_over(tx: Transaction) -> None:
        tx.commands.lock(command.event_id)
        tx.commands.save_many([command.taken(WorkerId("successor"), after_ms(make.now, 1000))])

    async with Holding(store, take_over):
        waiting = asyncio.ensure_future(store.transact(lambda tx: tx.commands.lock(command.event_id)))
        await until_somebody_waits(postgres_server)
    seen = await waiting
    assert seen is not None
    assert (seen.fence, seen.worker_id) == (1, "successor")


@pytest.mark.req("CC-47")
async def test_of_two_admissions_under_one_key_one_receipt_stands(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    command = make.command()
    receipts = [make.admission(command) for _ in range(2)]
    answers = await _at_once(
        pair, lambda tx: tx.admissions.get(command.key), lambda tx, number: tx.admissions.add(receipts[number])
    )
    assert sorted(answers) == [False, True]
    assert await pair[0].read(lambda tx: tx.admissions.get(command.key)) == receipts[answers.index(True)]


@pytest.mark.req("CC-28")
async def test_a_claim_takes_two_statements_and_an_idle_look_takes_one(pair: tuple[Store, Store], make: ChannelSamples) -> None:
    store = pair[0]

    async def statements(fn: Callable[[Transaction], object]) -> int:
        before = dict(store.counters.by_name)
        await store.transact(fn)
        around = ("begin", "commit", "rollback", "savepoint", "release")
        return sum(n - before.get(name, 0) for name, n in store.counters.by_name.items() if name not in around)

    def look(tx: Transaction) -> None:
        tx.commands.claimable([*CONSUMERS, ("other", "kind", 1)], now=make.now, limit=10, after=(TENANT, "s"))

    assert await statements(look) == 1
    await _relay(store, *(make.command(scope=f"scope {n % 3}") for n in range(9)))
    assert await statements(look) == 2
