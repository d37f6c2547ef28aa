"""Every way in which a holder writes is fenced: a stale write leaves every table as it was (RR-05)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import Final

import pytest

from quiesce.domain.ids import Fence, Position
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.store import Store, Transaction
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]
Dump = Callable[[], dict[str, list[tuple[object, ...]]]]
Fill = Callable[[RunWrite, Samples, Run], RunWrite]

EVERY_KIND: Final[dict[str, Fill]] = {
    "operations": lambda write, make, run: replace(write, operations=(make.operation(run, "2"),)),
    "events": lambda write, make, run: replace(write, events=make.texts(run, "a")),
    "checkpoints": lambda write, make, run: replace(write, checkpoints=(make.checkpoint(run),)),
    "artifacts": lambda write, make, run: replace(write, artifacts=(make.artifact(run),)),
    "consumed": lambda write, make, run: replace(write, consumed=(Position("1"),)),
    "reserve_seq": lambda write, make, run: replace(write, reserve_seq=256),
    "ancestors": lambda write, make, run: replace(
        write, ancestors=(run.root_id,), operations=(make.operation(run, "3", reserved={"calls": 1}),)
    ),
    "closes_step": lambda write, make, run: replace(write, closes_step=True, checkpoints=(make.checkpoint(run),)),
}


def test_every_field_of_a_write_is_tried() -> None:
    assert {field.name for field in fields(RunWrite)} - {"run_id", "fence"} == set(EVERY_KIND)


@pytest.mark.req("RR-05", "C64")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("fence", ["older", "newer"])
async def test_a_write_under_another_fence_changes_no_table(
    url: str, opened: Open, dump: Dump, make: Samples, kind: str, fence: str
) -> None:
    store = await opened(url)
    run = make.running()

    def begin(tx: Transaction) -> None:
        tx.runs.insert(run)
        tx.streams.open(run.id)
        tx.operations.put_many([make.operation(run, "1", status=OperationStatus.COMMITTED)])

    await store.transact(begin)
    other = Fence(run.fence - 1 if fence == "older" else run.fence + 1)
    before = dump()
    write = EVERY_KIND[kind](RunWrite(run_id=run.id, fence=other), make, run)
    assert await store.write(write) is WriteOutcome.STALE
    assert dump() == before
    assert await store.write(replace(write, fence=run.fence)) is WriteOutcome.APPLIED
    assert dump() != before
