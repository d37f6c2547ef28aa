"""Budgets: never over the limit, and whole numbers that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.domain.budgets import Allowance, Amounts, Budget, check_amount, difference
from quiesce.domain.errors import InvalidInput

UNITS = ("calls", "tokens", "usd_micros")
amounts = st.dictionaries(st.sampled_from(UNITS), st.integers(0, 100), max_size=3)
limits = st.dictionaries(st.sampled_from(UNITS), st.integers(0, 200), max_size=3)


@pytest.mark.req("RR-06", "RR-19")
@given(limits, st.lists(st.tuples(amounts, st.booleans()), max_size=20))
def test_reserving_what_fits_and_using_what_was_reserved_never_passes_a_limit(
    given_limits: Amounts, moves: list[tuple[Amounts, bool]]
) -> None:
    budget = Budget.of_limits(given_limits)
    for asked, is_used in moves:
        if budget.shortfall(asked) is None:
            budget = budget.moved(used={}, reserved=asked)
            if is_used:
                budget = budget.moved(used=asked, reserved={unit: -amount for unit, amount in asked.items()})
        for unit in UNITS:
            allowance = budget.of(unit)
            assert allowance.limit is None or allowance.used + allowance.reserved <= allowance.limit
            assert allowance.limit == given_limits.get(unit)


@pytest.mark.req("RR-06")
@given(limits, amounts, amounts)
def test_a_shortfall_names_a_unit_that_has_too_little_left(given_limits: Amounts, held: Amounts, asked: Amounts) -> None:
    budget = Budget.of_limits(given_limits).moved(used={}, reserved=held)
    short = budget.shortfall(asked)
    fits = {unit: (left := budget.of(unit).left) is None or amount <= left for unit, amount in asked.items()}
    if short is None:
        assert all(fits.values())
    else:
        assert not fits[short.unit]
        assert short == budget.of(short.unit)


@given(amounts, amounts)
def test_a_difference_added_to_the_old_amounts_gives_the_new_ones(new: Amounts, old: Amounts) -> None:
    changes = difference(new, old)
    assert all(changes.values())
    for unit in UNITS:
        assert old.get(unit, 0) + changes.get(unit, 0) == new.get(unit, 0)


@given(amounts)
def test_there_is_no_difference_between_equal_amounts(same: Amounts) -> None:
    assert difference(same, same) == {}


@pytest.mark.req("RR-19")
@given(limits, amounts, amounts)
def test_a_move_and_its_reverse_cancel_out(given_limits: Amounts, used: Amounts, reserved: Amounts) -> None:
    budget = Budget.of_limits(given_limits)
    there = budget.moved(used=used, reserved=reserved)
    back = there.moved(used=_negated(used), reserved=_negated(reserved))
    assert all(back.of(unit) == budget.of(unit) for unit in UNITS)


@given(limits, amounts, amounts, amounts)
def test_two_moves_in_a_row_are_one_move_of_their_sum(
    given_limits: Amounts, one: Amounts, two: Amounts, reserved: Amounts
) -> None:
    budget = Budget.of_limits(given_limits)
    both = {unit: one.get(unit, 0) + two.get(unit, 0) for unit in {*one, *two}}
    in_a_row = budget.moved(used=one, reserved=reserved).moved(used=two, reserved={})
    assert in_a_row == budget.moved(used=both, reserved=reserved)


def test_giving_back_more_than_is_reserved_leaves_nothing_reserved() -> None:
    assert Budget().moved(used={}, reserved={"calls": -3}).of("calls") == Allowance(unit="calls")


def test_use_beyond_the_limit_is_counted_and_nothing_is_left() -> None:
    allowance = Budget.of_limits({"calls": 1}).moved(used={"calls": 4}, reserved={}).of("calls")
    assert (allowance.used, allowance.left) == (4, 0)


@given(limits, amounts, amounts)
def test_a_budget_is_read_back_from_its_json(given_limits: Amounts, used: Amounts, reserved: Amounts) -> None:
    budget = Budget.of_limits(given_limits).moved(used=used, reserved=reserved)
    assert Budget.from_json(budget.to_json()) == budget


@pytest.mark.parametrize("wrong", [-1, 1.0, "1", None, True, 2**53])
def test_amounts_are_whole_numbers_from_zero(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"^budget\.calls: "):
        check_amount("budget.calls", wrong)


@pytest.mark.parametrize("right", [0, 1, 2**53 - 1])
def test_whole_numbers_are_accepted(right: int) -> None:
    check_amount("budget.calls", right)
    assert Budget.of_limits({"calls": right}).of("calls").limit == right


@pytest.mark.parametrize("unit", ["", "x" * 201])
def test_units_have_names_of_bounded_length(unit: str) -> None:
    with pytest.raises(InvalidInput, match=r"^budget: "):
        Budget.of_limits({unit: 1})


def _negated(moved: Amounts) -> dict[str, int]:
    return {unit: -amount for unit, amount in moved.items()}
