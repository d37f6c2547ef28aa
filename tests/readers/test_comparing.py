"""Comparing what was seen with what is stored: from the store, from a bundle without it, and from the command line."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quiesce.cli import comparing
from quiesce.domain.boundary import GapKind
from quiesce.domain.canonical import canonical
from quiesce.domain.comparison import Comparison, Mark, Numbers, Relation, Seen
from quiesce.domain.errors import InvalidInput, NotFound
from quiesce.domain.ids import RunId
from quiesce.domain.streams import StreamEvent, Visibility
from quiesce.runtime.bundle import Bundle, bundle_of, gather_tx, read_document
from quiesce.runtime.comparison import Compared, compare_bundle
from quiesce.runtime.context import Run
from quiesce.runtime.readers import read_stream
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.service import Caller, ControlService
from tests.cli.shell import Shell
from tests.readers.kit import Read
from tests.runtime.kit import Cluster, Gate, within


class Talker:
    """An agent that says words, keeps the first of them in a checkpoint, and waits at a gate before the last."""

    def __init__(self) -> None:
        self.gate = Gate()

        async def talks(run: Run) -> str:
            await run.emit("kept")
            await run.checkpoint("kept")
            for word in ("one", "two", "three"):
                await run.emit(word)
            await run.step(self.gate.wait)
            await run.emit("last")
            return "done"

        self.agent = declare_agent(talks)


def seen(run_id: RunId, events: Sequence[StreamEvent]) -> Seen:
    client = Seen(run_id)
    for event in events:
        client.take(event)
    return client


def altered(events: Sequence[StreamEvent], at: int) -> list[StreamEvent]:
    """Return what a client holds that was given other words at a number."""
    return [replace(event, payload=canonical("other")) if event.seq == at else event for event in events]


async def ended(cluster: Cluster) -> tuple[RunId, list[StreamEvent]]:
    """Run a talker to its end; return what a reader was given."""
    talker = Talker()
    talker.gate.open()
    await cluster.start(talker.agent)
    run_id = await cluster.submit(talker.agent)
    await cluster.receipt(run_id)
    read = await Read().take(read_stream(cluster.env, run_id))
    return run_id, read.events


async def bundled(cluster: Cluster, run_id: RunId) -> Bundle:
    """Export a run and read the file back."""
    bundle = await cluster.store.read(lambda tx: gather_tx(tx, run_id))
    return bundle_of(read_document(json.dumps(bundle.to_json())))


@pytest.mark.req("TR-15", "TR-13", "C37")
async def test_what_a_reader_was_given_equals_what_is_stored_and_a_bundle_says_the_same_without_the_store(
    cluster: Cluster,
) -> None:
    run_id, events = await ended(cluster)
    bundle = await bundled(cluster, run_id)

    async def compare(*marks: Mark) -> Compared:
        found = await cluster.service.compare(run_id, marks)
        assert compare_bundle(bundle, marks) == found
        return found

    last = len(events)
    whole = await compare(seen(run_id, events).mark)
    assert whole.result == Comparison(relation=Relation.EQUAL, agreed_through=last)
    assert whole.receipt_id == (await cluster.receipt(run_id)).id
    for count in range(last):
        behind = await compare(seen(run_id, events[:count]).mark)
        assert behind.result == Comparison(relation=Relation.DURABLE_AHEAD, events=last - count, agreed_through=count)
    for at in range(1, last + 1):
        other = seen(run_id, altered(events, at))
        assert (await compare(*other.marks())).result == Comparison(
            relation=Relation.DIVERGED, agreed_through=at - 1, diverged_at=at
        )
        assert (await compare(other.mark)).result.relation is Relation.DIVERGED
    beyond = replace(events[-1], seq=last + 1)
    assert (await compare(seen(run_id, [*events, beyond]).mark)).result.never_left
    assert (await compare()).result == Comparison(relation=Relation.EQUAL, agreed_through=last)


@pytest.mark.req("TR-15", "TR-17", "TR-41")
async def test_while_the_run_goes_on_when_its_process_has_died_and_when_it_was_cancelled_d_and_v_compare(
    cluster: Cluster,
) -> None:
    talker = Talker()
    host = await cluster.start(talker.agent)
    run_id = await cluster.submit(talker.agent)
    await talker.gate.arrival()
    await cluster.stored(run_id, 4)
    ahead = Comparison(relation=Relation.VISIBLE_AHEAD, events=3, agreed_through=1)
    assert (await cluster.service.compare(run_id)).result == ahead
    await host.kill()
    assert (await cluster.service.compare(run_id)).result == ahead, "no process of the run is asked"
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    compared = await cluster.service.compare(run_id)
    assert compared.result == ahead
    assert (receipt.gap.kind, receipt.gap.state_bearing) == (GapKind.RECOVERABLE, 3)
    assert compare_bundle(await bundled(cluster, run_id)) == compared


@pytest.mark.req("TR-15", "ST-14")
async def test_what_was_shown_first_and_died_is_nobodys_to_judge_until_the_run_accounts_for_it(cluster: Cluster) -> None:
    talker = Talker()
    host = await cluster.start(talker.agent)
    run_id = await cluster.submit(talker.agent, visibility=Visibility.SHOW_FIRST)
    await talker.gate.arrival()
    await cluster.stored(run_id, 4)
    stored = (await cluster.events(run_id))[:4]
    await host.kill()
    lost = [replace(stored[-1], seq=n, payload=canonical("unstored")) for n in (5, 6)]
    client = seen(run_id, [*stored, *lost])
    found = (await cluster.service.compare(run_id, client.marks())).result
    assert found == Comparison(relation=Relation.VISIBLE_AHEAD, events=2, agreed_through=4, unjudged=(5, 6))
    strange = seen(run_id, [*altered(stored, 2), *lost])
    assert (await cluster.service.compare(run_id, strange.marks())).result.diverged_at == 2
    numbers = (await cluster.service.compare(run_id)).numbers
    assert (numbers.emitted_exact, numbers.stored_seq) == (False, 4)
    far = replace(lost[-1], seq=numbers.emitted_seq + 1)
    beyond = [Mark(seq=far.seq, chain=client.mark.chain)]
    assert (await cluster.service.compare(run_id, beyond)).result.never_left
    talker.gate.open()
    await cluster.start(talker.agent)
    await cluster.receipt(run_id)
    assert (await cluster.service.compare(run_id, client.marks())).result == found, "the gap is in the stream now"
    read = await Read().take(read_stream(cluster.env, run_id, after=6))
    for event in read.events:
        client.take(event)
    assert (await cluster.service.compare(run_id, client.marks())).result.relation is Relation.EQUAL


@pytest.mark.req("TR-15", "TR-14")
async def test_a_ledger_that_is_not_the_receipts_has_diverged_from_it(cluster: Cluster) -> None:
    run_id, events = await ended(cluster)
    bundle = await bundled(cluster, run_id)
    rewritten = seen(run_id, altered(events, 3)).marks()
    rows = [replace(row, chain=mark.chain) for row, mark in zip(bundle.events, rewritten[1:], strict=True)]
    assert compare_bundle(replace(bundle, events=rows)).result.relation is Relation.DIVERGED
    assert compare_bundle(bundle).result.relation is Relation.EQUAL


@pytest.mark.req("C94")
async def test_a_run_of_another_tenant_cannot_be_compared(cluster: Cluster) -> None:
    run_id, _ = await ended(cluster)
    with pytest.raises(NotFound):
        await ControlService(cluster.env, Caller(tenant="other")).compare(run_id)


@pytest.mark.req("TR-15", "TR-62")
async def test_comparing_changes_nothing_and_may_be_done_while_the_run_emits(cluster: Cluster) -> None:
    async def babbles(run: Run) -> None:
        for n in range(300):
            await run.emit(n)
            await asyncio.sleep(0)

    agent = declare_agent(babbles)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    client = Seen(run_id)
    relations: set[Relation] = set()
    async with asyncio.timeout(60):
        async for frame in read_stream(cluster.env, run_id):
            if isinstance(frame, StreamEvent):
                client.take(frame)
                if frame.seq % 25 == 0:
                    relations.add((await cluster.service.compare(run_id, [client.mark])).result.relation)
    assert relations <= {Relation.EQUAL, Relation.DURABLE_AHEAD}
    assert (await within(cluster.service.compare(run_id, client.marks()))).result.relation is Relation.EQUAL


# -- the command line ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("TR-15", "RR-22", "TR-62")
def test_the_command_line_compares_a_clients_lines_with_store_and_bundle(shell: Shell, tmp_path: Path) -> None:
    run = shell.run("start", "--case", "slow-stream", "--input", '{"tokens": 30, "delay_ms": 0}', "--json").json()
    watched = shell.run("watch", "last", "--json").out
    lines, kept = watched.splitlines(), tmp_path / "seen.jsonl"
    assert shell.run("export", "last", "-o", "run.json").code == 0
    last = json.loads(lines[-1])["last_seq"]

    kept.write_text("\n".join(lines[:12]))
    plain = shell.run("compare", "last", "--events", str(kept))
    assert plain.code == 0, plain.err
    assert f"durable ahead by {last - 12} events: the same up to event 12" in plain.out
    assert re.search(r"0 .*─ seen 12 .*─ D,stored,V \d+ ┃ T", plain.out)
    kept.write_text("\n".join([*lines[:9], json.dumps({**json.loads(lines[9]), "payload": "other"}), *lines[10:]]))
    offline = shell.run("compare", "--bundle", "run.json", "--events", str(kept), "--json")
    assert offline.code == 7
    found = offline.json()
    assert (found["relation"], found["diverged_at"], found["diverged_at_exact"]) == ("diverged", 10, True)
    assert (found["run_id"], found["numbers"]["stored_seq"]) == (run["run_id"], last)
    assert "diverged at event 10; the same up to event 9" in offline.err


@pytest.mark.parametrize(
    ("text", "names"), [("\n[1]\n", "events line 2"), ("}", "events line 1"), ('{"seq": 2, "kind": "data", "payload": 1}', "seq")]
)
def test_lines_that_are_no_beginning_of_a_stream_are_refused_by_name(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "seen.jsonl").write_text(text)
    with pytest.raises(InvalidInput) as refused:
        comparing._marks_of(tmp_path / "seen.jsonl", RunId("r"))
    assert refused.value.details["field"] == names


def test_what_cannot_be_compared_is_refused_by_name(shell: Shell) -> None:
    refused = shell.run("compare", "last", "--seen", "3", "--json")
    assert (refused.code, refused.error()["details"]["field"]) == (2, "--seen")
    with pytest.raises(InvalidInput, match="cannot be read"):
        comparing._marks_of(shell.directory / "nowhere", RunId("r"))


NUMBERS = Numbers(covered_seq=4, stored_seq=8, emitted_seq=10, emitted_exact=False, state_bearing_stored=4)
MARK = Mark(seq=9, chain="sha256:" + 64 * "0")


@pytest.mark.req("TR-15")
@pytest.mark.parametrize(
    ("result", "mark", "words", "line"),
    [
        (
            Comparison(relation=Relation.VISIBLE_AHEAD, events=6, agreed_through=4, unjudged=(9, 10)),
            None,
            "visible ahead by 6 events that the last checkpoint does not hold; of 9 to 10 nothing is stored",
            r"0 ─+ D 4 ─+ stored 8 ─+ V 10 …",
        ),
        (
            Comparison(relation=Relation.VISIBLE_AHEAD, events=1, agreed_through=8, unjudged=(9, 9)),
            MARK,
            "visible ahead by 1 event: the same up to event 8; what was seen beyond what is stored cannot be judged by anybody",
            r"0 ─+ D 4 ─+ stored 8 ─+ seen 9 ─+ V 10 …",
        ),
        (
            Comparison(relation=Relation.DIVERGED, diverged_at=3),
            MARK,
            "diverged at or before event 3; nothing is known to be the same",
            r"0 ─+ differs 3 ─+ D 4 ─+ stored 8 ─+ seen 9 ─+ V 10 …",
        ),
        (
            Comparison(relation=Relation.DIVERGED, agreed_through=8, diverged_at=11, never_left=True),
            replace(MARK, seq=12),
            "diverged: event 11 never left, and was seen; the same up to event 8",
            r"0 ─+ D 4 ─+ stored 8 ─+ V 10 ─+ differs 11 ─+ seen 12 …",
        ),
        (
            Comparison(relation=Relation.EQUAL, agreed_through=8),
            replace(MARK, seq=8),
            "equal: what was seen is what is stored, 8 events",
            r"0 ─+ D 4 ─+ stored,seen 8 ─+ V 10 …",
        ),
    ],
)
def test_what_was_found_is_said_in_words_and_drawn_to_scale(result: Comparison, mark: Mark | None, words: str, line: str) -> None:
    compared = Compared(run_id=RunId("r"), numbers=NUMBERS, receipt_id=None, seen=mark, stored=MARK, result=result)
    assert comparing.words_of(compared) == words
    assert re.fullmatch(line, comparing.drawn(compared))
