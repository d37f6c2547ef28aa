"""Joining a run at any time: it says where it stands, goes on where one left, and ends once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.runtime.context import Run
from quiesce.runtime.readers import Frame, StreamStatus, read_stream
from quiesce.runtime.registry import declare_agent
from tests.readers.kit import Read, last_number, process, said
from tests.runtime.kit import FAST, Cluster, Gate, eventually, within


async def asks(run: Run) -> str:
    await run.emit("before")
    answer = await run.ask("Which colour?", answer=str)
    await run.emit(f"after {answer}")
    return answer


ASKS = declare_agent(asks)


async def waiting(cluster: Cluster) -> RunId:
    """Start a run that waits for a person, end its process, and return it."""
    host = await cluster.start(ASKS)
    run_id = await cluster.submit(ASKS)
    await cluster.reaches(run_id, RunStatus.WAITING)
    await host.close()
    return run_id


def is_waiting(frame: Frame) -> bool:
    return isinstance(frame, StreamStatus) and frame.status is RunStatus.WAITING


@pytest.mark.req("C39", "ST-15", "ST-08")
async def test_a_run_that_waits_for_a_person_is_joined_from_elsewhere_and_says_what_it_asks(cluster: Cluster) -> None:
    run_id = await waiting(cluster)
    env, _ = process(cluster.store)
    read, frames = Read(), read_stream(env, run_id)
    await read.take(frames, until=lambda frame: len(read.events) == 1)
    first = read.frames[0]
    assert isinstance(first, StreamStatus)
    (question,), (wait,) = first.questions, first.waits
    assert (first.status, first.after, first.stored_seq) == (RunStatus.WAITING, 0, 1)
    assert (wait.kind, wait.subject, parse(question.prompt)) == (WaitKind.ANSWER, question.id, "Which colour?")
    await cluster.start(ASKS)
    await cluster.service.answer(question.id, "red")
    await read.take(frames)
    assert read.data == ["before", "after red"]
    assert read.end.status is RunStatus.COMPLETED


@pytest.mark.req("C39")
async def test_a_reader_that_is_there_learns_that_the_run_begins_to_wait_and_that_it_goes_on(cluster: Cluster) -> None:
    run_id = await cluster.submit(ASKS)
    read, frames = Read(), read_stream(cluster.env, run_id)
    await read.take(frames, until=lambda _: True)
    assert read.statuses[0].status is RunStatus.PENDING
    await cluster.start(ASKS)
    await read.take(frames, until=is_waiting)
    assert read.data == ["before"], "what was said before it waits comes before"
    (question,) = read.statuses[-1].questions
    await cluster.service.answer(question.id, "blue")
    await read.take(frames)
    assert read.data == ["before", "after blue"]
    assert not read.statuses[-1].questions
    assert last_number(run_id, read.events) == read.end.last_seq, "a status has no number and moves nothing"


@pytest.mark.req("C39", "C81")
async def test_a_question_whose_time_has_passed_is_not_shown_as_one_to_answer(cluster: Cluster) -> None:
    async def hurries(run: Run) -> bool:
        return await run.ask("Now?", expires_in=0.001)

    agent = declare_agent(hurries)
    host = await cluster.start(agent, settings=replace(FAST, linger_ms=0, sweep_ms=600_000))
    run_id = await cluster.submit(agent)
    run = await cluster.reaches(run_id, RunStatus.WAITING, RunStatus.COMPLETED, RunStatus.FAILED)
    await host.close()

    async def nobody_is_asked() -> bool:
        first = await within(anext(read_stream(cluster.env, run_id)))
        return isinstance(first, StreamStatus) and not first.questions

    await eventually(nobody_is_asked)
    assert run.id == run_id


@pytest.mark.req("C33", "C39", "TR-22", "TR-53")
async def test_two_subscribers_of_a_run_that_waits_get_one_end_each_when_it_is_cancelled(cluster: Cluster) -> None:
    run_id = await waiting(cluster)
    reads = [Read(), Read()]
    tasks = [asyncio.create_task(read.take(read_stream(cluster.env, run_id))) for read in reads]
    await eventually(lambda: _have_joined(reads))
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    await within(asyncio.gather(*tasks))
    for read in reads:
        assert (read.end.receipt_id, read.end.status) == (receipt.id, receipt.status)
        assert read.data == ["before"]
    outbox = await cluster.store.read(lambda tx: tx.outbox.pending(limit=10))
    assert [message.run_id for message in outbox] == [run_id]


async def _have_joined(reads: list[Read]) -> bool:
    return all(read.frames for read in reads)


@pytest.mark.req("C31", "ST-15")
async def test_of_a_run_that_has_ended_every_cursor_ends_after_a_restart_of_everything(cluster: Cluster) -> None:
    async def talks(run: Run) -> None:
        for n in range(3):
            await run.emit(n)

    agent = declare_agent(talks)
    host = await cluster.start(agent)
    run_id = await cluster.submit(agent)
    receipt = await cluster.receipt(run_id)
    await host.close()
    for after, rest in ((0, [0, 1, 2]), (2, [2]), (3, []), (4, []), (10**6, [])):
        env, _ = process(cluster.store)
        read = await Read().take(read_stream(env, run_id, after=after))
        assert read.data == rest
        assert (read.end.receipt_id, read.end.last_seq) == (receipt.id, 3)
        assert (read.statuses[0].after, read.statuses[0].stored_seq) == (after, 3)
    for wrong in (-1, -(10**6)):
        with pytest.raises(InvalidInput, match=f"after: {wrong} must be a number of the stream, or 0 for all of it"):
            await within(anext(read_stream(cluster.env, run_id, after=wrong)))


@pytest.mark.req("C31", "ST-15")
async def test_a_cursor_past_the_end_of_a_run_that_goes_on_is_told_so_and_waits(cluster: Cluster) -> None:
    gate = Gate()

    async def talks(run: Run) -> None:
        await run.emit("one")
        await run.step(gate.wait)
        await run.emit("two")

    agent = declare_agent(talks)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)
    await gate.arrival()
    await cluster.stored(run_id, 1)
    read, frames = Read(), read_stream(cluster.env, run_id, after=1)
    await read.take(frames, until=lambda _: True)
    assert (read.statuses[0].after, read.statuses[0].stored_seq) == (1, 1)
    ahead, further = Read(), read_stream(cluster.env, run_id, after=7)
    await ahead.take(further, until=lambda _: True)
    assert (ahead.statuses[0].after, ahead.statuses[0].stored_seq) == (7, 1)
    gate.open()
    await read.take(frames)
    await ahead.take(further)
    assert (read.data, ahead.data) == (["two"], [])
    assert read.end == ahead.end


@pytest.mark.req("ST-01", "ST-15")
async def test_a_reader_never_steps_over_a_number_that_is_still_to_come(cluster: Cluster) -> None:
    run_id = await cluster.submit(ASKS)
    one, two, three = said(run_id, "one", "two", "three")
    await cluster.store.transact(lambda tx: tx.streams.append_many([one, three]))
    read = Read()
    reading = asyncio.create_task(read.take(read_stream(cluster.env, run_id)))
    await eventually(lambda: _have_joined([read]))
    await cluster.service.cancel(run_id)
    await cluster.receipt(run_id)
    assert not reading.done()
    await cluster.store.transact(lambda tx: tx.streams.append_many([two]))
    await within(reading)
    assert read.events == [one, two, three]
    assert read.end.last_seq == 3


@pytest.mark.req("C34", "ST-15")
async def test_a_state_and_the_events_behind_its_cursor_are_the_final_state_two_hundred_times(cluster: Cluster) -> None:
    rounds = 200
    goes = asyncio.Semaphore(0)

    async def counts(run: Run) -> int:
        total = 0
        for n in range(1, rounds + 1):
            await goes.acquire()
            total += n
            await run.emit(n)
            if n % 5 == 0:
                await run.checkpoint({"total": total})
        return total

    agent = declare_agent(counts)
    await cluster.start(agent)
    run_id = await cluster.submit(agent)

    async def joins() -> int:
        """Read the state, let the agent go on, and only then join behind the cursor that the state names."""
        seen = await cluster.service.inspect(run_id)
        goes.release()
        await asyncio.sleep(0)
        state = parse(seen.checkpoint.state) if seen.checkpoint else {"total": 0}
        assert isinstance(state, dict)
        cursor = seen.checkpoint.covered_seq if seen.checkpoint else 0
        read = await Read().take(read_stream(cluster.env, run_id, after=cursor))
        assert [event.seq for event in read.events] == list(range(cursor + 1, rounds + 1))
        return int(str(state["total"])) + sum(int(str(n)) for n in read.data)

    readers = []
    for _ in range(rounds):
        readers.append(asyncio.create_task(joins()))
        await asyncio.sleep(0.001)
    totals = await within(asyncio.gather(*readers))
    assert await cluster.result(run_id) == sum(range(rounds + 1))
    assert set(totals) == {sum(range(rounds + 1))}
