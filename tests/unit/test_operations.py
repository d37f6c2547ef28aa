"""Operations: what a restart may do with each, as complete tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import Instant
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.operations import (
    TRANSITIONS,
    EffectPolicy,
    Operation,
    OperationKind,
    OperationStatus,
    Recovery,
    RetryPolicy,
    fingerprint,
    recover,
)
from quiesce.testing.samples import Samples

SEALED, DISPATCHED, UNKNOWN, COMMITTED, CONSUMED = OperationStatus
PURE, IDEMPOTENT, PROBE, ONCE = EffectPolicy

NOW = Instant(1_000_000)
DUE = {"none": None, "past": Instant(NOW - 1), "now": NOW, "future": Instant(NOW + 1)}

CALLS: dict[tuple[OperationStatus, EffectPolicy], Recovery] = {
    (DISPATCHED, PURE): Recovery.AGAIN,
    (DISPATCHED, IDEMPOTENT): Recovery.AGAIN,
    (DISPATCHED, PROBE): Recovery.PROBE,
    (DISPATCHED, ONCE): Recovery.PARK,
    (UNKNOWN, PURE): Recovery.PARK,
    (UNKNOWN, IDEMPOTENT): Recovery.PARK,
    (UNKNOWN, PROBE): Recovery.PROBE,
    (UNKNOWN, ONCE): Recovery.PARK,
}
"""Calls without a result, but for sealed ones."""


def operation(status: OperationStatus, policy: EffectPolicy, kind: OperationKind = OperationKind.CALL) -> Operation:
    make = Samples()
    return make.operation(make.running(), status=status, policy=policy, kind=kind)


def expected(status: OperationStatus, policy: EffectPolicy, kind: OperationKind, due: str) -> Recovery:
    if status in (COMMITTED, CONSUMED):
        return Recovery.READ
    if status is SEALED:
        return Recovery.WAIT if due == "future" else Recovery.DISPATCH
    if status is DISPATCHED and kind is not OperationKind.CALL:
        return Recovery.AGAIN
    if status is DISPATCHED and policy in (PURE, IDEMPOTENT) and due == "future":
        return Recovery.WAIT
    return CALLS[status, policy]


@pytest.mark.req("RR-09", "RR-10", "RR-11", "RR-12", "RR-13", "RR-20")
@pytest.mark.parametrize(("status", "policy", "kind", "due"), list(product(OperationStatus, EffectPolicy, OperationKind, DUE)))
def test_recovery_follows_from_stored_facts_alone(
    status: OperationStatus, policy: EffectPolicy, kind: OperationKind, due: str
) -> None:
    stored = replace(operation(status, policy, kind), due_at=DUE[due])
    assert recover(stored, now=NOW) is expected(status, policy, kind, due)


def test_an_operation_never_stored_begins() -> None:
    assert recover(None, now=NOW) is Recovery.BEGIN


@pytest.mark.req("RR-12", "RR-13", "TR-44")
@pytest.mark.parametrize("due", DUE)
@pytest.mark.parametrize("status", [DISPATCHED, UNKNOWN])
def test_a_once_call_that_may_have_happened_is_never_dispatched_again(status: OperationStatus, due: str) -> None:
    stored = replace(operation(status, ONCE), due_at=DUE[due])
    assert recover(stored, now=NOW) is Recovery.PARK


@pytest.mark.req("RR-09", "RR-31")
def test_every_pair_of_statuses_is_allowed_or_not_as_written_here() -> None:
    allowed = {
        (None, SEALED),
        (None, DISPATCHED),
        (None, COMMITTED),
        (None, CONSUMED),
        (SEALED, SEALED),
        (SEALED, DISPATCHED),
        (SEALED, COMMITTED),
        (DISPATCHED, DISPATCHED),
        (DISPATCHED, SEALED),
        (DISPATCHED, UNKNOWN),
        (DISPATCHED, COMMITTED),
        (UNKNOWN, COMMITTED),
        (UNKNOWN, SEALED),
        (COMMITTED, CONSUMED),
    }
    pairs = product([None, *OperationStatus], OperationStatus)
    assert {(a, b) for a, b in pairs if b in TRANSITIONS[a]} == allowed
    assert set(TRANSITIONS) == {None, *OperationStatus}


@pytest.mark.req("RR-31")
def test_nothing_follows_a_result_but_its_consumption() -> None:
    after_results = {b for a in OperationStatus if operation(a, ONCE).has_result for b in TRANSITIONS[a]}
    assert after_results == {CONSUMED}


@pytest.mark.req("TR-43", "TR-64")
@pytest.mark.parametrize(("status", "policy", "kind"), list(product(OperationStatus, EffectPolicy, OperationKind)))
def test_only_a_call_with_an_effect_and_without_a_result_may_have_acted(
    status: OperationStatus, policy: EffectPolicy, kind: OperationKind
) -> None:
    acts = kind is OperationKind.CALL and policy is not PURE and status in (DISPATCHED, UNKNOWN)
    assert operation(status, policy, kind).may_have_acted is acts


@pytest.mark.req("C56")
def test_the_key_of_a_call_comes_from_run_and_position_only() -> None:
    stored = operation(SEALED, ONCE)
    assert stored.key == f"{stored.run_id}:{stored.position}"
    assert replace(stored, name="other", arguments=b"{}", fingerprint="other").key == stored.key


def test_a_fingerprint_covers_kind_name_and_arguments() -> None:
    prints = {
        fingerprint(OperationKind.CALL, "act", b"[1]"),
        fingerprint(OperationKind.STEP, "act", b"[1]"),
        fingerprint(OperationKind.CALL, "act2", b"[1]"),
        fingerprint(OperationKind.CALL, "act", b"[2]"),
    }
    assert len(prints) == 4
    assert fingerprint(OperationKind.CALL, "act", b"[1]") in prints


def test_what_is_shown_of_an_operation_holds_neither_arguments_nor_result() -> None:
    stored = replace(operation(COMMITTED, ONCE), arguments=b'"secret"', result=b'"private"')
    shown = repr(stored.to_json())
    assert "secret" not in shown
    assert "private" not in shown


@pytest.mark.parametrize(
    ("made", "delay"), [(1, 100), (2, 300), (3, 900), (4, 1000), (5, None), (6, None)], ids=lambda value: str(value)
)
def test_delays_grow_up_to_their_bound_until_the_tries_are_used_up(made: int, delay: int | None) -> None:
    policy = RetryPolicy(tries=5, first_delay_ms=100, factor=3.0, delay_max_ms=1000)
    assert policy.delay_ms(made) == delay


def test_by_default_nothing_is_tried_again() -> None:
    assert RetryPolicy().delay_ms(1) is None


@pytest.mark.parametrize("tries", [0, -1, DEFAULT_LIMITS.tries_max + 1])
def test_the_number_of_tries_is_bounded(tries: int) -> None:
    with pytest.raises(InvalidInput, match=r"retry\.tries"):
        RetryPolicy(tries=tries)


def test_a_back_off_never_shrinks_or_goes_negative() -> None:
    with pytest.raises(InvalidInput):
        RetryPolicy(first_delay_ms=-1)
    with pytest.raises(InvalidInput):
        RetryPolicy(delay_max_ms=-1)
    with pytest.raises(InvalidInput):
        RetryPolicy(factor=0.5)
