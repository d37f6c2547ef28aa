"""The resume policy against its published table, row by row, and the invariants over all 320 combinations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from quiesce.domain.boundary import Cause, GapKind, TerminalDurability
from quiesce.domain.resume import Policy, ResumePolicy, SameRun, ToolState, resume_policy

TABLE = Path(__file__).parent.parent / "data" / "resume_table.md"
Facts = tuple[Cause, TerminalDurability | None, GapKind, ToolState]
ALL: list[Facts] = list(product(Cause, [*TerminalDurability, None], GapKind, ToolState))
LOST = (GapKind.PART_LOST, GapKind.LOST)


class Row(NamedTuple):
    """One row of the table."""

    facts: Facts
    rule: str
    policy: Policy
    same_run: str
    admissible: str


def rows() -> Iterator[Row]:
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[0] in set(Cause):
            cause, durability, gap, tools, rule, policy, same_run, admissible = cells
            established = None if durability == "not_established" else TerminalDurability(durability)
            facts = (Cause(cause), established, GapKind(gap), ToolState(tools))
            yield Row(facts, rule, Policy(policy), same_run, admissible)


ROWS = list(rows())


@pytest.mark.req("TR-39")
def test_the_table_has_192_rows_each_for_other_facts() -> None:
    assert len(ROWS) == len({row.facts for row in ROWS}) == 192


@pytest.mark.req("TR-35", "TR-36", "TR-37", "TR-38", "TR-39")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.facts)))
def test_the_policy_is_the_one_of_the_table(row: Row) -> None:
    answer = resume_policy(*row.facts)
    assert (answer.rule, answer.policy) == (row.rule, row.policy)
    # The table marks by "A06" where the owner of the outcome has the last word on another attempt.
    if row.same_run == "no":
        assert answer.same_run is SameRun.NO
    else:
        assert answer.same_run is (SameRun.OUTCOME_OWNER if "A06" in row.admissible else SameRun.YES)


def answers() -> Iterator[tuple[Facts, ResumePolicy]]:
    return ((facts, resume_policy(*facts)) for facts in ALL)


def test_the_policy_is_total() -> None:
    assert len(ALL) == 320
    assert all(answer.rule and answer.admissible for _, answer in answers())


@pytest.mark.req("TR-35")
def test_allow_only_with_an_outcome_without_a_gap_and_without_an_unknown_tool() -> None:
    for (_, durability, gap, tools), answer in answers():
        if answer.policy is Policy.ALLOW:
            assert durability is not None
            assert gap is GapKind.NONE
            assert tools is not ToolState.OUTCOME_UNKNOWN


@pytest.mark.req("TR-38", "TR-44")
def test_an_unknown_tool_or_a_contradiction_always_blocks() -> None:
    for (_, durability, gap, tools), answer in answers():
        if durability is not None and (gap is GapKind.CONTRADICTS or tools is ToolState.OUTCOME_UNKNOWN):
            assert (answer.policy, answer.same_run) == (Policy.BLOCK, SameRun.NO)


@pytest.mark.req("RR-29")
def test_a_cancelled_or_completed_run_never_continues_itself() -> None:
    for (cause, *_), answer in answers():
        if cause in (Cause.EXPLICIT_CANCEL, Cause.COMPLETED):
            assert answer.same_run is SameRun.NO


@pytest.mark.req("TR-36", "TR-37")
def test_what_is_lost_is_neither_allowed_nor_reconciled() -> None:
    for (_, _, gap, _), answer in answers():
        if gap in LOST:
            assert answer.policy in (Policy.NONE, Policy.BLOCK, Policy.RESTART)


@pytest.mark.req("TR-19", "TR-47")
def test_nothing_is_admissible_before_an_outcome_is_established() -> None:
    for (_, durability, _, _), answer in answers():
        assert (answer.policy is Policy.NONE) is (durability is None)
        if durability is None:
            assert (answer.rule, answer.same_run) == ("R0", SameRun.NO)


@pytest.mark.req("TR-39")
def test_every_rule_is_reached() -> None:
    assert {answer.rule for _, answer in answers()} == {f"R{number}" for number in range(15)}
