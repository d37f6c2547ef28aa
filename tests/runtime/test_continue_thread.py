"""`Quiesce.continue_thread`, `thread` and `history`: the library's face on recorded continuation."""

from __future__ import annotations

import asyncio

import pytest

from quiesce import ContinuationRefused, InvalidInput, NotFound, Quiesce, Run, Settings, TerminalReceipt, ThreadBusy, agent
from quiesce.runtime.service import Caller
from tests.runtime.kit import PATIENCE_S

QUICK = Settings(poll_ms=20, sweep_ms=40)


@agent
async def talker(run: Run, message: str) -> list[str]:
    past = [turn.partial.text if turn.partial else str(turn.state) for turn in await run.history()]
    await run.checkpoint({"asked": message})
    if message == "stop":
        await run.emit({"text": "half"})
        await asyncio.Event().wait()
    return past


async def _stopped(q: Quiesce) -> TerminalReceipt:
    handle = await q.start(talker, "stop", thread="t-1")
    async with asyncio.timeout(PATIENCE_S):
        while (await q.thread("t-1")).emitted_seq == 0:
            await asyncio.sleep(0.01)
    return await handle.cancel()


@pytest.mark.req("TR-30", "TR-36", "TR-28", "ST-12")
async def test_a_stopped_conversation_goes_on_by_a_choice_that_names_its_receipt(url: str) -> None:
    async with Quiesce(url, settings=QUICK, agents=[talker]) as q:
        receipt = await _stopped(q)
        view = await q.thread("t-1")
        assert (view.status, view.is_behind, view.receipt_id, view.cursor) == ("choice", True, receipt.id, 0)
        assert [str(choice) for choice in view.choices] == ["reconcile", "restart"]
        with pytest.raises(ContinuationRefused) as refused:
            await q.continue_thread("t-1", "go on")
        assert refused.value.details["choices"] == ["reconcile", "restart"]
        handle = await q.continue_thread("t-1", "go on", accept=receipt.id, policy="reconcile", basis=view.basis)
        assert await handle.result() == ["half"]
        turns = await q.history("t-1")
        assert [turn.run_id for turn in turns] == [receipt.run_id, handle.id]
        assert turns[1].continuation is not None
        assert turns[1].continuation.receipt_id == receipt.id


@pytest.mark.req("TR-30")
async def test_a_policy_may_be_said_ahead_and_a_bad_word_names_the_rule(url: str) -> None:
    async with Quiesce(url, settings=QUICK, agents=[talker]) as q:
        receipt = await _stopped(q)
        for field, word in (("policy", "perhaps"), ("carry", "some"), ("on_busy", "shove")):
            with pytest.raises(InvalidInput, match="must be one of") as bad:
                await q.continue_thread("t-1", "go on", accept=receipt.id, **{field: word})  # type: ignore[arg-type]
            assert bad.value.details["field"] == field
        with pytest.raises(InvalidInput, match="goes with accept"):
            await q.continue_thread("t-1", "go on", basis="x")
        with pytest.raises(InvalidInput, match="names the receipt"):
            await q.continue_thread("t-1", policy="restart")
        handle = await q.continue_thread("t-1", "go on", policy="restart")
        assert await handle.result() == [str({"asked": "stop"})]


@pytest.mark.req("TR-30", "C26")
async def test_a_queue_is_chosen_for_without_a_message(url: str) -> None:
    async with Quiesce(url, settings=QUICK, agents=[talker]) as q:
        first = await q.start(talker, "stop", thread="t-1")
        with pytest.raises(ThreadBusy):
            await q.continue_thread("t-1", "next")
        queued = await q.continue_thread("t-1", "next", on_busy="enqueue")
        async with asyncio.timeout(PATIENCE_S):
            while (await q.thread("t-1")).emitted_seq == 0:
                await asyncio.sleep(0.01)
        receipt = await first.cancel()
        chosen = await q.continue_thread("t-1", accept=receipt.id, policy="reconcile")
        assert chosen.id == queued.id
        assert await queued.result() == ["half"]


@pytest.mark.req("CC-58", "TR-30")
async def test_another_tenants_thread_does_not_exist(url: str, tmp_path: object) -> None:
    if url.startswith("memory"):
        url = f"sqlite:///{tmp_path}/shared.db"  # two faces on one memory store cannot be opened by URL
    async with (
        Quiesce(url, settings=QUICK, agents=[talker]) as q,
        Quiesce(url, settings=QUICK, worker=False, caller=Caller(tenant="other", subject="eve")) as other,
    ):
        receipt = await _stopped(q)
        with pytest.raises(NotFound):
            await other.thread("t-1")
        with pytest.raises(NotFound):
            await other.history("t-1")
        with pytest.raises(NotFound):
            await other.continue_thread("t-1", accept=receipt.id, policy="restart")
        with pytest.raises(InvalidInput, match="belongs to somebody else"):
            await other.continue_thread("t-1", "mine", accept=receipt.id, policy="restart", agent=talker)
        with pytest.raises(NotFound):
            await other.threads.declare(thread="t-1", on_gap="restart")
        assert (await q.thread("t-1")).status == "choice"


@pytest.mark.req("TR-30")
async def test_standing_policies_are_declared_by_name_and_the_newest_counts(url: str) -> None:
    async with Quiesce(url, settings=QUICK, agents=[talker]) as q:
        receipt = await _stopped(q)
        with pytest.raises(InvalidInput, match="either a thread or an agent"):
            await q.threads.declare(thread="t-1", agent="talker", on_gap="restart")
        with pytest.raises(InvalidInput, match="either a thread or an agent"):
            await q.threads.declare(on_gap="restart")
        await q.threads.declare(agent="talker", on_gap="restart")
        await q.threads.declare(thread="t-1", on_gap="block")
        with pytest.raises(ContinuationRefused):
            await q.continue_thread("t-1", "go on")
        again = await q.threads.declare(thread="t-1", on_gap="reconcile")
        assert again.number == 2
        assert await q.threads.declare(thread="t-1", on_gap="reconcile") == again
        assert [(p.name, str(p.on_gap)) for p in await q.threads.declared()] == [("talker", "restart"), ("t-1", "reconcile")]
        handle = await q.continue_thread("t-1", "go on")
        assert await handle.result() == ["half"]
        record = (await q.history("t-1"))[-1].continuation
        assert record is not None
        assert record.standing is not None
        assert (record.standing["name"], record.receipt_id) == ("t-1", receipt.id)
