"""The error tree: stable codes, and control flow that no agent can swallow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from quiesce.domain import errors
from quiesce.domain.errors import FenceLost, InvalidInput, InvariantBroken, NotFound, QuiesceError, Stopped, invariant


def tree(root: type[QuiesceError] = QuiesceError) -> Iterator[type[QuiesceError]]:
    """Walk the classes of the module; the product has errors nowhere else, but other tests may."""
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_the_tree_in_the_docstring_is_the_tree_of_the_module() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+) +([A-Z_]+)", errors.__doc__ or ""))
    assert drawn == {cls.__name__: cls.code for cls in tree() if cls not in (QuiesceError, InvariantBroken)}


def test_every_error_has_a_code_of_its_own_and_an_http_status() -> None:
    classes = list(tree())
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(400 <= cls.status <= 599 for cls in classes)


def test_only_what_may_succeed_later_unchanged_is_retryable() -> None:
    assert {cls.code for cls in tree() if cls.retryable} == {
        "CAPACITY_EXHAUSTED",
        "LEASE_BUSY",
        "MODEL_UNAVAILABLE",
        "THREAD_BUSY",
        "SETTLEMENT_PENDING",
        "STORE_BUSY",
        "STORE_UNAVAILABLE",
    }


@pytest.mark.parametrize("control_flow", [FenceLost, Stopped])
def test_an_agent_that_catches_every_exception_does_not_catch_control_flow(control_flow: type[BaseException]) -> None:
    assert not issubclass(control_flow, Exception)


def test_an_invalid_input_names_field_value_and_rule_and_cuts_long_values() -> None:
    error = InvalidInput(field="reason", value="x" * 1000, rule="must be short")
    assert error.message.startswith("reason: 'xxx")
    assert error.message.endswith("must be short")
    assert len(error.message) < 200
    assert error.to_json()["code"] == "INVALID_INPUT"


def test_what_is_not_found_is_named_with_a_hint() -> None:
    error = NotFound("run", "r-1", "see `quiesce inspect`")
    assert str(error) == "no run 'r-1'; see `quiesce inspect`"
    assert error.details == {"kind": "run", "name": "r-1"}


def test_a_broken_invariant_is_raised_also_without_assertions() -> None:
    invariant(True, "holds")
    with pytest.raises(InvariantBroken, match="does not hold"):
        invariant(False, "does not hold")
