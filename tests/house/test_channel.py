"""The channel carries commands and decides nothing: audits of its modules, so that they stay so."""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path
from typing import Final

import pytest

from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.domain.commands import IntentId
from quiesce.domain.deliveries import Command, Settlement
from quiesce.domain.errors import InvalidInput
from quiesce.domain.evidence import Evidence
from quiesce.domain.ids import uuid7
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.streams import StreamEvent
from quiesce.runtime.commands import stage_tx
from quiesce.stores.memory.store import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.samples import Samples

RUNTIME: Final = Path(__file__).resolve().parents[2] / "src" / "quiesce" / "runtime"
CHANNEL: Final = ("commands.py", "relay.py", "deliveries.py", "deliverer.py", "queue.py")
OWN: Final = {"intents", "commands", "now", "ring", "read_clock"}
"""What the channel may touch of a transaction. `admissions` belongs to owners."""


def attributes_of_transactions(module: str) -> set[str]:
    """What a module asks of anything that is called `tx`."""
    tree = ast.parse((RUNTIME / module).read_text())
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tx"
    }


@pytest.mark.req("CC-04", "CC-05", "CC-09", "CC-65", "NO-16")
@pytest.mark.parametrize("module", CHANNEL)
def test_the_channel_touches_no_owners_rows(module: str) -> None:
    assert attributes_of_transactions(module) <= OWN


@pytest.mark.req("CC-05", "CC-09", "NO-16")
@pytest.mark.parametrize("module", CHANNEL)
def test_the_channel_knows_no_owner_but_by_its_two_operations(module: str) -> None:
    tree = ast.parse((RUNTIME / module).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    domain_of_others = {f"quiesce.domain.{name}" for name in ("runs", "boundary", "budgets", "terminal", "operations", "streams")}
    assert not imported & domain_of_others
    owners = {name for name in imported if name.startswith("quiesce.runtime.") and name.endswith("_owner")}
    assert owners == set()


@pytest.mark.req("CC-62", "CC-64", "CC-04")
def test_no_field_of_a_delivery_says_that_the_effect_happened() -> None:
    fields = {*inspect.signature(Command).parameters, *inspect.signature(Settlement).parameters}
    assert not [name for name in fields if any(word in name for word in ("complete", "done", "success", "effect", "outcome"))]
    assert "receipt" in inspect.signature(Settlement).parameters, "an effect is told by its owner's receipt, and by nothing else"


@pytest.mark.req("CC-06", "CC-08")
@pytest.mark.parametrize("kind", [StreamEvent, OutboxMessage, Evidence])
def test_an_event_a_message_and_a_trace_are_no_commands(kind: type) -> None:
    clock = ManualClock()
    make = Samples()
    run = make.run()
    offered = {StreamEvent: make.texts(run, "word")[0], OutboxMessage: make.message(run), Evidence: make.evidence(run)}[kind]

    async def stage() -> None:
        store = MemoryStore(clock)
        intent_id = IntentId(uuid7(clock.now(), SystemEntropy().token(10)))
        await store.transact(lambda tx: stage_tx(tx, offered, intent_id=intent_id, limits=DEFAULT_LIMITS))  # type: ignore[arg-type]

    with pytest.raises(InvalidInput, match="must be a CommandRequest"):
        asyncio.run(stage())
