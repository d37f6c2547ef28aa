"""What a run is given from outside, at the edges: bounds, lost answers of commits, order in the journal, and bells."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.errors import InvalidInput, InvariantBroken
from quiesce.domain.ids import Position, ReceiptId, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.mailbox import EntryId, EntryKind, EntryStatus, MailboxEntry
from quiesce.domain.operations import OperationKind, OperationStatus
from quiesce.domain.runs import Durability
from quiesce.runtime.context import Run
from quiesce.runtime.mailbox import Arrival, arrive_tx
from quiesce.runtime.registry import declare_agent
from tests.runtime.kit import FAST, Cluster, eventually

BY_BELL = replace(FAST, poll_ms=600_000, linger_ms=600_000)
"""Neither looks again nor parks: only a bell tells it of anything."""


async def hears(run: Run) -> list[list[str]]:
    return [[c.text for c in await run.corrections()] for _ in range(3)]


async def waits_twice(run: Run) -> list[object]:
    return [await run.wait_for("w"), await run.wait_for("w")]


HEARS, WAITS_TWICE = declare_agent(hears), declare_agent(waits_twice)


@pytest.mark.req("CC-24", "NO-11")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": "k" * (DEFAULT_LIMITS.key_chars_max + 1)}, "key"),
        ({"subject": ""}, "subject"),
        ({"subject": "s" * (DEFAULT_LIMITS.name_chars_max + 1)}, "subject"),
        ({"name": ""}, "name"),
        ({"name": "n" * (DEFAULT_LIMITS.name_chars_max + 1)}, "name"),
        ({"value": "v" * (DEFAULT_LIMITS.payload_bytes_max + 1)}, "value"),
        ({"kind": EntryKind.CORRECTION, "value": 7}, "text"),
        ({"kind": EntryKind.CORRECTION, "value": ""}, "text"),
        ({"kind": EntryKind.CORRECTION, "value": "t" * (DEFAULT_LIMITS.correction_chars_max + 1)}, "text"),
    ],
)
async def test_what_breaks_a_rule_is_refused_by_name_and_reaches_nobody(
    cluster: Cluster, fields: dict[str, object], field: str
) -> None:
    run_id = await cluster.submit(HEARS)
    wanted = Arrival(run_id=run_id, kind=EntryKind.WAKE, name="w", value=1, key="k", subject="ada")
    wrong = replace(wanted, **fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as refused:
        await cluster.store.transact(lambda tx: arrive_tx(tx, cluster.env, wrong))
    assert refused.value.details["field"] == field
    assert await cluster.service.mailbox(run_id) == []


@pytest.mark.parametrize("name", ["", "n" * (DEFAULT_LIMITS.name_chars_max + 1)])
async def test_a_run_waits_for_a_name_that_a_wake_can_have(cluster: Cluster, name: str) -> None:
    async def wrong(run: Run) -> str:
        try:
            await run.wait_for(name)
        except InvalidInput as error:
            return str(error.details["field"])
        return ""

    agent = declare_agent(wrong)
    await cluster.start(agent)
    assert await cluster.result(await cluster.submit(agent)) == "name"


@pytest.mark.req("C88", "C13", "RR-10")
async def test_a_taking_whose_answer_was_lost_takes_nothing_more(cluster: Cluster) -> None:
    run_id = await cluster.submit(WAITS_TWICE)
    for number in range(2):
        await cluster.service.wake(run_id, "w", number)
    host = cluster.host(WAITS_TWICE)
    host.line.loses_of_agents = 2
    await host.start()
    assert await cluster.result(run_id) == [0, 1]
    assert host.line.loses_of_agents == 0
    assert [(e.status, e.position) for e in await cluster.service.mailbox(run_id)] == [
        (EntryStatus.APPLIED, "1"),
        (EntryStatus.APPLIED, "2"),
    ]


@pytest.mark.req("C88", "C76", "NO-10")
async def test_a_question_whose_commit_was_not_answered_is_asked_once(cluster: Cluster) -> None:
    async def one(run: Run) -> bool:
        return await run.ask("May I?")

    agent = declare_agent(one)
    host = cluster.host(agent)
    host.line.loses_of_agents = 1
    await host.start()
    run_id = await cluster.submit(agent)

    async def has_asked() -> bool:
        return host.line.loses_of_agents == 0 and bool(await cluster.service.questions())

    await eventually(has_asked)
    (question,) = await cluster.service.questions()
    await cluster.service.answer(question.id, True)
    assert await cluster.result(run_id) is True
    assert len(await cluster.store.read(lambda tx: tx.interactions.of_run(run_id))) == 1


@pytest.mark.req("RR-09", "CC-68")
async def test_a_boundary_takes_a_bounded_number_of_corrections_and_the_next_one_the_rest(cluster: Cluster) -> None:
    run_id = await cluster.submit(HEARS)
    for text in "abc":
        await cluster.service.correct(run_id, text)
    await cluster.start(HEARS, limits=replace(DEFAULT_LIMITS, corrections_batch_max=2))
    assert await cluster.result(run_id) == [["a", "b"], ["c"], []]
    journal = await cluster.journal(run_id)
    assert {(o.kind, o.status) for o in journal.values()} == {(OperationKind.CORRECTION, OperationStatus.CONSUMED)}


@pytest.mark.req("RR-09", "RR-11")
async def test_what_a_taking_rests_on_is_stored_before_it(cluster: Cluster) -> None:
    ran: list[str] = []

    async def think() -> str:
        ran.append("think")
        return "tea"

    async def thinks_first(run: Run) -> list[str]:
        return [await run.step(think), *[c.text for c in await run.corrections()]]

    agent = declare_agent(thinks_first)
    run_id = await cluster.submit(agent, durability=Durability.EXIT)
    await cluster.service.correct(run_id, "coffee")
    first = await cluster.start(agent, crash_at="intake.before")
    await first.death()
    assert (await cluster.journal(run_id))["1"].has_result
    await cluster.start(agent)
    assert await cluster.result(run_id) == ["tea", "coffee"]
    assert ran == ["think"]


@pytest.mark.req("C13", "C69")
async def test_of_two_branches_woken_by_one_wake_the_other_waits_on_and_has_not_timed_out(cluster: Cluster) -> None:
    async def both(run: Run) -> list[object]:
        return sorted(await asyncio.gather(run.wait_for("w", timeout=3600), run.wait_for("w", timeout=3600)), key=str)

    async def is_applied() -> bool:
        return any(e.status is EntryStatus.APPLIED for e in await cluster.service.mailbox(run_id))

    agent = declare_agent(both)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await cluster.service.wake(run_id, "w", "first")
    await eventually(is_applied)
    await cluster.service.wake(run_id, "w", "second")
    assert await cluster.result(run_id) == ["first", "second"]
    journal = await cluster.journal(run_id)
    assert {(o.kind, o.status) for o in journal.values()} == {(OperationKind.WAIT, OperationStatus.CONSUMED)}


@pytest.mark.req("C13", "NO-12")
@pytest.mark.parametrize("by", ["wake", "answer"])
async def test_a_run_that_waits_in_its_process_hears_of_it_by_bell(cluster: Cluster, by: str) -> None:
    async def waits(run: Run) -> object:
        return await run.wait_for("w") if by == "wake" else await run.ask("May I?")

    agent = declare_agent(waits)
    await cluster.start(agent, settings=BY_BELL)
    run_id = await cluster.submit(agent)
    await eventually(lambda: _is_under_way(cluster, run_id))
    if by == "wake":
        await cluster.service.wake(run_id, "w", True)
    else:
        (question,) = await cluster.service.questions()
        await cluster.service.answer(question.id, True)
    assert await cluster.result(run_id) is True


async def _is_under_way(cluster: Cluster, run_id: RunId) -> bool:
    return bool(await cluster.journal(run_id))


@pytest.mark.req("C06", "C07")
@pytest.mark.parametrize("end", ["applied", "withdrawn", "returned"])
def test_an_entry_that_has_ended_does_not_end_again(end: str) -> None:
    entry = MailboxEntry(
        id=EntryId("e"),
        run_id=RunId("r"),
        number=1,
        kind=EntryKind.WAKE,
        name="w",
        key="k",
        subject="ada",
        body=b"1",
        arrived_at=Instant(1),
    )

    def ended(of: MailboxEntry, how: str) -> MailboxEntry:
        match how:
            case "applied":
                return of.applied(Position("1"), None, Instant(2))
            case "withdrawn":
                return of.withdrawn(Instant(2))
            case _:
                return of.returned(ReceiptId("x"), Instant(2))

    done = ended(entry, end)
    assert str(done.status) == end
    for again in ("applied", "withdrawn", "returned"):
        with pytest.raises(InvariantBroken):
            ended(done, again)
