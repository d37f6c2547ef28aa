"""Artifacts and evidence: append-only, numbered by operation, in the order of their arrival."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.evidence import ArtifactReceipt, Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import RunId
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples


class EvidenceContract(StoreContract):
    """`EvidenceLog`."""

    @proves("RR-27")
    def test_artifacts_are_read_back_in_the_order_of_saving(self, store: StoreUnderTest, make: Samples) -> None:
        run, child, other = make.running(), make.running(), make.running()
        store.add(run, child, other)
        saved = [make.artifact(run, "z.md"), make.artifact(child, "m.md"), make.artifact(run, "a.md", content=b"")]
        for artifact in [*saved, make.artifact(other)]:
            _save(store, artifact)
        assert store.read(lambda tx: tx.evidence.artifacts([run.id, child.id])) == saved
        assert store.read(lambda tx: tx.evidence.artifacts([RunId(make.id())])) == []
        assert store.read(lambda tx: tx.evidence.artifacts([])) == []

    @proves("RR-27", "RR-35")
    def test_a_name_that_the_run_has_saved_is_passed_over(self, store: StoreUnderTest, make: Samples) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        first, same_name = make.artifact(run, content=b"first"), make.artifact(other, content=b"of another run")
        _save(store, first, same_name)
        _save(store, make.artifact(run, content=b"second"))
        assert store.read(lambda tx: tx.evidence.artifacts([run.id])) == [first]
        assert store.read(lambda tx: tx.evidence.artifacts([other.id])) == [same_name]

    def test_within_one_call_too_the_first_of_a_name_stands(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        first = make.artifact(run, content=b"first")
        _save(store, first, make.artifact(run, content=b"second"))
        assert store.read(lambda tx: tx.evidence.artifacts([run.id])) == [first]

    @proves("RR-33")
    @pytest.mark.parametrize("kind", list(EvidenceKind))
    @pytest.mark.parametrize("verdict", list(Verdict))
    def test_evidence_is_read_back_as_it_was_stored(
        self, store: StoreUnderTest, make: Samples, kind: EvidenceKind, verdict: Verdict
    ) -> None:
        run = make.running()
        store.add(run)
        actor = Actor(kind=ActorKind.SERVICE, name="destination 🏦")
        record = replace(make.evidence(run, body={"seen": True}), kind=kind, verdict=verdict, actor=actor)
        stored = _add(store, record)
        assert stored == replace(record, number=1)
        assert store.read(lambda tx: tx.evidence.of_run(run.id)) == [stored]

    def test_evidence_is_numbered_by_operation_and_read_in_the_order_of_arrival(
        self, store: StoreUnderTest, make: Samples
    ) -> None:
        run, other = make.running(), make.running()
        store.add(run, other)
        asked = [(run, "2"), (other, "2"), (run, "1"), (run, "2"), (run, "2"), (run, "1")]
        stored = [_add(store, make.evidence(of, position)) for of, position in asked]
        assert [record.number for record in stored] == [1, 1, 1, 2, 3, 2]
        assert store.read(lambda tx: tx.evidence.of_run(run.id)) == [s for s in stored if s.run_id == run.id]

    def test_two_records_in_one_transaction_get_two_numbers(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        store.add(run)
        both = store.transact(lambda tx: [tx.evidence.add(make.evidence(run)), tx.evidence.add(make.evidence(run))])
        assert [record.number for record in both] == [1, 2]

    def test_a_run_without_evidence_has_an_empty_log(self, store: StoreUnderTest, make: Samples) -> None:
        assert store.read(lambda tx: tx.evidence.of_run(RunId(make.id()))) == []


def _add(store: StoreUnderTest, evidence: Evidence) -> Evidence:
    return store.transact(lambda tx: tx.evidence.add(evidence))


def _save(store: StoreUnderTest, *artifacts: ArtifactReceipt) -> None:
    store.transact(lambda tx: tx.evidence.add_artifacts(artifacts))
