"""The door service and its owner: the contract, and a line that is cut before, during and behind a request."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.domain.deliveries import Command
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.owners import CommandRequest, CommandStatus, Deliverer, Intent, IntentId, stage_tx
from quiesce.runtime.environment import Environment, Settings
from quiesce.testing.owners import OwnerContract, OwnerUnderTest, absence_is_proven

ROOT: Final = Path(__file__).resolve().parents[2] / "examples" / "remote_owner"
QUICK: Final = Settings(poll_ms=20, command_lease_ms=2_000, defer_ms=10, defer_ms_max=40)


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"door_{name}", ROOT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


owner_module = _module("owner")
service_module = _module("service")


class Service:
    """The door service in a process of its own, and a line to it that can be cut."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "doors.db"
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "service.py"), "--database", str(self.database), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = Line(int(self.process.stdout.readline()))
        self.url = f"http://127.0.0.1:{self.line.port}"

    def openings(self) -> int:
        """How often doors were opened, as the service's own database says."""
        return int(service_module.Doors(self.database).openings())

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing gets through."""
        self.line.cuts = "before"
        yield
        self.line.cuts = ""

    def close(self) -> None:
        """Stop it."""
        self.line.close()
        self.process.kill()
        self.process.communicate()


class Line:
    """A TCP relay to the service. `cuts`: `before` the request is passed on, `during` it, or `behind` its effect."""

    def __init__(self, service_port: int) -> None:
        self._service_port = service_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = ""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            near.settimeout(20)
            request = self._whole(near)
            is_admission = request.startswith(b"POST")
            cuts = self.cuts if is_admission or self.cuts == "before" else ""
            if cuts == "before":
                return
            with socket.create_connection(("127.0.0.1", self._service_port), timeout=20) as far:
                if cuts == "during":
                    far.sendall(request[: len(request) - 5])
                    return
                far.sendall(request)
                answer = self._whole(far)
            if cuts != "behind":
                near.sendall(answer)

    @staticmethod
    def _whole(peer: socket.socket) -> bytes:
        """Read one HTTP message, up to the length that it states."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += peer.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while len(body) < int(lengths[0] if lengths else 0):
            body += peer.recv(65536)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The service, running."""
    running = Service(tmp_path)
    yield running
    running.close()


@pytest.fixture
def subject(service: Service, tmp_path: Path) -> OwnerUnderTest:
    """The owner, as the contract wants it."""
    return OwnerUnderTest(
        url=f"sqlite:///{tmp_path / 'store.db'}",
        owner=owner_module.DoorOwner(service.url),
        request=a_request,
        effects=service.openings,
        unreadable=service.cut,
    )


def a_request(key: str, subject: str = "ada") -> CommandRequest:
    wanted: CommandRequest = owner_module.open_door("front", subject=subject, producer="bell", producer_key=key)
    return wanted


@pytest.mark.req("NO-15", "CC-43", "CC-44", "CC-46", "CC-47", "CC-50")
class TestDoors(OwnerContract):
    """The contract holds for the example."""


@pytest.mark.req("G-13")
def test_the_service_proves_absence_since_asking_counts_as_being_seen(subject: OwnerUnderTest) -> None:
    assert absence_is_proven(subject)


class House:
    """A channel with the door owner on it."""

    def __init__(self, env: Environment, service: Service, *, proves_absence: bool) -> None:
        self.env = env
        self.owner = owner_module.DoorOwner(service.url)
        if not proves_absence:
            self._forget_proof()
        self.deliverer = Deliverer(env, [self.owner])

    def _forget_proof(self) -> None:
        read = self.owner.read_receipt

        async def without_proof(env: Environment, command: Command) -> object:
            reading = await read(env, command)
            return replace(reading, excludes_in_flight=False) if hasattr(reading, "excludes_in_flight") else reading

        self.owner.read_receipt = without_proof

    async def stage(self, wanted: CommandRequest) -> Intent:
        intent_id = IntentId(self.env.new_id())
        staged = await self.env.store.transact(lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=DEFAULT_LIMITS))
        return staged.intent

    async def status(self, intent: Intent) -> CommandStatus:
        command = await self.env.store.read(lambda tx: tx.commands.of_intent(intent.id))
        assert command is not None
        return command.status

    async def until(self, intent: Intent, *wanted: CommandStatus) -> CommandStatus:
        async with asyncio.timeout(30):
            while True:
                await self.deliverer.pass_once()
                if (found := await self.status(intent)) in wanted:
                    return found
                await asyncio.sleep(0.01)


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    store = await asyncio.to_thread(open_store, f"sqlite:///{tmp_path / 'store.db'}")
    yield Environment(store=store, clock=SystemClock(), entropy=SystemEntropy(), settings=QUICK)
    await store.close()


@pytest.mark.req("CC-45", "CC-52")
async def test_a_line_cut_before_anything_was_asked_puts_the_command_off(env: Environment, service: Service) -> None:
    house = House(env, service, proves_absence=False)
    intent = await house.stage(a_request("ring-1"))
    with service.cut():
        await house.until(intent, CommandStatus.PENDING)
    assert service.openings() == 0
    assert await house.until(intent, CommandStatus.SETTLED, CommandStatus.UNKNOWN) is CommandStatus.SETTLED
    assert service.openings() == 1


@pytest.mark.req("CC-49", "CC-51", "CC-54")
@pytest.mark.parametrize(("cuts", "openings"), [("during", 0), ("behind", 1)])
async def test_a_line_cut_during_or_behind_the_request_leaves_an_unknown_that_the_receipt_alone_ends(
    env: Environment, service: Service, cuts: str, openings: int
) -> None:
    house = House(env, service, proves_absence=False)
    service.line.cuts = cuts
    intent = await house.stage(a_request("ring-1"))
    await house.until(intent, CommandStatus.UNKNOWN)
    service.line.cuts = ""
    assert service.openings() == openings
    if openings:
        await house.until(intent, CommandStatus.SETTLED)
    else:
        for _ in range(5):
            await asyncio.sleep(0.05)
            await house.deliverer.pass_once()
        assert await house.status(intent) is CommandStatus.UNKNOWN, "nothing proves that the request will not land"
    assert service.openings() == openings


@pytest.mark.req("CC-46", "CC-50", "G-13")
@pytest.mark.parametrize("cuts", ["during", "behind"])
async def test_where_absence_is_proven_a_lost_request_is_made_again_and_acts_once(
    env: Environment, service: Service, cuts: str
) -> None:
    house = House(env, service, proves_absence=True)
    service.line.cuts = cuts
    intent = await house.stage(a_request("ring-1"))
    await house.until(intent, CommandStatus.UNKNOWN, CommandStatus.SETTLED)
    service.line.cuts = ""
    await house.until(intent, CommandStatus.SETTLED)
    assert service.openings() == 1


@pytest.mark.req("CC-42", "CC-36")
async def test_a_refusal_of_the_service_is_definite(env: Environment, service: Service) -> None:
    house = House(env, service, proves_absence=True)
    intent = await house.stage(a_request("ring-1", subject="stranger"))
    await house.until(intent, CommandStatus.SETTLED)
    command = await env.store.read(lambda tx: tx.commands.of_intent(intent.id))
    assert command is not None
    settlement = await env.store.read(lambda tx: tx.commands.settlement(command.event_id))
    assert settlement is not None
    assert settlement.receipt.reason == "strangers open no doors"
    assert service.openings() == 0
