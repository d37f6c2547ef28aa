"""A process dies at every crash point of the control channel, by SIGKILL, and another one goes on.

Each case is played once per store, by real processes. After the death the three answers must be told apart, whatever the
point: did the command arrive, was its effect admitted, is it not known (CC-63). When all has come to rest, the effect has
taken place once or, where nobody can know, is reported unknown and not repeated.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.commands import Capacity, Intent
from quiesce.domain.deliveries import Command, CommandStatus, Effect, HistoryLine, Settlement, effect_of
from quiesce.domain.publication import OutboxMessage
from quiesce.ports.store import Transaction
from quiesce.runtime.crashpoints import POINTS
from tests.crash.conftest import STORES, NewWorld, Player
from tests.crash.world import SIGKILLED, World


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFacts:
    """Everything stored of the one command of a case, and what happened outside."""

    facts: int
    intent: Intent | None
    command: Command | None
    settlement: Settlement | None
    history: list[HistoryLine]
    capacity: Capacity | None
    effects: int

    @property
    def has_arrived(self) -> bool:
        """Whether the command has its place in its target's order."""
        return self.command is not None

    @property
    def effect(self) -> Effect:
        """What the store says of the effect."""
        return Effect.NOT_YET if self.command is None else effect_of(self.command, self.settlement)


def look(world: World) -> ChannelFacts:
    """Read everything, while no process runs."""
    return asyncio.run(_look(world))


async def _look(world: World) -> ChannelFacts:
    store = await asyncio.to_thread(open_store, world.url)
    try:
        return await store.read(lambda tx: _read(tx, len(world.lines("posted.jsonl"))))
    finally:
        await store.close()


def _read(tx: Transaction, posted: int) -> ChannelFacts:
    outbox: list[OutboxMessage] = tx.outbox.pending(limit=100)
    intent = tx.intents.by_key("local", "test", "one")
    command = None if intent is None else tx.commands.of_intent(intent.id)
    return ChannelFacts(
        facts=sum(message.topic == "fact" for message in outbox),
        intent=intent,
        command=command,
        settlement=None if command is None else tx.commands.settlement(command.event_id),
        history=[] if command is None else tx.commands.history(command.event_id, limit=100),
        capacity=tx.intents.capacity("local", "default"),
        effects=posted + sum(message.topic == "book" for message in outbox),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One death, by its number in the list of crash points, to one kind of owner, over one store."""

    number: str
    play_it: Callable[[World, str], None]
    owner: str
    store: str

    def __str__(self) -> str:
        return f"{self.store}-{self.number}-{self.owner}"

    def play(self, new_world: NewWorld) -> None:
        self.play_it(new_world(self.store, str(self)), self.owner)


# -- the deaths ------------------------------------------------------------------------------------------------------------


def staged(world: World, owner: str, **job: Any) -> None:
    assert world.process("stage", key="one", owner=owner, **job).wait() == 0, world.logs()


def dies(world: World, point: str, **job: Any) -> ChannelFacts:
    """Have a deliverer die at a point; return what is stored then."""
    assert world.process("deliver", crash_at=point, **job).wait() == SIGKILLED, world.logs()
    return look(world)


def goes_on(world: World, **job: Any) -> ChannelFacts:
    """Have other processes come to rest: twice, since what rests must stay as it is."""
    assert world.process("deliver", **job).wait() == 0, world.logs()
    first = look(world)
    assert world.process("deliver", **job).wait() == 0, world.logs()
    assert look(world).settlement == first.settlement
    return first


def settled_once(world: World, fence: int, **job: Any) -> ChannelFacts:
    """What every good end looks like."""
    facts = goes_on(world, **job)
    assert facts.command is not None
    assert facts.settlement is not None, facts.history
    assert (facts.effects, facts.effect) == (1, Effect.ACCEPTED), facts.history
    assert facts.settlement.fence == fence, facts.history
    assert facts.command.status is CommandStatus.SETTLED
    assert facts.capacity is not None
    assert facts.capacity.used == 0
    assert facts.facts == 1
    return facts


def stays_unknown(world: World) -> ChannelFacts:
    """What stays open: it is read again and again, and never admitted again."""
    requests = len(world.lines("requests.jsonl"))
    facts = goes_on(world)
    assert facts.command is not None
    assert (facts.command.status, facts.effect) == (CommandStatus.UNKNOWN, Effect.UNKNOWN), facts.history
    assert facts.settlement is None
    assert facts.capacity is not None
    assert facts.capacity.used == 1
    assert len(world.lines("requests.jsonl")) == requests
    return facts


def k0_nothing_is_decided(world: World, owner: str) -> None:
    for dies_at in ("before", "inside"):
        assert world.process("stage", key="one", owner=owner, dies=dies_at).wait() == SIGKILLED
        facts = look(world)
        assert (facts.facts, facts.intent, facts.effects) == (0, None, 0), dies_at
        assert facts.capacity is None or facts.capacity.used == 0
    staged(world, owner)
    settled_once(world, 1)


def k1_the_producer_got_no_answer(world: World, owner: str) -> None:
    assert world.process("stage", key="one", owner=owner, dies="after").wait() == SIGKILLED
    first = look(world)
    assert (first.facts, first.has_arrived, first.effect) == (1, False, Effect.NOT_YET)
    assert first.capacity is not None
    assert first.capacity.used == 1, "its place is taken although nobody has relayed it"
    staged(world, owner)
    again = look(world)
    assert (again.intent, again.capacity) == (first.intent, first.capacity)
    settled_once(world, 1)


def k2_the_service_dies_as_it_stages(world: World, owner: str) -> None:
    def dies_at(point: str) -> ChannelFacts:
        assert world.process("stage_alone", key="one", owner=owner, crash_at=point).wait() == SIGKILLED, world.logs()
        return look(world)

    assert dies_at("stage.before").intent is None
    first = dies_at("stage.after")
    assert first.intent is not None
    assert (first.has_arrived, first.effects) == (False, 0)
    assert world.process("stage_alone", key="one", owner=owner).wait() == 0, world.logs()
    assert look(world).intent == first.intent, "asked for again, it is the same command"
    facts = goes_on(world)
    assert (facts.effects, facts.effect) == (1, Effect.ACCEPTED), facts.history


def k3_inside_the_relay(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "relay.inside")
    assert (facts.has_arrived, facts.effect) == (False, Effect.NOT_YET)
    facts = settled_once(world, 1)
    assert facts.command is not None
    assert facts.command.number == 1


def k4_relayed(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "relay.after")
    assert (facts.has_arrived, facts.effect) == (True, Effect.NOT_YET)
    settled_once(world, 1)


def k4b_inside_the_claim(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.claiming")
    assert facts.command is not None
    assert (facts.command.status, facts.command.fence) == (CommandStatus.PENDING, 0)
    settled_once(world, 1)


def k5_claimed(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.claimed")
    assert (facts.has_arrived, facts.effect) == (True, Effect.NOT_YET)
    settled_once(world, 2)


def k6_read_as_absent(world: World, owner: str) -> None:
    staged(world, owner)
    for point in ("delivery.read", "delivery.acting"):
        facts = dies(world, point)
        assert (facts.effect, facts.effects) == (Effect.NOT_YET, 0), point
    settled_once(world, 3)


def k7_started_at_a_local_owner(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.started")
    assert (facts.effect, facts.effects) == (Effect.UNKNOWN, 0)
    settled_once(world, 2)


def k7b_inside_the_admission(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "admission.inside")
    assert (facts.effect, facts.effects) == (Effect.UNKNOWN, 0), "effect and receipt are committed together or not at all"
    settled_once(world, 2)


def k8_started_at_a_remote_owner(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.started")
    assert (facts.effect, facts.effects) == (Effect.UNKNOWN, 0)
    assert stays_unknown(world).effects == 0


def k9_the_request_is_on_its_way(world: World, owner: str) -> None:
    staged(world, owner)
    assert world.process("deliver", stuck=True).wait() == SIGKILLED, world.logs()
    assert look(world).effect is Effect.UNKNOWN
    assert stays_unknown(world).effects == 0
    assert world.process("land").wait() == 0
    facts = goes_on(world, leaves_unknown=False)
    assert facts.settlement is not None
    assert (facts.effects, facts.effect) == (1, Effect.ACCEPTED)


def k10_the_acknowledgement_is_lost(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.admitted")
    assert (facts.effect, facts.effects) == (Effect.UNKNOWN, 1), "it happened; the channel does not say so before it has read it"
    settled_once(world, 2)


def k11_the_refusal_is_not_acknowledged(world: World, owner: str) -> None:
    staged(world, owner, refuse=True)
    dies(world, "delivery.admitted")
    facts = goes_on(world)
    assert (facts.effects, facts.effect) == (0, Effect.REJECTED)
    assert facts.capacity is not None
    assert facts.capacity.used == 0


def k12_settled_and_nobody_told(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.settled")
    assert (facts.effect, facts.effects) == (Effect.ACCEPTED, 1)
    assert settled_once(world, 1).settlement == facts.settlement


def k13_the_deferral_is_lost(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.acting", unreadable=True)
    assert facts.command is not None
    assert (facts.command.status, facts.effect) == (CommandStatus.CLAIMED, Effect.NOT_YET)
    settled_once(world, 2)


def k15_paused_behind_the_admission(world: World, owner: str) -> None:
    staged(world, owner)
    sleeper = world.process("deliver", pauses_at="delivery.admitted")
    world.until(lambda: bool(world.lines("paused.jsonl")), "the deliverer reaches its pause")
    facts = settled_once(world, 2)
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait() == 0, world.logs()
    assert look(world).settlement == facts.settlement
    assert look(world).history == facts.history


def k16_never_readable(world: World, owner: str) -> None:
    staged(world, owner)
    facts = dies(world, "delivery.acted", unreadable=True)
    assert facts.command is not None
    assert (facts.command.status, facts.command.is_uncertain) == (CommandStatus.PENDING, False)
    facts = goes_on(world, unreadable=True, attempts_max=3)
    assert facts.command is not None
    assert (facts.command.status, facts.effect) == (CommandStatus.QUARANTINED, Effect.NOT_YET)
    assert facts.capacity is not None
    assert facts.capacity.used == 1


def k17_superseded_before_the_admission(world: World, owner: str) -> None:
    staged(world, owner)
    dies(world, "delivery.read")
    assert world.process("supersede", owner=owner).wait() == 0
    facts = goes_on(world)
    assert facts.command is not None
    assert (facts.command.status, facts.effect, facts.effects) == (CommandStatus.DISCARDED, Effect.NEVER, 0)


def k18_superseded_behind_the_admission(world: World, owner: str) -> None:
    staged(world, owner)
    dies(world, "delivery.admitted")
    assert world.process("supersede", owner=owner).wait() == 0
    settled_once(world, 2)


def k19_inside_the_quarantine(world: World, owner: str) -> None:
    staged(world, owner)
    dies(world, "delivery.claimed")
    facts = dies(world, "delivery.claiming", attempts_max=1)
    assert facts.command is not None
    assert facts.command.status is CommandStatus.CLAIMED, "nothing of it was stored; it stays claimable"
    facts = goes_on(world, attempts_max=1)
    assert facts.command is not None
    assert (facts.command.status, facts.effect) == (CommandStatus.QUARANTINED, Effect.NOT_YET)


def k21_due_while_nobody_was_there(world: World, owner: str) -> None:
    staged(world, owner, due_ms=400)
    assert not look(world).has_arrived
    facts = dies(world, "relay.after")
    assert facts.intent is not None
    assert facts.command is not None
    assert facts.command.accepted_at >= facts.intent.due_at
    settled_once(world, 1)


BOTH: Final = ("book", "post")
DEATHS: Final[list[tuple[str, Callable[[World, str], None], tuple[str, ...]]]] = [
    ("K0", k0_nothing_is_decided, ("book",)),
    ("K1-K2", k1_the_producer_got_no_answer, ("book",)),
    ("K2-service", k2_the_service_dies_as_it_stages, ("book",)),
    ("K3", k3_inside_the_relay, ("book",)),
    ("K4", k4_relayed, ("book",)),
    ("K4b", k4b_inside_the_claim, BOTH),
    ("K5", k5_claimed, BOTH),
    ("K6", k6_read_as_absent, BOTH),
    ("K7", k7_started_at_a_local_owner, ("book",)),
    ("K7b", k7b_inside_the_admission, ("book",)),
    ("K8", k8_started_at_a_remote_owner, ("post",)),
    ("K9", k9_the_request_is_on_its_way, ("post",)),
    ("K10", k10_the_acknowledgement_is_lost, BOTH),
    ("K11", k11_the_refusal_is_not_acknowledged, BOTH),
    ("K12", k12_settled_and_nobody_told, BOTH),
    ("K13", k13_the_deferral_is_lost, ("post",)),
    ("K15", k15_paused_behind_the_admission, BOTH),
    ("K16", k16_never_readable, ("post",)),
    ("K17", k17_superseded_before_the_admission, BOTH),
    ("K18", k18_superseded_behind_the_admission, BOTH),
    ("K19", k19_inside_the_quarantine, ("book",)),
    ("K21", k21_due_while_nobody_was_there, ("book",)),
]
CASES: Final = [
    Case(number=number, play_it=play, owner=owner, store=store)
    for store in STORES
    for number, play, owners in DEATHS
    for owner in owners
]


@pytest.mark.req("CC-02", "CC-20", "CC-22", "CC-46", "CC-49", "CC-50", "CC-60", "CC-63", "CC-01", "C12", "C71")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_death_at_each_point_leaves_one_right_continuation(player: Player, case: Case) -> None:
    player(case).result()


def test_each_point_of_the_channel_kills_somebody_here() -> None:
    """K14 and K20 are no deaths: a lease that ends inside an admission, and a clock that is set back."""
    named = {point for point in POINTS if point.startswith(("stage.", "relay.", "delivery.", "admission."))}
    source = Path(__file__).read_text()
    assert {point for point in named if f'"{point}"' in source} == named
