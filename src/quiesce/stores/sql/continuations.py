"""Continuation records and standing policies over named queries. The schema itself refuses to change them."""

from __future__ import annotations

from quiesce.domain.boundary import Actor
from quiesce.domain.continuations import Carry, Continuation, GivenUp, OnGap, Scope, StandingPolicy
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.resume import Policy
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Queries, Row


class SqlContinuations:
    """Implements `ports.threads.Continuations`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add(self, continuation: Continuation) -> None:
        """See the port."""
        gave_up, standing = continuation.gave_up, continuation.standing
        self._queries.run(
            "add_continuation",
            run_id=continuation.run_id,
            thread_id=continuation.thread_id,
            tenant=continuation.tenant,
            head_run_id=continuation.head_run_id,
            receipt_id=continuation.receipt_id,
            rule=continuation.rule,
            policy=continuation.policy.value,
            basis=continuation.basis,
            carry=continuation.carry.value,
            base_run_id=continuation.base_run_id,
            gave_up=None if gave_up is None else encode(gave_up.to_json()),
            standing=None if standing is None else encode(dict(standing)),
            actor=encode(continuation.actor.to_json()),
            at=continuation.at,
        )

    def of_run(self, run_id: RunId) -> Continuation | None:
        """See the port."""
        row = self._queries.one("continuation_of_run", run_id=run_id)
        return None if row is None else _continuation_of(row)

    def of_thread(self, thread_id: ThreadId) -> list[Continuation]:
        """See the port."""
        return [_continuation_of(row) for row in self._queries.many("continuations_of_thread", thread_id=thread_id)]

    def declare(self, policy: StandingPolicy) -> None:
        """See the port."""
        self._queries.run(
            "declare_policy",
            tenant=policy.tenant,
            scope=policy.scope.value,
            name=policy.name,
            number=policy.number,
            on_gap=policy.on_gap.value,
            carry=policy.carry.value,
            declared_by=policy.declared_by,
            declared_at=policy.declared_at,
        )

    def standing(self, tenant: str, scope: Scope, name: str) -> StandingPolicy | None:
        """See the port."""
        row = self._queries.one("standing_policy", tenant=tenant, scope=scope.value, name=name)
        return None if row is None else _policy_of(row)

    def declared(self, tenant: str) -> list[StandingPolicy]:
        """See the port."""
        return [_policy_of(row) for row in self._queries.many("declared_policies", tenant=tenant)]


def _continuation_of(row: Row) -> Continuation:
    (run_id, thread_id, tenant, head_run_id, receipt_id, rule, policy, basis, carry, base_run_id) = row[:10]
    gave_up, standing, actor, at = row[10:14]
    return Continuation(
        run_id=run_id,
        thread_id=thread_id,
        tenant=tenant,
        head_run_id=head_run_id,
        receipt_id=receipt_id,
        rule=rule,
        policy=Policy(policy),
        basis=basis,
        carry=Carry(carry),
        base_run_id=base_run_id,
        gave_up=None if gave_up is None else GivenUp.from_json(decode(gave_up)),
        standing=None if standing is None else decode(standing),
        actor=Actor.from_json(decode(actor)),
        at=at,
    )


def _policy_of(row: Row) -> StandingPolicy:
    tenant, scope, name, number, on_gap, carry, declared_by, declared_at = row
    return StandingPolicy(
        tenant=tenant,
        scope=Scope(scope),
        name=name,
        number=number,
        on_gap=OnGap(on_gap),
        carry=Carry(carry),
        declared_by=declared_by,
        declared_at=declared_at,
    )
