"""Checkpoints: added, numbered, never changed."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.canonical import canonical
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.ids import CheckpointId, RunId
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class CheckpointsContract(StoreContract):
    """`Checkpoints`."""

    @proves("TR-03", "TR-12")
    def test_a_checkpoint_is_read_back_as_it_was_added(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        first = make.checkpoint(run, state={"plan": [1, 2]}, covered_seq=4)
        second = replace(make.checkpoint(run, number=2, parent=first), is_final=True)
        _add(store, first, second)
        assert store.read(lambda tx: (tx.checkpoints.get(first.id), tx.checkpoints.get(second.id))) == (first, second)

    def test_a_checkpoint_that_is_not_there_is_none(self, store: StoreUnderTest, make: Samples) -> None:
        assert store.read(lambda tx: tx.checkpoints.get(CheckpointId(make.id()))) is None
        assert store.read(lambda tx: tx.checkpoints.last(RunId(make.id()))) is None
        assert store.read(lambda tx: tx.checkpoints.of_run(RunId(make.id()))) == []

    @proves("TR-32")
    def test_a_checkpoint_stored_already_is_passed_over(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        stored = make.checkpoint(run, state="as it was")
        _add(store, stored)
        _add(store, replace(stored, state=canonical("as somebody wants it"), covered_seq=99))
        assert store.read(lambda tx: tx.checkpoints.of_run(run.id)) == [stored]

    def test_the_last_checkpoint_is_the_one_with_the_highest_number(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        numbered = [make.checkpoint(run, number=number) for number in (2, 11, 1)]
        _add(store, *numbered, make.checkpoint(other, number=12))
        assert store.read(lambda tx: tx.checkpoints.last(run.id)) == numbered[1]

    def test_the_checkpoints_of_a_run_come_in_order(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        numbered = [make.checkpoint(run, number=number) for number in (2, 11, 1)]
        _add(store, *numbered, make.checkpoint(other))
        found = store.read(lambda tx: tx.checkpoints.of_run(run.id))
        assert found == [numbered[2], numbered[0], numbered[1]]


def _add(store: StoreUnderTest, *checkpoints: Checkpoint) -> None:
    store.transact(lambda tx: tx.checkpoints.add_many(checkpoints))
