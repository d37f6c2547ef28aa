"""Samples of threads: records of continuations and standing policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

from quiesce.domain.canonical import digest_of
from quiesce.domain.continuations import Carry, Continuation, GivenUp, OnGap, Scope, StandingPolicy
from quiesce.domain.instant import Instant
from quiesce.domain.resume import Policy
from quiesce.domain.runs import Run
from quiesce.domain.terminal import TerminalReceipt
from quiesce.testing.samples import TENANT, USER, Samples


class ContinuationFields(TypedDict, total=False):
    """What tests vary of a continuation."""

    policy: Policy
    carry: Carry
    gave_up: GivenUp | None
    standing: Mapping[str, object] | None


class ThreadSamples(Samples):
    """Makes these, and whatever `Samples` makes."""

    def continuation(self, run: Run, receipt: TerminalReceipt, **fields: Unpack[ContinuationFields]) -> Continuation:
        """Make the record of a turn that `run` took behind this receipt; by default nothing had to be chosen."""
        carry = fields.get("carry", Carry.CHECKPOINT)
        return Continuation(
            run_id=run.id,
            thread_id=run.thread_id,
            tenant=run.tenant,
            head_run_id=receipt.run_id,
            receipt_id=receipt.id,
            rule=receipt.policy.rule,
            policy=fields.get("policy", Policy.ALLOW),
            basis=digest_of([receipt.id]),
            carry=carry,
            base_run_id=None if carry is Carry.ROLLBACK else receipt.run_id,
            gave_up=fields.get("gave_up"),
            standing=fields.get("standing"),
            actor=USER,
            at=self.later(),
        )

    def standing(
        self, name: str, *, scope: Scope = Scope.THREAD, number: int = 1, on_gap: OnGap = OnGap.RECONCILE
    ) -> StandingPolicy:
        """Make a declaration."""
        return StandingPolicy(
            tenant=TENANT,
            scope=scope,
            name=name,
            number=number,
            on_gap=on_gap,
            carry=Carry.KEEP_PARTIAL,
            declared_by=USER.name,
            declared_at=self.later(),
        )

    def later(self) -> Instant:
        """Return an instant after all before."""
        self.id()
        return self.now
