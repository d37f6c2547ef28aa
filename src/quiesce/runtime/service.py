"""The control service: every command and question about runs, as library, CLI and server use it.

Needs no worker of its own: a cancel from a process that runs nothing is as good as any other, and finishes the settlement
itself where nobody else can. Each call is checked against the caller's tenant; another tenant's run does not exist.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace

from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope, Reason
from quiesce.domain.canonical import Json, canonical, parse
from quiesce.domain.commands import Intent, IntentId
from quiesce.domain.comparison import Mark
from quiesce.domain.errors import NotFound, SettlementPending, StoreError, required
from quiesce.domain.evidence import Evidence, Verdict
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.interactions import Interaction, InteractionId
from quiesce.domain.mailbox import EntryId, EntryKind, MailboxEntry
from quiesce.domain.runs import Run, RunStatus
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.texts import check_text, word_of
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelAdmission, CancelRequest, cancel_tx
from quiesce.runtime.children import read_result
from quiesce.runtime.codec import annotations_of, decode, encode
from quiesce.runtime.commands import CommandRequest, Staged, stage_tx, withdraw_tx
from quiesce.runtime.comparison import Compared, compare_tx
from quiesce.runtime.contradictions import contradict_tx, resolve_tx
from quiesce.runtime.disconnects import attending
from quiesce.runtime.environment import Environment
from quiesce.runtime.inspection import Inspection, inspect_tx
from quiesce.runtime.interactions import Answer, answer_tx
from quiesce.runtime.mailbox import Arrival, arrive_tx, withdraw_entry_tx
from quiesce.runtime.probing import read_again
from quiesce.runtime.readers import Frame, read_stream
from quiesce.runtime.reconciliation import Decision, decide
from quiesce.runtime.registry import Registry
from quiesce.runtime.settlement import settle_abandoned
from quiesce.runtime.submission import Submission, submit_tx
from quiesce.runtime.trace import TraceLine, trace_tx
from quiesce.runtime.transacting import persist


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: the tenant whose runs exist for the caller, and the subject that receipts name."""

    tenant: str = "local"
    subject: str = "local"


class ControlService:
    """Commands and questions about runs, for one caller. `known`: the code that this process has of them, if any."""

    def __init__(self, env: Environment, caller: Caller | None = None, known: Registry | None = None) -> None:
        self._env = env
        self._caller = caller or Caller()
        self._known = known or Registry()

    async def submit(self, wanted: Submission) -> Run:
        """Store a run durably and return it, or the run that the same key made before; see `submit_tx`."""
        wanted = replace(wanted, tenant=self._caller.tenant, subject=self._caller.subject)
        wanted.check(self._env.limits)
        run_id = RunId(self._env.new_id())
        thread_id = ThreadId(self._env.new_id())
        self._env.crash.reach("submit.before")
        run = await self._env.store.transact(lambda tx: submit_tx(tx, self._env, wanted, run_id=run_id, thread_id=thread_id))
        self._env.crash.reach("submit.after")
        if wanted.turn.on_busy.supersedes:
            with contextlib.suppress(StoreError):  # it is admitted; whoever comes next finishes it
                await settle_abandoned(self._env, limit=self._env.limits.sweep_batch_max)
        return run

    async def cancel(
        self,
        run_id: RunId,
        *,
        reason: str = "",
        mode: CancelMode | str = CancelMode.NOW,
        scope: CancelScope | str = CancelScope.TREE,
        grace_ms: int | None = None,
        key: str | None = None,
    ) -> CancelAdmission:
        """Admit a cancel (C·X) and return at once. Says that it was accepted, nothing about what became durable.

        Raises `NotFound` for a run that does not exist, `InvalidInput` for a field that breaks a rule.
        """
        request = CancelRequest(
            run_id=run_id,
            actor=Actor(kind=ActorKind.USER, name=self._caller.subject),
            key=f"cancel:{self._env.new_id()}" if key is None else key,
            text=reason,
            reason=Reason.USER_CANCEL,
            mode=word_of(CancelMode, "mode", mode),
            scope=word_of(CancelScope, "scope", scope),
            grace_ms=grace_ms,
            tenant=self._caller.tenant,
        )
        return await self.admit(request)

    async def admit(self, request: CancelRequest) -> CancelAdmission:
        """Admit a cancel of any reason. Where nobody holds a run that it ends, the settlement is finished here (C10)."""
        request.check(self._env)
        self._env.crash.reach("cancel.before")

        def admit(tx: Transaction) -> tuple[CancelAdmission, bool]:
            admission = cancel_tx(tx, self._env, request)
            self._env.crash.reach("cancel.inside")
            ended = [required(tx.runs.get(run_id), "a run that was fenced exists") for run_id in admission.reached]
            return admission, any(run.drain_fence is None for run in ended)

        admission, is_left_to_us = await self._env.store.transact(admit)
        self._env.crash.reach("cancel.after")
        if is_left_to_us:
            with contextlib.suppress(StoreError):  # it is admitted; whoever comes next finishes it
                await settle_abandoned(self._env, limit=self._env.limits.sweep_batch_max)
        return admission

    async def stage(self, wanted: CommandRequest) -> Staged:
        """Stage a command of the caller's tenant in a transaction of its own; see `stage_tx`."""
        wanted = replace(wanted, tenant=self._caller.tenant)
        intent_id = IntentId(self._env.new_id())
        self._env.crash.reach("stage.before")
        staged = await persist(self._env, lambda tx: stage_tx(tx, wanted, intent_id=intent_id, limits=self._env.limits))
        self._env.crash.reach("stage.after")
        return staged

    async def withdraw(self, intent_id: IntentId) -> Intent:
        """Take back a command that was not relayed yet; see `withdraw_tx`."""
        return await persist(self._env, lambda tx: withdraw_tx(tx, intent_id, tenant=self._caller.tenant))

    async def wake(self, run_id: RunId, name: str, value: Json = None, *, key: str | None = None) -> MailboxEntry:
        """Wake a run that waits, or will wait, for `name`. Durable before this returns.

        The same `key` with the same content is the same wake. Raises `NotFound`, or `RunEnded` that names the receipt.
        """
        return await self._arrive(run_id, EntryKind.WAKE, value, name=name, key=key)

    async def correct(self, run_id: RunId, text: str, *, key: str | None = None) -> MailboxEntry:
        """Give a running agent a person's words, for its next safe boundary. Durable before this returns.

        Kept is not applied: ask `mailbox` what became of it. Raises `NotFound`, or `RunEnded` that names the receipt.
        """
        return await self._arrive(run_id, EntryKind.CORRECTION, text, key=key)

    async def _arrive(self, run_id: RunId, kind: EntryKind, value: Json, *, name: str = "", key: str | None) -> MailboxEntry:
        caller = self._caller
        key = f"{kind}:{self._env.new_id()}" if key is None else key
        wanted = Arrival(run_id=run_id, kind=kind, name=name, value=value, key=key, subject=caller.subject, tenant=caller.tenant)
        return await persist(self._env, lambda tx: arrive_tx(tx, self._env, wanted))

    async def withdraw_entry(self, entry_id: EntryId) -> MailboxEntry:
        """Take back a correction or a wake that the run has not taken yet; see `withdraw_entry_tx`."""
        return await persist(self._env, lambda tx: withdraw_entry_tx(tx, entry_id, tenant=self._caller.tenant))

    async def questions(self, *, after: str | None = None, limit: int | None = None) -> builtins.list[Interaction]:
        """Return what waits for a person, over all runs of the caller's tenant, oldest first; page on with the last id."""
        page, tenant = self._env.limits.questions_page_max, self._caller.tenant
        start = None if after is None else InteractionId(after)
        size = page if limit is None else max(1, min(limit, page))
        return await self._env.store.read(
            lambda tx: [q for q in tx.interactions.open(tenant, after=start, limit=size) if q.is_open(tx.now)]
        )

    async def answer(
        self, interaction_id: str, value: object, *, actor: str | None = None, key: str | None = None, digest: str | None = None
    ) -> Interaction:
        """Answer a question, for good, and let its run go on; see `answer_tx`. `actor`: who says it, by default the caller."""
        answer = Answer(
            interaction_id=InteractionId(interaction_id),
            value=parse(encode(value, field="value", limits=self._env.limits)),
            actor=Actor(kind=ActorKind.USER, name=actor or self._caller.subject),
            key=f"answer:{self._env.new_id()}" if key is None else key,
            digest=digest,
            tenant=self._caller.tenant,
        )
        answered = await persist(self._env, lambda tx: answer_tx(tx, answer, self._env.limits))
        self._env.crash.reach("answer.after")
        return answered

    async def mailbox(self, run_id: RunId) -> builtins.list[MailboxEntry]:
        """Return what reached a run from outside, and what became of each. Raises `NotFound`."""
        await self.get(run_id)
        return await self._env.store.read(lambda tx: tx.mailbox.of_run(run_id))

    async def wait(self, run_id: RunId, *, timeout_ms: float | None = None) -> TerminalReceipt:
        """Return the run's receipt once its boundary is published; finish the settlement if nobody does.

        Raises `NotFound`, or `SettlementPending` when `timeout_ms` passes first: then nothing is known to be terminal.
        """
        bell = self._env.store.notifier.bell(run_topic(run_id))
        waited_ms = 0.0
        try:
            while True:
                run, receipt = await persist(self._env, lambda tx: _read_end(tx, run_id, self._caller.tenant), read=True)
                if receipt is not None:
                    return receipt
                if run.status is RunStatus.SETTLING:
                    await settle_abandoned(self._env, limit=self._env.limits.sweep_batch_max)
                if timeout_ms is not None and waited_ms >= timeout_ms:
                    raise SettlementPending(
                        f"run {run_id} is {run.status} after {timeout_ms:.0f} ms; no boundary is published yet",
                        run_id=run_id,
                        status=str(run.status),
                    )
                step_ms = float(self._env.settings.poll_ms)
                if timeout_ms is not None:
                    step_ms = min(step_ms, timeout_ms - waited_ms)
                if run.status is RunStatus.SETTLING:
                    step_ms = min(step_ms, 20.0) if run.drain_fence is None else step_ms
                before = self._env.clock.now()
                await bell.wait(max(1.0, step_ms))
                waited_ms += max(1.0, (self._env.clock.now() - before) / 1000)
        finally:
            bell.close()

    async def result(self, run_id: RunId) -> object:
        """Return what a completed run's agent returned (as stored JSON); None for any other run."""
        await self.get(run_id)
        return await self._env.store.read(lambda tx: read_result(tx, run_id))

    async def get(self, run_id: RunId) -> Run:
        """Return a run. Raises `NotFound`."""
        run = await self._env.store.read(lambda tx: tx.runs.get(run_id))
        if run is None or run.tenant != self._caller.tenant:
            raise NotFound("run", run_id)
        return run

    async def list(self, *, statuses: Collection[str] = (), before: RunId | None = None, limit: int = 50) -> list[Run]:
        """Return this tenant's runs, newest first; page on with the last id as `before`."""
        tenant = self._caller.tenant
        return await self._env.store.read(lambda tx: tx.runs.page(tenant=tenant, statuses=statuses, before=before, limit=limit))

    async def inspect(self, run_id: RunId) -> Inspection:
        """Return everything stored of a run; changes nothing."""
        tenant = self._caller.tenant
        return await self._env.store.read(lambda tx: inspect_tx(tx, run_id, tenant=tenant))

    async def trace(self, run_id: RunId) -> builtins.list[TraceLine]:
        """Return what is on record of a run in the order of time, what is missing and what is unknown. Raises `NotFound`."""
        run = await self.get(run_id)
        return await self._env.store.read(lambda tx: trace_tx(tx, run))

    async def receipt(self, run_id: RunId) -> TerminalReceipt:
        """Return a run's receipt. Raises `SettlementPending` while there is none: it is not terminal."""
        run, receipt = await self._env.store.read(lambda tx: _read_end(tx, run_id, self._caller.tenant))
        if receipt is None:
            raise SettlementPending(
                f"run {run_id} is {run.status}: no boundary is published, so there is no receipt",
                run_id=run_id,
                status=str(run.status),
            )
        return receipt

    def stream(self, run_id: RunId, *, after: int = 0) -> AsyncIterator[Frame]:
        """Read a run's stream by number; see `read_stream`."""
        return read_stream(self._env, run_id, after=after, tenant=self._caller.tenant)

    async def contradict(self, run_id: RunId, seen: Sequence[Mark], *, actor: str | None = None) -> Evidence:
        """Record that what a client saw is not what is stored; see `contradict_tx`. `actor`: by default the caller."""
        who = Actor(kind=ActorKind.USER, name=actor or self._caller.subject)
        return await persist(self._env, lambda tx: contradict_tx(tx, run_id, seen, actor=who, tenant=self._caller.tenant))

    async def resolve(self, run_id: RunId, grounds: str, *, actor: str | None = None) -> Evidence:
        """Record a person's decision about what contradicts a run's stream; see `resolve_tx`."""
        check_text("grounds", grounds, self._env.limits.text_chars_max)
        who = Actor(kind=ActorKind.USER, name=actor or self._caller.subject)
        return await persist(self._env, lambda tx: resolve_tx(tx, run_id, grounds, actor=who, tenant=self._caller.tenant))

    def attending(self, run_id: RunId) -> contextlib.AbstractAsyncContextManager[None]:
        """Be a client of a run for the length of a block; see `disconnects.attending`."""
        return attending(self._env, run_id, tenant=self._caller.tenant)

    async def compare(self, run_id: RunId, seen: Sequence[Mark] = ()) -> Compared:
        """Compare what a client saw with what is stored; without marks, the last checkpoint with what may have been seen.

        See `compare_tx`. Raises `NotFound`, `InvalidInput`; changes nothing.
        """
        return await self._env.store.read(lambda tx: compare_tx(tx, run_id, seen, tenant=self._caller.tenant))

    async def reconcile(self, decision: Decision) -> Evidence:
        """Record a decision about an unknown effect; see `decide_tx`.

        Raises `InvalidInput`, and changes nothing, for a result that the tool does not return by its declaration. Where this
        process does not know the tool, nothing can be checked, and the record says so.
        """
        check_text("grounds", decision.grounds, self._env.limits.text_chars_max)
        decision = replace(decision, tenant=self._caller.tenant)
        is_checked = decision.verdict is Verdict.HAPPENED and await self._fits(decision)
        return await decide(self._env, replace(decision, is_checked=is_checked))

    async def read_again(self, run_id: RunId, position: Position, *, actor: Actor | None = None) -> Evidence:
        """Ask the destination of an unknown effect once more, through its tool's probe; see `read_again`."""
        who = actor or Actor(kind=ActorKind.USER, name=self._caller.subject)
        return await read_again(self._env, self._known, run_id, position, actor=who, tenant=self._caller.tenant)

    async def _fits(self, decision: Decision) -> bool:
        """Hold a result against its tool's return annotation. False if there is none to hold it against."""

        def names(tx: Transaction) -> tuple[str, str] | None:
            run, operation = tx.runs.get(decision.run_id), tx.operations.get(decision.run_id, decision.position)
            is_there = run is not None and operation is not None and run.tenant == decision.tenant
            return (run.agent, operation.name) if is_there and run and operation else None

        found = await self._env.store.read(names)
        tool = self._known.tool_of(*found) if found is not None else None
        hints = annotations_of(tool.fn) if tool is not None else {}
        if "return" not in hints:
            return False
        decode(canonical(decision.result, field="result"), hints["return"], field="result")
        return True


def _read_end(tx: Transaction, run_id: RunId, tenant: str) -> tuple[Run, TerminalReceipt | None]:
    run = tx.runs.get(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    return run, tx.terminal.receipt(run_id)
