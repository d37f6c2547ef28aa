"""Artifacts and evidence over named queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from quiesce.domain.boundary import Actor
from quiesce.domain.errors import InvariantBroken
from quiesce.domain.evidence import ArtifactReceipt, Evidence, EvidenceKind, Verdict
from quiesce.domain.ids import RunId
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Params, Queries, Row


class SqlEvidence:
    """Implements `ports.evidence.EvidenceLog`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add_artifacts(self, artifacts: Sequence[ArtifactReceipt]) -> None:
        """See the port."""
        self._queries.run_many("add_artifacts", [_artifact_params(artifact) for artifact in artifacts])

    def artifacts(self, run_ids: Collection[RunId]) -> list[ArtifactReceipt]:
        """See the port."""
        rows = self._queries.many_of("artifacts_of_runs", [{"run_id": run_id} for run_id in dict.fromkeys(run_ids)])
        return [_artifact_of(row) for row in sorted(rows, key=_ordinal)]

    def add(self, evidence: Evidence) -> Evidence:
        """See the port."""
        row = self._queries.one(
            "add_evidence",
            run_id=evidence.run_id,
            position=evidence.position,
            kind=evidence.kind.value,
            verdict=evidence.verdict.value,
            actor=encode(evidence.actor.to_json()),
            body=evidence.body,
            at=evidence.at,
        )
        if row is None:
            raise InvariantBroken("evidence is numbered by the store")
        return replace(evidence, number=row[0])

    def of_run(self, run_id: RunId) -> list[Evidence]:
        """See the port."""
        return [_evidence_of(row) for row in self._queries.many("evidence_of_run", run_id=run_id)]


def _ordinal(row: Row) -> int:
    return int(row[-1])


def _artifact_params(artifact: ArtifactReceipt) -> Params:
    return {
        "run_id": artifact.run_id,
        "name": artifact.name,
        "path": artifact.path,
        "digest": artifact.digest,
        "bytes": artifact.bytes,
        "saved_at": artifact.saved_at,
    }


def _artifact_of(row: Row) -> ArtifactReceipt:
    run_id, name, path, digest, size, saved_at, _ordinal = row
    return ArtifactReceipt(run_id=run_id, name=name, path=path, digest=digest, bytes=size, saved_at=saved_at)


def _evidence_of(row: Row) -> Evidence:
    run_id, position, number, kind, verdict, actor, body, at, _ordinal = row
    return Evidence(
        run_id=run_id,
        position=position,
        number=number,
        kind=EvidenceKind(kind),
        verdict=Verdict(verdict),
        actor=Actor.from_json(decode(actor)),
        body=body,
        at=at,
    )
