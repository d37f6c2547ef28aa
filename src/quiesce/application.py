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

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar, overload

from quiesce.bootstrap import make_environment
from quiesce.domain.boundary import CancelMode, CancelScope
from quiesce.domain.budgets import Amounts, Budget
from quiesce.domain.canonical import Json, canonical
from quiesce.domain.commands import Intent, IntentId
from quiesce.domain.errors import InvalidInput, NotThereYet, required
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction
from quiesce.domain.mailbox import MailboxEntry
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.runs import Durability, Run, RunStatus
from quiesce.domain.schedules import Definition, Missed, Timing
from quiesce.domain.streams import Visibility
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.codec import annotations_of, decode, encode
from quiesce.runtime.commands import CommandRequest, Staged
from quiesce.runtime.correction_owner import owners_of_runs
from quiesce.runtime.deliverer import Deliverer
from quiesce.runtime.environment import Environment, Settings
from quiesce.runtime.owners import Owner
from quiesce.runtime.queue import Entry, QueueService
from quiesce.runtime.readers import Frame
from quiesce.runtime.registry import Agent, Function, Isolation, Registry, Tool, declare_agent, declare_tool
from quiesce.runtime.schedules import ScheduleOwner
from quiesce.runtime.scheduling import ScheduleService, ScheduleView
from quiesce.runtime.service import Caller, ControlService
from quiesce.runtime.submission import Submission
from quiesce.runtime.worker import RunWorker

Mode = TypeVar("Mode", Durability, Visibility, Missed)


class RunHandle:
    """One run, as a caller holds it."""

    def __init__(self, service: ControlService, run: Run, agent: Agent | None = None) -> None:
        self._service = service
        self._agent = agent
        self.id = run.id
        self.thread_id = run.thread_id

    async def status(self) -> RunStatus:
        """Return the run's execution state now."""
        return (await self._service.get(self.id)).status

    async def receipt(self, *, timeout_ms: float | None = None) -> TerminalReceipt:
        """Wait for the end of the run and return its receipt."""
        return await self._service.wait(self.id, timeout_ms=timeout_ms)

    async def result(self, *, timeout_ms: float | None = None) -> object:
        """Wait for the end and return what the agent returned; None if the run did not complete (ask the receipt why)."""
        await self._service.wait(self.id, timeout_ms=timeout_ms)
        value = await self._service.result(self.id)
        hint = annotations_of(self._agent.fn).get("return") if self._agent else None
        return None if value is None else decode(canonical(value), hint, field="result")

    async def cancel(
        self,
        *,
        reason: str = "",
        mode: CancelMode | str = CancelMode.NOW,
        scope: CancelScope | str = CancelScope.TREE,
        grace_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> TerminalReceipt:
        """Cancel the run, wait for its boundary, and return the receipt.

        Of a run that had ended already, the receipt of that end: nothing changed, and that is no failure.
        """
        await self._service.cancel(self.id, reason=reason, mode=mode, scope=scope, grace_ms=grace_ms)
        return await self._service.wait(self.id, timeout_ms=timeout_ms)

    async def wake(self, name: str, value: Json = None, *, key: str | None = None) -> MailboxEntry:
        """Wake the run if it waits, or once it waits, for `name`. Raises `RunEnded` that names the receipt."""
        return await self._service.wake(self.id, name, value, key=key)

    async def correct(self, text: str, *, key: str | None = None) -> MailboxEntry:
        """Give the running agent a person's words, for its next safe boundary. Raises `RunEnded` that names the receipt."""
        return await self._service.correct(self.id, text, key=key)

    async def mailbox(self) -> list[MailboxEntry]:
        """Return what reached the run from outside, and what became of each."""
        return await self._service.mailbox(self.id)

    def stream(self, *, after: int = 0) -> AsyncIterator[Frame]:
        """Read the run's stream from a number on; ends with `StreamEnd`."""
        return self._service.stream(self.id, after=after)


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
        return self

    async def close(self, *, end_runs: bool = False) -> None:
        """Hand back what is under way and close the store. Idempotent.

        With `end_runs` what is under way here is ended instead (`worker_shutdown`): no other process is to take it over.
        """
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
    ) -> RunHandle:
        """Submit a run of `agent`; it is durable before this returns.

        `key`: the same key with the same content gives the same run, with other content `IdempotencyConflict`.
        `timeout_ms`: a deadline counted from the submission; absolute from then on, whatever restarts. `budget`: unit →
        limit, for the run and its children.
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
            durability=_member(Durability, "durability", durability),
            visibility=_member(Visibility, "visibility", visibility),
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
            missed=_member(Missed, "missed", missed),
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

    async def continue_thread(self, thread: str, message: object, **choice: object) -> NoReturn:
        """Go on with a thread whose last run left a gap, by a recorded choice. Not there yet: raises `NotThereYet`."""
        rule = "continue_thread: recorded continuation choices are not part of this version; start on a new thread"
        raise NotThereYet(rule, thread=thread, offered=type(message).__name__, choice=sorted(choice))

    async def handle(self, run_id: str) -> RunHandle:
        """Return a handle on an existing run. Raises `NotFound`."""
        run = await self.service.get(RunId(run_id))
        return RunHandle(self.service, run)


def _member(kind: type[Mode], field: str, value: str) -> Mode:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field=field, value=value, rule="must be one of " + ", ".join(kind)) from None


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
