"""One clock for all processes of a machine, which no step of the wall clock moves (C69, CC-37)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.domain.instant import Instant
from quiesce.ports.store import Transaction
from quiesce.stores.sqlite import SqliteSettings, SqliteStore
from quiesce.stores.sqlite.clock import MachineTime
from quiesce.testing.samples import Samples

_START = 1_800_000_000_000_000
_MINUTE = 60_000_000


class Machine:
    """A machine whose clocks and starts are set by hand."""

    def __init__(self) -> None:
        self.wall_us = _START
        self.monotonic_us = 5_000_000
        self.boot_id = "first"

    def time(self) -> MachineTime:
        return MachineTime(wall_us=lambda: self.wall_us, monotonic_us=lambda: self.monotonic_us, boot_id=lambda: self.boot_id)

    def passes(self, duration_us: int) -> None:
        self.wall_us += duration_us
        self.monotonic_us += duration_us

    def starts_again(self, *, wall_us: int) -> None:
        self.boot_id += " again"
        self.monotonic_us = 1_000_000
        self.wall_us = wall_us


class Processes:
    """Opens the file once per process of a test."""

    def __init__(self, path: Path, machine: Machine) -> None:
        self._settings = SqliteSettings(path=path)
        self._machine = machine
        self._stores: list[SqliteStore] = []

    def start(self) -> SqliteStore:
        self._stores.append(SqliteStore(self._settings, machine=self._machine.time()))
        return self._stores[-1]

    def end(self) -> None:
        for store in self._stores:
            store.close_blocking()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def processes(sqlite_path: Path, machine: Machine) -> Iterator[Processes]:
    opened = Processes(sqlite_path, machine)
    yield opened
    opened.end()


def _now(store: SqliteStore) -> Instant:
    return store.transact_blocking(lambda tx: tx.now)


@pytest.mark.req("C69", "CC-37")
def test_a_process_that_starts_after_a_wall_step_agrees_with_the_others(processes: Processes, machine: Machine) -> None:
    first = processes.start()
    machine.passes(_MINUTE)
    machine.wall_us += 120 * _MINUTE
    second = processes.start()
    assert _now(first) == _now(second) == _START + _MINUTE


@pytest.mark.req("C69", "CC-37")
@pytest.mark.parametrize("step", [-120 * _MINUTE, 120 * _MINUTE])
def test_a_wall_step_moves_no_lease(processes: Processes, machine: Machine, make: Samples, step: int) -> None:
    store = processes.start()
    worker = make.worker()

    def register(tx: Transaction) -> None:
        tx.workers.insert(worker)
        tx.workers.renew(worker.id, expires_at=Instant(tx.now + _MINUTE))

    store.transact_blocking(register)
    machine.wall_us += step
    machine.passes(_MINUTE - 1)
    assert store.transact_blocking(lambda tx: tx.workers.expired(now=tx.now, limit=9)) == []
    machine.passes(1)
    assert len(store.transact_blocking(lambda tx: tx.workers.expired(now=tx.now, limit=9))) == 1


@pytest.mark.req("CC-37")
def test_time_goes_on_from_the_wall_clock_after_a_start_of_the_machine(processes: Processes, machine: Machine) -> None:
    processes.start()
    machine.starts_again(wall_us=_START + 60 * _MINUTE)
    assert _now(processes.start()) == _START + 60 * _MINUTE


@pytest.mark.req("CC-37")
def test_time_that_the_file_has_seen_does_not_come_again(processes: Processes, machine: Machine, make: Samples) -> None:
    store = processes.start()
    machine.passes(30 * _MINUTE)
    worker = make.worker()
    store.transact_blocking(lambda tx: tx.workers.insert(worker))
    store.transact_blocking(lambda tx: tx.workers.renew(worker.id, expires_at=Instant(tx.now + _MINUTE)))
    last = _now(store)
    machine.starts_again(wall_us=_START - 600 * _MINUTE)
    assert _now(processes.start()) >= last


def test_a_monotonic_clock_gone_back_counts_as_a_start_where_starts_have_no_name(processes: Processes, machine: Machine) -> None:
    machine.boot_id = "unknown"
    processes.start()
    machine.monotonic_us = 0
    machine.wall_us = _START + 5 * _MINUTE
    assert _now(processes.start()) == _START + 5 * _MINUTE


@pytest.mark.req("C69")
def test_a_real_process_reads_the_same_clock(sqlite_path: Path) -> None:
    settings = SqliteSettings(path=sqlite_path)
    script = (
        "import sys; from pathlib import Path; from quiesce.stores.sqlite import SqliteSettings, SqliteStore\n"
        "from quiesce.stores.sqlite.clock import MachineTime\n"
        "machine = MachineTime(wall_us=lambda: 17)\n"
        "store = SqliteStore(SqliteSettings(path=Path(sys.argv[1])), machine=machine)\n"
        "print(store.transact_blocking(lambda tx: tx.now)); store.close_blocking()\n"
    )
    store = SqliteStore(settings)
    before = _now(store)
    done = subprocess.run(
        [sys.executable, "-c", script, str(sqlite_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert before <= int(done.stdout) <= _now(store)
    store.close_blocking()
