"""`Quiesce`: the library's face. Puts store, worker and service together for one process.

    q = Quiesce("sqlite:///agents.db")
    async with q:
        handle = await q.start(researcher, "Why is the sky blue?", key="order-7")
        receipt = await handle.cancel(reason="changed my mind")

Inside `async with` a worker of this process advances runs of the agents it knows: `agents=[...]`, `@q.agent`, and those
that it starts. A process that only submits and controls passes `worker=False`. Nothing here decides anything: it names
pieces and hands over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, overload

from quiesce.bootstrap import make_environment
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import canonical
from quiesce.domain.commands import Intent, IntentId
from quiesce.domain.continuations import Carry, OnGap
from quiesce.domain.disconnects import GRACE_MS_DEFAULT, DisconnectPolicy, OnDisconnect
from quiesce.domain.errors import InvalidInput, required
from quiesce.domain.history import ThreadView, Turn
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.runs import Durability
from quiesce.domain.schedules import Definition, Missed, Timing
from quiesce.domain.streams import Visibility
from quiesce.domain.texts import word_of
from quiesce.domain.threads import OnBusy
from quiesce.handles import RunHandle
from quiesce.runtime.codec import encode
from quiesce.runtime.commands import CommandRequest, Staged
from quiesce.runtime.correction_owner import owners_of_runs
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.owners import Owner
from quiesce.runtime.placement import TurnRequest, request_turn
from quiesce.runtime.publication import Publisher, Subscriber
from quiesce.runtime.queue import Entry, QueueService
from quiesce.runtime.registry import Agent, Function, Isolation, Registry, Tool, declare_agent, declare_tool
from quiesce.runtime.schedules import ScheduleOwner
from quiesce.runtime.scheduling import ScheduleService, ScheduleView
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.threads import ThreadService
from quiesce.runtime.worker import RunWorker


class Quiesce:
    """Durable runs of agents over one store."""

    def __init__(
        self,
        url: str,
        *,
        artifacts: Path | str | None = None,
        settings: Settings | None = None,
        agents: Iterable[Agent] = (),
        owners: Iterable[Owner] = (),
        subscriber: Subscriber | None = None,
        worker: bool = True,
        name: str = "embedded",
        caller: Caller | None = None,
    ) -> None:
        self._url = url
        self._artifacts = None if artifacts is None else Path(artifacts)
        self._settings = settings or Settings()
        self._with_worker = worker
        self._name = name
        self._caller = caller or Caller()
        self._env: Environment | None = None
        self._worker: RunWorker | None = None
        self._deliverer: Deliverer | None = None
        self._owners = list(owners)
        self._subscriber = subscriber
        self._publisher: Publisher | None = None
        self.registry = Registry(agents)

    # -- declarations --------------------------------------------------------------------------------------------------

    def agent(self, fn: Function) -> Agent:
        """Declare an agent and register it with this process."""
        return self.registry.add(declare_agent(fn))

    def tool(
        self,
        *,
        effect: str = "once",
        probe: Function | None = None,
        retry: RetryPolicy | None = None,
        isolation: Isolation | None = None,
        timeout_ms: int | None = None,
        cost: Amounts | None = None,
    ) -> Callable[[Function], Tool]:
        """Declare a tool with its effect policy; the same as `quiesce.tool`."""
        return tool(effect=effect, probe=probe, retry=retry, isolation=isolation, timeout_ms=timeout_ms, cost=cost)

    def owner(self, owner: Owner) -> Owner:
        """Add an owner to whom this process delivers commands. Before `open`."""
        if self._env is not None:
            raise InvalidInput(field="owner", value=owner.name, rule="must be added before `open`")
        self._owners.append(owner)
        return owner

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Open the store and, unless `worker=False`, begin to advance runs and to deliver commands."""
        self._env = await make_environment(self._url, artifacts=self._artifacts, settings=self._settings)
        if self._with_worker:
            self._worker = RunWorker(self._env, self.registry, name=self._name)
            await self._worker.start()
            owners = [*owners_of_runs(self._env), ScheduleOwner(self._env), *self._owners]
            self._deliverer = Deliverer(self._env, owners, name=self._name)
            await self._deliverer.start()
        if self._subscriber is not None:
            self._publisher = Publisher(self._env, self._subscriber)
            await self._publisher.start()
        return self

    async def close(self, *, end_runs: bool = False) -> None:
        """Hand back what is under way and close the store. Idempotent.

        With `end_runs` what is under way here is ended instead (`worker_shutdown`): no other process is to take it over.
        """
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None
        if self._deliverer is not None:
            await self._deliverer.close()
            self._deliverer = None
        if self._worker is not None:
            await self._worker.close(end_runs=end_runs)
            self._worker = None
        if self._env is not None:
            await self._env.store.close()
            self._env = None

    async def __aenter__(self) -> Self:
        """Open."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @property
    def env(self) -> Environment:
        """The environment of this process. Raises `InvariantBroken` before `open`."""
        return required(self._env, "open Quiesce first: `async with Quiesce(...)`")

    @property
    def service(self) -> ControlService:
        """Commands and questions about all runs of the caller's tenant."""
        return ControlService(self.env, self._caller, self.registry)

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent,
        *args: object,
        thread: str | None = None,
        key: str | None = None,
        deadline_at: Instant | None = None,
        timeout_ms: int | None = None,
        budget: Amounts | None = None,
        durability: Durability | str = Durability.SYNC,
        visibility: Visibility | str = Visibility.STORE_FIRST,
        bindings: Mapping[str, str] | None = None,
        turn: TurnRequest | None = None,
        on_disconnect: OnDisconnect | str = OnDisconnect.CONTINUE,
        disconnect_grace_ms: int = GRACE_MS_DEFAULT,
    ) -> RunHandle:
        """Submit a run of `agent`; it is durable before this returns.

        `key`: the same key with the same content gives the same run, with other content `IdempotencyConflict`. On a thread
        that has an unfinished run, or one that left a gap, `turn` says what is to happen; see `continue_thread`.
        `timeout_ms`: a deadline counted from the submission; absolute from then on, whatever restarts. `budget`: unit →
        limit, for the run and its children. `on_disconnect`: with `cancel` the run is ended when no client has attended it
        (`RunHandle.attending`) for the grace; see `docs/streams.md`.
        """
        self.registry.add(agent)
        wanted = Submission(
            agent=agent.name,
            input=encode({"args": args, "kwargs": {}}, field="input", limits=self.env.limits),
            bindings=canonical({**agent.bindings, **(bindings or {})}, field="bindings"),
            thread_id=None if thread is None else ThreadId(thread),
            key=key,
            deadline_at=deadline_at,
            timeout_ms=timeout_ms,
            budget=Budget.of_limits(budget),
            durability=word_of(Durability, "durability", durability),
            visibility=word_of(Visibility, "visibility", visibility),
            turn=turn or TurnRequest(),
            disconnect=DisconnectPolicy(
                on_disconnect=word_of(OnDisconnect, "on_disconnect", on_disconnect), grace_ms=disconnect_grace_ms
            ),
        )
        return RunHandle(self.service, await self.service.submit(wanted), agent)

    async def schedule(
        self,
        name: str,
        agent: Agent,
        *args: object,
        cron: str | None = None,
        timezone: str = "UTC",
        at: Instant | None = None,
        missed: Missed | str = Missed.ONE,
        catchup_max: int = 100,
        thread: str | None = None,
        timeout_ms: int | None = None,
        budget: Amounts | None = None,
        bindings: Mapping[str, str] | None = None,
    ) -> ScheduleView:
        """Define a schedule of this name: runs of `agent` by a cron expression in a time zone, or once at an instant.

        Durable before this returns. The same content again changes nothing, so a process may say it each time it starts; other
        content changes the schedule. `missed`: what to do about times that passed while no worker was there, see
        `docs/schedules.md`. `budget` and `timeout_ms`: of each run. Raises `InvalidInput`.
        """
        self.registry.add(agent)
        definition = Definition(
            agent=agent.name,
            input=encode({"args": args, "kwargs": {}}, field="input", limits=self.env.limits),
            timing=Timing(cron=cron, timezone=timezone, at=at),
            bindings=canonical({**agent.bindings, **(bindings or {})}, field="bindings"),
            thread_id=None if thread is None else ThreadId(thread),
            budget=dict(budget or {}),
            timeout_ms=timeout_ms,
            missed=word_of(Missed, "missed", missed),
            catchup_max=catchup_max,
        )
        view, _ = await self.schedules.define(name, definition)
        return view

    @property
    def schedules(self) -> ScheduleService:
        """Pause, resume, delete and list schedules, and look at what they fired."""
        return ScheduleService(self.env, self._caller)

    async def stage(self, wanted: CommandRequest) -> Staged:
        """Stage a command to an owner in a transaction of its own; durable before this returns. See `docs/control-channel.md`.

        The same producer key with the same content gives the same intent. Raises `InvalidInput`, `IdempotencyConflict` or
        `CapacityExhausted`; nothing is stored then. To stage beside rows of your own, see `quiesce.staging`.
        """
        return await self.service.stage(wanted)

    async def settled(self, staged: Staged, *, timeout_ms: float | None = None) -> Entry:
        """Wait until a staged command's delivery has ended: with its owner's receipt, or closed without having begun.

        Raises `SettlementPending` when `timeout_ms` passes first: then its effect may still come.
        """
        return await QueueService(self.env, self._caller).settled(staged.intent.id, timeout_ms=timeout_ms)

    async def withdraw(self, intent_id: IntentId) -> Intent:
        """Take back a command that was not relayed yet. Raises `NotFound`, or `Refused` for one that was relayed or expired."""
        return await self.service.withdraw(intent_id)

    async def inbox(self, *, after: str | None = None, limit: int | None = None) -> list[Interaction]:
        """Return what the runs of all threads ask of people, oldest first."""
        return await self.service.questions(after=after, limit=limit)

    async def answer(
        self, interaction_id: str, value: object, *, actor: str | None = None, key: str | None = None, digest: str | None = None
    ) -> Interaction:
        """Answer a question and let its run go on. Exactly one answer counts: a later one gets `AlreadyAnswered`.

        `key`: the same key and value may be sent again and give the same. `digest`: of the question that the person has read;
        another question's is refused. Raises `NotFound`, `QuestionExpired`, `QuestionRevoked`, or `InvalidInput` for a value
        that does not fit the question's schema; nothing is stored then.
        """
        return await self.service.answer(interaction_id, value, actor=actor, key=key, digest=digest)

    async def continue_thread(
        self,
        thread: str,
        *message: object,
        accept: str | None = None,
        policy: OnGap | str | None = None,
        carry: Carry | str = Carry.KEEP_PARTIAL,
        basis: str | None = None,
        agent: Agent | None = None,
        key: str | None = None,
        on_busy: OnBusy | str = OnBusy.REJECT,
        budget: Amounts | None = None,
        timeout_ms: int | None = None,
    ) -> RunHandle:
        """Go on with a thread, under a recorded choice where its last run left a gap. Durable before this returns.

        `message`: what the agent is called with; `agent`: by default the one that ran last. `accept`: the receipt that the
        caller has read, and `policy`: `reconcile` (what was seen beyond the checkpoint is attached as partial, or with
        `carry="rollback"` nothing of that run is built on) or `restart` (from the last checkpoint; the record names what is
        given up). Without `accept`, `policy` is said ahead, about whatever boundary the message finds. `basis`: facts that the
        choice rests on, as `thread` names them. Without a message, the choice is made for the first queued run.

        Raises `ContinuationRefused`, whose details name the policy, why, and what would do; `ThreadBusy`, `NotFound`,
        `InvalidInput`. Nothing is stored then.
        """
        turn = request_turn(accept=accept, policy=policy, carry=carry, basis=basis, on_busy=on_busy)
        if not message:
            if turn.choice is None:
                raise InvalidInput(field="accept", value=None, rule="without a message, names the receipt that is chosen about")
            chosen = await self.threads.choose(ThreadId(thread), turn.choice)
            return RunHandle(self.service, await self.service.get(chosen.run_id))
        agent = agent or self.registry.get((await self._last_turn(thread)).agent)
        return await self.start(agent, *message, thread=thread, key=key, budget=budget, timeout_ms=timeout_ms, turn=turn)

    async def _last_turn(self, thread: str) -> Turn:
        turns = await self.threads.history(ThreadId(thread), limit=1)
        if not turns:
            raise InvalidInput(field="agent", value=None, rule=f"must be named: thread {thread} has no run yet")
        return turns[0]

    async def thread(self, thread: str) -> ThreadView:
        """Return a thread: its durable state with the number it contains, what was seen beyond it, and what may be done."""
        return await self.threads.view(ThreadId(thread))

    async def history(self, thread: str, *, limit: int | None = None) -> list[Turn]:
        """Return a thread's newest turns, oldest first: what was rolled back, partial or given up is marked, never missing."""
        return await self.threads.history(ThreadId(thread), limit=limit)

    @property
    def threads(self) -> ThreadService:
        """Choices, standing policies (`declare`) and history of threads; see `docs/resume.md`."""
        return ThreadService(self.env, tenant=self._caller.tenant, subject=self._caller.subject)

    async def handle(self, run_id: str) -> RunHandle:
        """Return a handle on an existing run. Raises `NotFound`."""
        run = await self.service.get(RunId(run_id))
        return RunHandle(self.service, run)


@overload
def agent(fn: Function) -> Agent: ...
@overload
def agent(*, name: str | None = None, bindings: Mapping[str, str] | None = None) -> Callable[[Function], Agent]: ...
def agent(
    fn: Function | None = None, *, name: str | None = None, bindings: Mapping[str, str] | None = None
) -> Agent | Callable[[Function], Agent]:
    """Declare an agent: an async function whose first parameter is the `Run`."""
    if fn is not None:
        return declare_agent(fn)
    return lambda fn: declare_agent(fn, name=name, bindings=bindings)


def tool(
    *,
    effect: str = "once",
    probe: Function | None = None,
    retry: RetryPolicy | None = None,
    isolation: Isolation | None = None,
    timeout_ms: int | None = None,
    cost: Amounts | None = None,
    name: str | None = None,
) -> Callable[[Function], Tool]:
    """Declare a tool. `effect` says what may be done after a crash with a call whose result is not stored.

    `pure`: repeat. `idempotent`: again with the same key. `probe`: ask the destination through `probe(key)`, which answers
    `Happened(result)`, `Absent()`, or anything else for "cannot tell". `once` (default): never again without a decision.
    """
    return lambda fn: declare_tool(
        fn, effect=effect, probe=probe, retry=retry, isolation=isolation, timeout_ms=timeout_ms, cost=cost, name=name
    )
