"""The built-in cases: each ends as it says, with as many effects as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiesce.cases import CASES, case_named
from quiesce.cases.destination import Destination, Hold
from quiesce.domain.errors import InvalidInput, NotFound
from quiesce.domain.runs import RunStatus
from tests.cli.playing import theatre

# case → (input, effects)
PLAYED: dict[str, tuple[dict[str, object], int]] = {
    "durable-report": ({}, 1),
    "slow-stream": ({"tokens": 30, "delay_ms": 0}, 0),
    "once-effect": ({}, 1),
    "probe-effect": ({}, 1),
    "idempotent-effect": ({}, 1),
    "pending-model": ({}, 1),
    "thread-tool": ({"block_ms": 1}, 1),
    "process-tool": ({"block_ms": 1}, 1),
    "retrying": ({"delay_ms": 1}, 0),
    "parallel": ({}, 3),
    "nested": ({}, 3),
    "family": ({"ticks": 2, "delay_ms": 0}, 12),
    "sleeper": ({"seconds": 0.01}, 0),
}


def test_every_case_is_played_but_those_that_need_a_model_or_a_person() -> None:
    """`test_answer` plays the person."""
    assert set(CASES) - set(PLAYED) == {"live-stream", "approval"}


@pytest.mark.parametrize("case", PLAYED)
@pytest.mark.req("RR-42")
async def test_a_case_completes_with_its_effects(case: str, tmp_path: Path) -> None:
    given, effects = PLAYED[case]
    async with theatre(tmp_path) as played:
        receipt = await played.play(case, **given)
        run = await played.service.get(receipt.run_id)
    assert receipt.status is RunStatus.COMPLETED, receipt.reason_text
    assert f'"case":"{case}"' in run.bindings.decode()
    assert len(played.effects()) == effects
    assert len({line.split()[2] for line in played.effects()}) == effects, "each under a key of its own"


def test_an_unknown_case_is_answered_with_the_list() -> None:
    with pytest.raises(NotFound, match="durable-report, slow-stream"):
        case_named("no-such")


def test_a_hold_is_a_file_or_a_number_of_seconds(tmp_path: Path) -> None:
    assert Hold.parse("") == Hold()
    assert Hold.parse("1.5") == Hold(seconds=1.5)
    assert Hold.parse(str(tmp_path / "hold")) == Hold(file=tmp_path / "hold")
    with pytest.raises(InvalidInput, match="QUIESCE_CASE_HOLD"):
        Hold.parse("-1")


def test_tries_are_counted_by_run(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    assert [destination.count_try(run, "x") for run in ("a", "a", "b")] == [1, 2, 1]
