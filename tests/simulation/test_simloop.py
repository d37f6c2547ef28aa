"""The simulated world: repeatable, out of real time, and its processes really die."""

import asyncio
import gc
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from quiesce.testing.simloop import (
    EPOCH,
    SimClock,
    SimDeadlock,
    SimEndless,
    SimEntropy,
    SimForbidden,
    SimLoop,
    SimProcess,
    run_sim,
    vanish,
)

HOUR_S = 3600


async def busy_world(loop: SimLoop) -> list[str]:
    """Tasks that race over locks, timers, time-outs, groups that fail, and a process that is killed."""
    log: list[str] = []
    lock = asyncio.Lock()

    async def worker(name: str) -> None:
        for turn in range(4):
            async with lock:
                log.append(f"{name}:{turn}")
            await asyncio.sleep(turn % 2)

    async def failing_group() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "xyz":
                group.create_task(worker(name))
            await asyncio.sleep(1)
            raise LookupError

    async def impatient() -> None:
        async with asyncio.timeout(0.5):
            await asyncio.Event().wait()

    victim = SimProcess(loop, "victim")
    victim.start(worker("v"))
    loop.call_later(1, victim.kill)
    results = await asyncio.gather(worker("a"), worker("b"), failing_group(), impatient(), return_exceptions=True)
    return log + [type(result).__name__ for result in results]


def test_a_seed_is_one_interleaving() -> None:
    runs = {seed: [run_sim(seed, busy_world) for _ in range(3)] for seed in range(20)}
    assert all(first == second == third for first, second, third in runs.values())
    assert len({first.digest for first, *_ in runs.values()}) == 20
    assert len({tuple(first.value) for first, *_ in runs.values()}) > 10


def test_a_seed_is_the_same_interleaving_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "digests.py"
    script.write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('world', {__file__!r})\n"
        "world = importlib.util.module_from_spec(spec); spec.loader.exec_module(world)\n"
        "print([world.run_sim(seed, world.busy_world).digest for seed in range(5)])\n"
    )
    here = str([run_sim(seed, busy_world).digest for seed in range(5)])
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run([sys.executable, script], env=environment, check=True, stdout=subprocess.PIPE, text=True)
        assert there.stdout.strip() == here


def test_time_jumps_to_the_next_timer() -> None:
    async def main(loop: SimLoop) -> float:
        start = loop.time()
        await asyncio.gather(asyncio.sleep(HOUR_S), asyncio.sleep(1000 * HOUR_S))
        return loop.time() - start

    run = run_sim(0, main)
    assert run.value == 1000 * HOUR_S
    assert run.elapsed_ms == 1000 * HOUR_S * 1000
    assert run.steps < 20


def test_timers_fire_in_the_order_of_their_instants() -> None:
    async def main(loop: SimLoop) -> list[int]:
        fired: list[int] = []
        for delay in (3, 1, 2):
            loop.call_later(delay, fired.append, delay)
        loop.call_later(1.5, fired.append, 0).cancel()
        await asyncio.sleep(4)
        return fired

    assert all(run_sim(seed, main).value == [1, 2, 3] for seed in range(10))


def test_a_time_out_is_virtual_too() -> None:
    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout=HOUR_S)
        return loop.time()

    assert run_sim(0, main).value == HOUR_S


def test_a_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def wait_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def main(loop: SimLoop) -> None:
        await asyncio.create_task(wait_for_ever(asyncio.Event()), name="reader")

    with pytest.raises(SimDeadlock, match=r"seed 7: nothing can run any more; pending: .*reader#\d+ in Event.wait, line \d+"):
        run_sim(7, main)


def test_a_spinning_task_is_stopped() -> None:
    async def main(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimEndless, match="more than 1000 steps"):
        run_sim(0, main, steps_max=1000)


def test_threads_are_forbidden() -> None:
    async def main(loop: SimLoop) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(SimForbidden, match="run_in_executor"):
        run_sim(0, main)


def test_a_call_from_elsewhere_on_the_loop_is_taken_in() -> None:
    async def main(loop: SimLoop) -> int:
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon_threadsafe(future.set_result, 5)
        return await future

    assert run_sim(0, main).value == 5


def test_what_main_raises_is_raised_and_a_failing_callback_fails_the_run() -> None:
    async def raising(loop: SimLoop) -> None:
        raise LookupError("main")

    def fail() -> None:
        raise LookupError("callback")

    async def calling(loop: SimLoop) -> None:
        loop.call_later(1, fail)
        await asyncio.sleep(2)

    with pytest.raises(LookupError, match="main"):
        run_sim(0, raising)
    with pytest.raises(LookupError, match="callback"):
        run_sim(0, calling)


async def scribble(page: list[str]) -> None:
    """Write for ever, tidy up at the end, and have helpers that do the same."""

    async def helper() -> None:
        try:
            while True:
                page.append("helper")
                await asyncio.sleep(1)
        finally:
            page.append("helper's end")

    async def lines() -> AsyncIterator[str]:
        try:
            while True:
                await asyncio.sleep(1)
                yield "line"
        finally:
            page.append("end of lines")

    asyncio.get_running_loop().call_later(30, page.append, "timer")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(helper())
            async for line in lines():
                page.append(line)  # noqa: PERF401
    finally:
        page.append("end")
        await asyncio.sleep(0)
        page.append("after the end")


@pytest.mark.req("RR-43")
@pytest.mark.parametrize("seed", range(10))
def test_nothing_of_a_killed_process_runs_any_more(seed: int) -> None:
    async def main(loop: SimLoop) -> tuple[list[str], list[str]]:
        page: list[str] = []
        process = SimProcess(loop, "scribe")
        process.start(scribble(page))
        await asyncio.sleep(20.5)
        process.kill()
        at_death = list(page)
        await asyncio.sleep(100)
        gc.collect()
        return at_death, list(page)

    at_death, later = run_sim(seed, main).value
    assert at_death == later
    assert {*at_death} == {"helper", "line"}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_process_killed_when_it_was_about_to_run_does_not_run(frozen: bool) -> None:
    async def main(loop: SimLoop) -> tuple[int, int]:
        steps: list[float] = []
        process = SimProcess(loop, "spinner")

        async def spin() -> None:
            while True:
                steps.append(loop.time())
                await asyncio.sleep(0)

        process.start(spin())
        while len(steps) < 10:
            await asyncio.sleep(0)
        if frozen:
            process.freeze(1000)
            await asyncio.sleep(0.5)
        process.kill()
        at_death = len(steps)
        await asyncio.sleep(10)
        return at_death, len(steps)

    for seed in range(10):
        at_death, later = run_sim(seed, main).value
        assert at_death == later >= 10


def test_the_end_of_the_world_leaves_no_warning_of_its_dead_behind() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            finally:
                asyncio.create_task(asyncio.sleep(1))  # noqa: RUF006 - made in vain, in a dying block

    async def main(loop: SimLoop) -> None:
        process = SimProcess(loop, "scribe")
        process.start(scribble([]))
        process.start(stubborn())
        alive = SimProcess(loop, "alive")
        alive.start(scribble([]))
        await asyncio.sleep(5)
        process.kill()

    run_sim(0, main)
    gc.collect()  # a warning would fail the test, as the suite is configured


def test_a_process_that_kills_itself_gets_no_further_than_its_next_await() -> None:
    reached: list[str] = []

    async def main(loop: SimLoop) -> object:
        process = SimProcess(loop, "suicidal")

        async def body() -> str:
            process.kill()
            reached.append("killed")
            await vanish()

        return await process.run(body())

    assert run_sim(0, main).value is None
    assert reached == ["killed"]


def test_running_a_process_gives_its_value_or_its_error() -> None:
    async def succeed() -> int:
        await asyncio.sleep(1)
        return 3

    async def fail() -> int:
        raise LookupError("inside")

    async def main(loop: SimLoop) -> int | None:
        with pytest.raises(LookupError, match="inside"):
            await SimProcess(loop, "failing").run(fail())
        return await SimProcess(loop, "succeeding").run(succeed())

    assert run_sim(0, main).value == 3


def test_a_frozen_process_stands_still_and_then_goes_on_while_others_never_stop() -> None:
    async def tick(loop: SimLoop, times: list[float]) -> None:
        while True:
            times.append(loop.time())
            await asyncio.sleep(1)

    async def main(loop: SimLoop) -> tuple[list[float], list[float]]:
        frozen_times: list[float] = []
        other_times: list[float] = []
        process, other = SimProcess(loop, "frozen"), SimProcess(loop, "other")
        process.start(tick(loop, frozen_times))
        other.start(tick(loop, other_times))
        await asyncio.sleep(2.5)
        process.freeze(10_000)
        await asyncio.sleep(12)
        return frozen_times, other_times

    frozen_times, other_times = run_sim(0, main).value
    assert frozen_times == [0, 1, 2, 12.5, 13.5]
    assert other_times == list(range(15))


@pytest.mark.req("CC-37", "C69")
def test_a_simulated_clock_may_be_wrong_and_never_goes_back() -> None:
    async def main(loop: SimLoop) -> list[int]:
        right, ahead = SimClock(loop), SimClock(loop, skew_ms=120_000)
        readings = [right.now(), ahead.now()]
        await right.sleep(1000)
        ahead.step(-120_000)
        readings += [right.now(), ahead.now()]
        await right.sleep(200_000)
        return [*readings, right.now(), ahead.now()]

    offsets_ms = [(reading - EPOCH) // 1000 for reading in run_sim(0, main).value]
    assert offsets_ms == [0, 120_000, 1000, 120_000, 201_000, 201_000]


def test_simulated_entropy_is_repeatable() -> None:
    first, again, other = SimEntropy(1), SimEntropy(1), SimEntropy(2)
    token = first.token(10)
    assert token == again.token(10) != other.token(10)
    assert first.token(10) == again.token(10) != token


Increment = Callable[[list[int], asyncio.Lock], Awaitable[None]]


async def careless(counter: list[int], lock: asyncio.Lock) -> None:
    value = counter[0]
    await asyncio.sleep(0)
    counter[0] = value + 1


async def careful(counter: list[int], lock: asyncio.Lock) -> None:
    async with lock:
        await careless(counter, lock)


def count_twice(seed: int, increment: Increment) -> int:
    """Increment from two tasks that usually come at different times."""

    async def main(loop: SimLoop) -> int:
        counter, lock, chance = [0], asyncio.Lock(), random.Random(seed)

        async def client() -> None:
            await asyncio.sleep(chance.randrange(20))
            await increment(counter, lock)

        await asyncio.gather(client(), client())
        return counter[0]

    return run_sim(seed, main).value


def test_a_planted_lost_update_is_found_within_200_seeds() -> None:
    found = [seed for seed in range(200) if count_twice(seed, careless) != 2]
    assert found
    assert {count_twice(seed, careless) for seed in found} == {1}


def test_without_the_planted_fault_no_seed_fails() -> None:
    assert {count_twice(seed, careful) for seed in range(200)} == {2}
