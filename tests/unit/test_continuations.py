"""Whether a choice suffices: over every policy, every choice and every standing policy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from quiesce.domain.boundary import Cause, GapKind, TerminalDurability
from quiesce.domain.continuations import Carry, Choice, Granted, OnGap, Scope, StandingPolicy, Withheld, given_up, permit
from quiesce.domain.errors import InvalidInput
from quiesce.domain.ids import ReceiptId
from quiesce.domain.instant import Instant
from quiesce.domain.resume import Policy, ResumePolicy, ToolState, resume_policy
from quiesce.testing.samples import Samples, make_frontier

NOW = {
    answer.policy: answer
    for answer in (
        resume_policy(Cause.EXPLICIT_CANCEL, durability, gap, tools)
        for durability, gap, tools in product([*TerminalDurability, None], GapKind, ToolState)
    )
}
"""One answer of the resume policy of each kind."""

CHOICES = [
    None,
    *(
        Choice(receipt_id=ReceiptId("r"), policy=policy, carry=carry)
        for policy, carry in product([None, OnGap.RECONCILE, OnGap.RESTART], Carry)
    ),
]


def standing(on_gap: OnGap, carry: Carry, scope: Scope) -> StandingPolicy:
    return StandingPolicy(
        tenant="local",
        scope=scope,
        name="x",
        number=1,
        on_gap=on_gap,
        carry=carry,
        declared_by="ada",
        declared_at=Instant(1),
    )


DECLARED = [[], *([standing(g, c, s)] for g, c, s in product(OnGap, Carry, Scope))]
Case = tuple[ResumePolicy, Choice | None, list[StandingPolicy]]
ALL: list[Case] = list(product(NOW.values(), CHOICES, DECLARED))


def answers() -> Iterator[tuple[Case, Granted | Withheld]]:
    return ((case, permit(*case)) for case in ALL)


def test_every_policy_has_an_answer_for_every_choice() -> None:
    assert set(NOW) == set(Policy)
    assert len(list(answers())) == 5 * 10 * 28


@pytest.mark.req("TR-38", "TR-41")
def test_nobody_overrules_a_block_or_a_boundary_that_is_not_there() -> None:
    for (now, _, _), answer in answers():
        if now.policy in (Policy.BLOCK, Policy.NONE):
            assert isinstance(answer, Withheld)
            assert answer.needs == ()


@pytest.mark.req("TR-35")
def test_what_is_allowed_is_always_granted_and_carries_the_checkpoint() -> None:
    for (now, choice, declared), answer in answers():
        if now.policy is Policy.ALLOW:
            assert isinstance(answer, Granted)
            said = declared[0] if declared and declared[0].scope is Scope.MESSAGE else None
            asks = choice.carry if choice is not None else said.carry if said is not None else None
            assert answer.carry is (Carry.ROLLBACK if asks is Carry.ROLLBACK else Carry.CHECKPOINT)


@pytest.mark.req("TR-30", "TR-54")
def test_a_gap_is_never_passed_without_a_word() -> None:
    for (now, choice, declared), answer in answers():
        if now.policy in (Policy.RECONCILE, Policy.RESTART) and isinstance(answer, Granted):
            chosen = choice is not None and choice.policy is not None
            assert chosen or (declared and declared[0].on_gap is not OnGap.BLOCK)
            assert answer.standing == (None if chosen else declared[0])


@pytest.mark.req("TR-36", "TR-37")
def test_lost_output_is_given_up_only_by_a_restart() -> None:
    for (now, choice, declared), answer in answers():
        if now.policy is Policy.RESTART and isinstance(answer, Granted):
            word = choice.policy if choice is not None and choice.policy is not None else declared[0].on_gap
            assert word is OnGap.RESTART
            assert answer.carry is not Carry.KEEP_PARTIAL


@pytest.mark.req("TR-36")
def test_partial_output_is_kept_only_where_all_of_it_is_stored() -> None:
    for (now, _, _), answer in answers():
        if isinstance(answer, Granted) and answer.carry is Carry.KEEP_PARTIAL:
            assert now.policy is Policy.RECONCILE


@pytest.mark.req("TR-37")
def test_a_refusal_names_the_choices_that_would_do() -> None:
    for (now, _, _), answer in answers():
        if isinstance(answer, Withheld) and now.policy in (Policy.RECONCILE, Policy.RESTART):
            assert answer.needs
            for policy in answer.needs:
                assert isinstance(permit(now, Choice(receipt_id=ReceiptId("r"), policy=policy), []), Granted)


@pytest.mark.req("TR-30")
def test_an_explicit_choice_counts_before_what_is_declared() -> None:
    for (now, choice, _), answer in answers():
        if choice is not None and choice.policy is not None:
            assert answer == permit(now, choice, [])


def test_only_the_most_specific_declaration_counts() -> None:
    blocks = standing(OnGap.BLOCK, Carry.KEEP_PARTIAL, Scope.THREAD)
    restarts = standing(OnGap.RESTART, Carry.KEEP_PARTIAL, Scope.AGENT)
    for policy in (Policy.RECONCILE, Policy.RESTART):
        assert isinstance(permit(NOW[policy], None, [blocks, restarts]), Withheld)
        assert permit(NOW[policy], None, [restarts, blocks]) == Granted(carry=Carry.CHECKPOINT, standing=restarts)


def test_nobody_chooses_block() -> None:
    with pytest.raises(InvalidInput, match="chooses nothing"):
        Choice(receipt_id=ReceiptId("r"), policy=OnGap.BLOCK)


@pytest.mark.req("TR-37")
@pytest.mark.parametrize(
    ("carry", "expected"), [(Carry.CHECKPOINT, (3, 9)), (Carry.ROLLBACK, (1, 9)), (Carry.KEEP_PARTIAL, None)]
)
def test_what_is_given_up_is_named_by_numbers_and_digest(carry: Carry, expected: tuple[int, int] | None) -> None:
    make = Samples()
    occurrence = make.occurrence(make.run())
    outcome = make.outcome(occurrence, make_frontier(covered=2, stored=9, emitted=9, state_bearing_stored=7))
    receipt = make.receipt(make.run(), occurrence, outcome)
    gave_up = given_up(receipt, carry)
    assert (None if gave_up is None else (gave_up.first_seq, gave_up.last_seq)) == expected
    assert gave_up is None or (gave_up.digest, gave_up.run_id) == (receipt.h2, receipt.run_id)


def test_nothing_is_given_up_where_nothing_was_seen() -> None:
    make = Samples()
    occurrence = make.occurrence(make.run())
    receipt = make.receipt(make.run(), occurrence, make.outcome(occurrence))
    assert {given_up(receipt, carry) for carry in Carry} == {None}
