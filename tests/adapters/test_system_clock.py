"""The guarded clock never goes back and never falls behind; entropy has the length asked for."""

import time

import pytest

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.ports.clock import Clock, Entropy

SECOND_NS = 1_000_000_000


class Machine:
    """The two clocks of a machine, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.monotonic_ns = 5 * SECOND_NS
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)

    def pass_seconds(self, seconds: int, *, wall: int | None = None) -> None:
        self.monotonic_ns += seconds * SECOND_NS
        self.wall_ns += (seconds if wall is None else wall) * SECOND_NS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_the_clock_starts_at_the_wall_clock_and_goes_with_it(machine: Machine) -> None:
    clock: Clock = SystemClock()
    start = clock.now()
    assert start == machine.wall_ns // 1000
    machine.pass_seconds(3)
    assert clock.now() == start + 3_000_000


@pytest.mark.req("CC-37", "C69")
def test_a_wall_clock_set_back_neither_stops_nor_turns_the_clock(machine: Machine) -> None:
    clock = SystemClock()
    start = clock.now()
    machine.pass_seconds(1, wall=-120)
    assert clock.now() == start + 1_000_000
    machine.pass_seconds(10)
    assert clock.now() == start + 11_000_000


def test_a_wall_clock_that_jumps_ahead_is_followed(machine: Machine) -> None:
    clock = SystemClock()
    start = clock.now()
    machine.pass_seconds(1, wall=3600)
    assert clock.now() == start + 3_600_000_000
    assert SystemClock().now() == clock.now()


async def test_sleeping_takes_its_time() -> None:
    clock = SystemClock()
    start = clock.now()
    await clock.sleep(2)
    assert clock.now() - start >= 1_000


def test_entropy_has_the_length_asked_for_and_differs() -> None:
    entropy: Entropy = SystemEntropy()
    assert len(entropy.token(16)) == 16
    assert entropy.token(16) != entropy.token(16)
