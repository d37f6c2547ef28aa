"""Submission: a run is durable before anybody is told, once per key, and refused as a whole or not at all."""

from __future__ import annotations

import asyncio

import pytest

from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import (
    ContinuationRefused,
    IdempotencyConflict,
    InvalidInput,
    InvalidPayload,
    NotFound,
    PayloadTooLarge,
    ThreadBusy,
)
from quiesce.domain.ids import ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.resume import Policy
from quiesce.domain.runs import RunStatus
from quiesce.runtime.codec import encode
from quiesce.runtime.context import Run
from quiesce.runtime.registry import declare_agent
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.submission import Submission
from tests.runtime.kit import Cluster, Died, Gate, submission, within


async def echo(run: Run, text: str = "") -> str:
    return text


ECHO = declare_agent(echo)


async def _runs(cluster: Cluster) -> int:
    return len(await cluster.service.list(limit=100))


@pytest.mark.req("CC-12", "C93")
async def test_the_same_key_with_the_same_content_gives_the_same_run(cluster: Cluster) -> None:
    first = await cluster.service.submit(submission(ECHO, "a", key="order-7", budget={"tokens": 5}))
    again = await cluster.service.submit(submission(ECHO, "a", key="order-7", budget={"tokens": 5}))
    assert again == first
    assert await _runs(cluster) == 1


@pytest.mark.req("CC-13", "CC-14", "C93")
@pytest.mark.parametrize(
    "other",
    [
        submission(ECHO, "b", key="order-7"),
        submission(ECHO, "a", key="order-7", budget={"tokens": 6}),
        submission(ECHO, "a", key="order-7", bindings={"model": "other"}),
        submission(ECHO, "a", key="order-7", thread="t-2"),
        submission(ECHO, "a", key="order-7", deadline_at=Instant(4_000_000_000_000_000)),
    ],
)
async def test_the_same_key_with_other_content_is_a_conflict_that_names_both(cluster: Cluster, other: Submission) -> None:
    first = await cluster.service.submit(submission(ECHO, "a", key="order-7"))
    with pytest.raises(IdempotencyConflict, match="order-7") as refused:
        await cluster.service.submit(other)
    assert refused.value.details["run_id"] == first.id
    assert refused.value.details["stored_fingerprint"] == first.fingerprint
    assert refused.value.details["offered_fingerprint"] not in ("", first.fingerprint)
    assert await cluster.service.get(first.id) == first
    assert await _runs(cluster) == 1


@pytest.mark.req("CC-12", "C93")
async def test_a_key_belongs_to_its_tenant(cluster: Cluster) -> None:
    other = ControlService(cluster.env, Caller(tenant="other"))
    mine = await cluster.service.submit(submission(ECHO, "a", key="order-7"))
    theirs = await other.submit(submission(ECHO, "b", key="order-7"))
    assert theirs.id != mine.id
    with pytest.raises(NotFound):
        await other.get(mine.id)


@pytest.mark.req("CC-12", "C93")
async def test_twenty_submissions_of_one_key_at_once_make_one_run(cluster: Cluster) -> None:
    made = await within(asyncio.gather(*[cluster.service.submit(submission(ECHO, "a", key="k")) for _ in range(20)]))
    assert len({run.id for run in made}) == 1
    assert await _runs(cluster) == 1


@pytest.mark.req("CC-12", "C93")
async def test_a_key_still_names_its_run_after_that_has_ended(cluster: Cluster) -> None:
    await cluster.start(ECHO)
    run_id = await cluster.submit(ECHO, "a", key="k", thread="t-1")
    await cluster.receipt(run_id)
    assert await cluster.submit(ECHO, "a", key="k", thread="t-1") == run_id


@pytest.mark.req("C57", "G-24")
async def test_a_run_is_durable_before_the_caller_has_its_answer(cluster: Cluster) -> None:
    host = cluster.host(crash_at="submit.after")
    with pytest.raises(Died):
        await host.service.submit(submission(ECHO, "a", key="k"))
    (stored,) = await cluster.service.list()
    assert (stored.status, stored.key) == (RunStatus.PENDING, "k")
    assert await cluster.submit(ECHO, "a", key="k") == stored.id


@pytest.mark.req("C57")
async def test_a_submission_that_died_before_its_commit_may_be_made_again(cluster: Cluster) -> None:
    host = cluster.host(crash_at="submit.before")
    with pytest.raises(Died):
        await host.service.submit(submission(ECHO, "a", key="k"))
    assert await _runs(cluster) == 0
    await cluster.start(ECHO)
    assert await cluster.result(await cluster.submit(ECHO, "a", key="k")) == "a"


@pytest.mark.req("C98")
async def test_a_thread_takes_one_run_at_a_time(cluster: Cluster) -> None:
    first = await cluster.submit(ECHO, "a", thread="t-1")
    with pytest.raises(ThreadBusy, match=first):
        await cluster.submit(ECHO, "b", thread="t-1")
    await cluster.start(ECHO)
    await cluster.receipt(first)
    second = await cluster.submit(ECHO, "b", thread="t-1")
    assert (await cluster.run(second)).number == 2


@pytest.mark.req("TR-30", "TR-54")
async def test_a_thread_with_an_open_gap_takes_no_message_without_a_recorded_choice(cluster: Cluster) -> None:
    gate = Gate()

    async def talk(run: Run) -> None:
        await run.emit("you saw this")
        await run.step(gate.wait)

    talker = declare_agent(talk)
    await cluster.start(talker)
    run_id = await cluster.submit(talker, thread="t-1")
    await gate.arrival()
    await cluster.service.cancel(run_id)
    receipt = await cluster.receipt(run_id)
    assert receipt.policy.policy is Policy.RECONCILE
    with pytest.raises(ContinuationRefused, match="reconcile") as refused:
        await cluster.submit(ECHO, "and now?", thread="t-1")
    assert refused.value.details["receipt_id"] == receipt.id
    assert await _runs(cluster) == 1


@pytest.mark.req("TR-35")
async def test_a_cancel_without_a_gap_lets_the_thread_go_on(cluster: Cluster) -> None:
    run_id = await cluster.submit(ECHO, thread="t-1")
    await cluster.service.cancel(run_id)
    assert (await cluster.receipt(run_id)).policy.policy is Policy.ALLOW
    assert await cluster.submit(ECHO, thread="t-1") != run_id


@pytest.mark.req("C90")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", "k" * 513),
        ("key", ""),
        ("key", "nul\0"),
        ("key", "\ud800"),
        ("agent", "a" * 201),
        ("thread_id", "t" * 201),
        ("thread_id", "t\0"),
    ],
)
async def test_a_field_that_breaks_a_limit_is_refused_by_name(cluster: Cluster, field: str, value: str) -> None:
    fields = {"agent": "echo", field: value}
    wanted = Submission(
        agent=fields["agent"],
        input=canonical({"args": [], "kwargs": {}}),
        key=fields.get("key"),
        thread_id=ThreadId(fields["thread_id"]) if "thread_id" in fields else None,
    )
    with pytest.raises(InvalidInput, match=field):
        await cluster.service.submit(wanted)
    assert await _runs(cluster) == 0


@pytest.mark.req("C90")
async def test_a_deadline_in_the_past_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidInput, match="deadline_at"):
        await cluster.submit(ECHO, deadline_at=Instant(1_000_000))
    assert await _runs(cluster) == 0


@pytest.mark.req("C90")
@pytest.mark.parametrize("limit", [-1, 2**53, 1.5, True])
def test_a_budget_is_a_whole_number(limit: int) -> None:
    with pytest.raises(InvalidInput, match=r"budget\.tokens"):
        Budget.of_limits({"tokens": limit})


@pytest.mark.req("C90")
@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf"), 2**60, {"deep": "\udfff"}, object()])
def test_a_payload_that_json_cannot_hold_is_refused_before_anything_is_stored(value: object) -> None:
    with pytest.raises(InvalidPayload, match="input"):
        encode({"args": [value]}, field="input")


@pytest.mark.req("C90")
async def test_a_payload_over_the_limit_is_refused_and_says_how_large_it_was(cluster: Cluster) -> None:
    with pytest.raises(PayloadTooLarge, match=r"input.*bytes"):
        await cluster.submit(ECHO, "x" * (4 * 1024 * 1024))
    assert await _runs(cluster) == 0


@pytest.mark.req("C90")
async def test_a_nul_character_is_kept_faithfully(cluster: Cluster) -> None:
    await cluster.start(ECHO)
    assert await cluster.result(await cluster.submit(ECHO, "a\0b\U0001f600")) == "a\0b\U0001f600"


@pytest.mark.req("C01", "CC-36")
async def test_an_agent_nobody_knows_is_left_waiting_and_says_so(cluster: Cluster) -> None:
    await cluster.start(declare_agent(echo, name="other"))
    run_id = await cluster.submit(ECHO)
    inspection = await cluster.service.inspect(run_id)
    assert inspection.run.status is RunStatus.PENDING
    assert "'echo'" in inspection.explain()
