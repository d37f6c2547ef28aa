"""The thread service: what a thread is, what may be done next, choices and standing policies, for one caller.

Another tenant's thread does not exist. Reading changes nothing; a choice is checked again where it is used (`turns.py`).
"""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.continuations import Carry, Choice, Continuation, OnGap, Scope, StandingPolicy
from quiesce.domain.errors import InvalidInput, NotFound, Refused
from quiesce.domain.history import ThreadView, Turn
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.runs import Run
from quiesce.domain.texts import check_text, word_of
from quiesce.domain.threads import Thread
from quiesce.ports.store import Transaction
from quiesce.runtime.environment import Environment
from quiesce.runtime.history import history_tx, thread_tx
from quiesce.runtime.placement import refusal
from quiesce.runtime.transacting import persist
from quiesce.runtime.turns import first_in_line, next_turn_tx


class ThreadService:
    """Questions and choices about threads."""

    def __init__(self, env: Environment, *, tenant: str = "local", subject: str = "local") -> None:
        self._env = env
        self._tenant = tenant
        self._subject = subject

    async def view(self, thread_id: ThreadId) -> ThreadView:
        """Return a thread with its state, what was seen beyond it, and what may be done. Raises `NotFound`."""
        return await persist(self._env, lambda tx: thread_tx(tx, thread_id, tenant=self._tenant), read=True)

    async def history(self, thread_id: ThreadId, *, limit: int | None = None) -> list[Turn]:
        """Return the newest turns of a thread, oldest first, what was rolled back included. Raises `NotFound`."""
        most = self._env.limits.history_turns_max
        size = most if limit is None else max(1, min(limit, most))
        return await persist(self._env, lambda tx: history_tx(tx, thread_id, tenant=self._tenant, limit=size), read=True)

    async def choose(self, thread_id: ThreadId, choice: Choice, *, actor: str | None = None) -> Continuation:
        """Choose for the first queued run of a thread, which then takes its turn. Durable before this returns.

        Raises `NotFound`, `ContinuationRefused`, or `Refused` if no run is queued or the head has not ended.
        """
        who = Actor(kind=ActorKind.USER, name=actor or self._subject)
        return await persist(self._env, lambda tx: self._choose_tx(tx, thread_id, choice, who))

    def _choose_tx(self, tx: Transaction, thread_id: ThreadId, choice: Choice, actor: Actor) -> Continuation:
        thread, head = self._lock_tx(tx, thread_id)
        done = None if head is None else tx.continuations.of_run(head.id)
        if done is not None and (done.receipt_id, done.actor) == (choice.receipt_id, actor):
            return done  # the answer of an earlier try was lost
        answer = next_turn_tx(tx, thread, choice=choice, actor=actor)
        if isinstance(answer, Continuation):
            return answer
        if answer is None or head is None:
            raise Refused(
                f"no queued run of thread {thread_id} waits for a choice: give a message to go on with", thread_id=thread_id
            )
        raise refusal(tx, thread, head, answer)

    def _lock_tx(self, tx: Transaction, thread_id: ThreadId) -> tuple[Thread, Run | None]:
        thread = tx.threads.lock(thread_id)
        if thread is None or thread.tenant != self._tenant:
            raise NotFound("thread", thread_id)
        locked = tx.runs.lock_many([run_id for run_id in (thread.head_run_id, *first_in_line(tx, thread)) if run_id is not None])
        return thread, None if thread.head_run_id is None else locked.get(RunId(thread.head_run_id))

    async def declare(
        self, *, thread: str | None = None, agent: str | None = None, on_gap: OnGap | str, carry: Carry | str = Carry.KEEP_PARTIAL
    ) -> StandingPolicy:
        """Declare what may be done, without asking again, where a run left a gap: for one thread, or for an agent's runs.

        A thread's counts before its agent's. The newest declaration counts; the earlier ones stay on record. A thread's
        queued run that waits for this choice goes on. Raises `InvalidInput`, or `NotFound` for a thread.
        """
        names = [(Scope.THREAD, "thread", thread), (Scope.AGENT, "agent", agent)]
        given = [(scope, field, name) for scope, field, name in names if name is not None]
        if len(given) != 1:
            raise InvalidInput(field="thread", value=thread, rule="either a thread or an agent, and not both")
        ((scope, field, name),) = given
        check_text(field, name, self._env.limits.name_chars_max)
        word, kept = word_of(OnGap, "on_gap", on_gap), word_of(Carry, "carry", carry)
        return await persist(self._env, lambda tx: self._declare_tx(tx, scope, name, word, kept))

    def _declare_tx(self, tx: Transaction, scope: Scope, name: str, on_gap: OnGap, carry: Carry) -> StandingPolicy:
        thread = None
        if scope is Scope.THREAD:
            thread, _ = self._lock_tx(tx, ThreadId(name))
        before = tx.continuations.standing(self._tenant, scope, name)
        policy = StandingPolicy(
            tenant=self._tenant,
            scope=scope,
            name=name,
            number=1 if before is None else before.number + 1,
            on_gap=on_gap,
            carry=carry,
            declared_by=self._subject,
            declared_at=tx.now,
        )
        if before is not None and replace(before, number=policy.number, declared_at=tx.now) == policy:
            return before
        tx.continuations.declare(policy)
        if thread is not None:
            next_turn_tx(tx, thread)
        return policy

    async def declared(self) -> list[StandingPolicy]:
        """Return the standing policies of the caller's tenant."""
        return await self._env.store.read(lambda tx: tx.continuations.declared(self._tenant))
