"""Write values: what counts as evidence, for every kind of row."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from quiesce.domain.ids import Position
from quiesce.domain.operations import OperationStatus
from quiesce.domain.runs import Admission
from quiesce.domain.writes import RunWrite
from quiesce.testing.samples import Samples

make = Samples()
RUN = make.running()
EMPTY = RunWrite(run_id=RUN.id, fence=RUN.fence)


def with_operation(status: OperationStatus) -> RunWrite:
    return replace(EMPTY, operations=(make.operation(RUN, status=status),))


EVIDENCE = {
    "nothing": EMPTY,
    "events": replace(EMPTY, events=make.texts(RUN, "a")),
    "artifacts": replace(EMPTY, artifacts=(make.artifact(RUN),)),
    "unknown": with_operation(OperationStatus.UNKNOWN),
    "committed": with_operation(OperationStatus.COMMITTED),
    "a step's last checkpoint": replace(EMPTY, checkpoints=(make.checkpoint(RUN),), closes_step=True),
}
BEGINS = {
    "sealed": with_operation(OperationStatus.SEALED),
    "dispatched": with_operation(OperationStatus.DISPATCHED),
    "checkpoints": replace(EMPTY, checkpoints=(make.checkpoint(RUN),)),
    "consumed": replace(EMPTY, consumed=(Position("1"),)),
    "reservation": replace(EMPTY, reserve_seq=1),
}


@pytest.mark.req("TR-21", "RR-32")
@pytest.mark.parametrize("name", EVIDENCE)
def test_what_begins_nothing_is_evidence(name: str) -> None:
    assert EVIDENCE[name].is_evidence()


@pytest.mark.req("RR-32")
@pytest.mark.parametrize("name", BEGINS)
def test_what_begins_something_is_not(name: str) -> None:
    assert not BEGINS[name].is_evidence()


@pytest.mark.req("RR-32")
@pytest.mark.parametrize(("evidence", "begins"), list(product(EVIDENCE, BEGINS)))
def test_evidence_does_not_carry_along_what_begins(evidence: str, begins: str) -> None:
    one, other = EVIDENCE[evidence], BEGINS[begins]
    mixed = replace(
        one,
        operations=one.operations + other.operations,
        checkpoints=one.checkpoints + other.checkpoints,
        consumed=other.consumed,
        reserve_seq=other.reserve_seq,
    )
    # A checkpoint is the one row whose meaning depends on the write: at the end of a step it begins nothing.
    assert mixed.is_evidence() is (begins == "checkpoints" and one.closes_step)


@pytest.mark.req("RR-05", "CC-34")
@pytest.mark.parametrize("admission", list(Admission))
@pytest.mark.parametrize("name", [*EVIDENCE, *BEGINS])
def test_what_an_admission_covers(name: str, admission: Admission) -> None:
    write = {**EVIDENCE, **BEGINS}[name]
    covered = admission is Admission.HOLDER or (admission is Admission.EVIDENCE and name in EVIDENCE)
    assert write.allowed_by(admission) is covered


def test_only_rows_with_amounts_move_a_budget() -> None:
    assert not EMPTY.moves_budget
    assert not with_operation(OperationStatus.SEALED).moves_budget
    for row in (make.operation(RUN, reserved={"calls": 1}), make.operation(RUN, used={"calls": 1})):
        assert replace(EMPTY, operations=(row,)).moves_budget
