"""`Run`: what an agent's code is given. Thin: each method takes a position and hands over.

Methods that make an operation are plain functions returning an awaitable, so that the position is taken when they are
called, in program order: `gather(run.call(a), run.call(b))` keeps its places however the calls end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar, overload

from quiesce.domain.budgets import Allowance, Amounts
from quiesce.domain.canonical import Json, parse
from quiesce.domain.errors import InvalidInput, NotThereYet
from quiesce.domain.evidence import ArtifactReceipt
from quiesce.domain.history import Turn
from quiesce.domain.ids import Position, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.operations import RetryPolicy
from quiesce.domain.streams import Draft
from quiesce.domain.texts import check_text
from quiesce.ports.models import Message
from quiesce.runtime import scopes
from quiesce.runtime.asking import Question, perform_ask
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.calls import perform_call
from quiesce.runtime.children import Child, spawn
from quiesce.runtime.codec import encode
from quiesce.runtime.conversation import past_messages
from quiesce.runtime.history import past_of
from quiesce.runtime.intake import Correction, perform_corrections, perform_wait_for
from quiesce.runtime.points import perform_checkpoint, perform_save_artifact, perform_sleep
from quiesce.runtime.registry import Agent, Tool
from quiesce.runtime.steps import StepOptions, perform_step

T = TypeVar("T")


class Run:
    """A running agent's hold on its own run."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def id(self) -> RunId:
        """The run's id, the same over every restart."""
        return self._attempt.run.id

    @property
    def thread_id(self) -> ThreadId:
        """The thread that the run belongs to."""
        return self._attempt.run.thread_id

    @property
    def deadline_at(self) -> Instant | None:
        """The absolute deadline, in microseconds since the epoch."""
        return self._attempt.run.deadline_at

    @property
    def bindings(self) -> Mapping[str, Json]:
        """What the run was bound to at submission."""
        value = parse(self._attempt.run.bindings)
        return value if isinstance(value, dict) else {}

    @property
    def state(self) -> Json:
        """The state of the last checkpoint that this code has passed or an earlier attempt has stored; None before."""
        checkpoint = self._attempt.journal.checkpoint
        return None if checkpoint is None else parse(checkpoint.state)

    async def history(self, *, limit: int | None = None) -> list[Turn]:
        """Return what this run builds on: the turns of its thread before it, oldest first; nothing for the first.

        By the run's own continuation record, so the same whenever it is asked: partial output comes with a turn only if it was
        to be kept, and what was rolled back is not there.
        """
        most = self._attempt.env.limits.history_turns_max
        size = most if limit is None else max(1, min(limit, most))
        return await self._attempt.read(lambda tx: past_of(tx, self.id, limit=size))

    async def messages(self, *, limit: int | None = None) -> list[Message]:
        """Return what this run builds on as messages for a model, oldest first; see `history`.

        Words that were stopped come as an assistant's message with a note behind it that says so; every proposed call has an
        answer, if only that it was not started or that its outcome is unknown. Nothing is executed.
        """
        most = self._attempt.env.limits.history_turns_max
        size = most if limit is None else max(1, min(limit, most))
        agent = self._attempt.run.agent
        return await self._attempt.read(lambda tx: past_messages(tx, self.id, agent, limit=size))

    @overload
    def step(
        self,
        body: Callable[..., Coroutine[Any, Any, T]],
        *args: object,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        reserve: Amounts | None = None,
        usage: Callable[[object], Amounts] | None = None,
        **kwargs: object,
    ) -> Coroutine[object, object, T]: ...
    @overload
    def step(
        self,
        body: Callable[..., T],
        *args: object,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        reserve: Amounts | None = None,
        usage: Callable[[object], Amounts] | None = None,
        **kwargs: object,
    ) -> Coroutine[object, object, T]: ...
    def step(
        self,
        body: Callable[..., object],
        *args: object,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        reserve: Amounts | None = None,
        usage: Callable[[object], Amounts] | None = None,
        **kwargs: object,
    ) -> Coroutine[object, object, object]:
        """Run `body(*args, **kwargs)` once and keep its result; after a restart the result is read, not computed.

        `body` may be repeated until its result is stored, so outside effects belong into `call`. Plain functions run in a
        thread. `reserve`: units taken from the budget first; `usage` maps the result to what was really used. Raises
        `StepFailed` when the tries of `retry` are used up, `BudgetExceeded` before anything ran.
        """
        options = StepOptions(
            name=name or str(getattr(body, "__name__", type(body).__name__)),
            retry=retry or RetryPolicy(),
            reserve=dict(reserve or {}),
            usage=usage,
        )
        return self._attempt.carry_out(partial(perform_step, self._attempt, self._take(), body, args, kwargs, options))

    def call(self, tool: Tool, *args: object, **kwargs: object) -> Coroutine[object, object, object]:
        """Call a tool under its effect policy and return its stored result.

        Sealed and dispatched durably before it leaves; committed durably before it is returned. Raises `ToolFailed` if the
        tool answered with an error, `BudgetExceeded` if its cost does not fit (nothing was dispatched then). Where nobody
        can tell whether it took place, the run parks.
        """
        if not isinstance(tool, Tool):
            raise InvalidInput(field="tool", value=tool, rule="must be declared with @quiesce.tool")
        return self._attempt.carry_out(partial(perform_call, self._attempt, self._take(), tool, args, kwargs))

    async def emit(self, payload: object, *, channel: str = "messages", namespace: str = "", state_bearing: bool = True) -> None:
        """Stream something to the run's readers: numbered, stored, then shown.

        `state_bearing=False` marks what is purely observational (progress, say): it opens no gap. On replay what was
        emitted before is recognised and not shown twice.
        """
        scope = scopes.current()
        data = encode(payload, field="payload", limits=self._attempt.env.limits)
        check_text("channel", channel, self._attempt.env.limits.name_chars_max)
        operation = Position(scope.path) if scope.path else None
        draft = Draft(channel=channel, payload=data, namespace=namespace, operation=operation, state_bearing=state_bearing)
        self._attempt.stir()
        await self._attempt.journal.gate.emit(draft)

    def checkpoint(self, state: object) -> Coroutine[object, object, None]:
        """Keep `state` as the run's completed state: it covers everything emitted so far.

        Durable before this returns, unless the run's durability mode says later.
        """
        return self._attempt.carry_out(partial(perform_checkpoint, self._attempt, self._take(), state))

    def sleep(self, seconds: float) -> Coroutine[object, object, None]:
        """Wait until `seconds` from when this was first reached; a long wait holds no process."""
        return self._attempt.carry_out(partial(perform_sleep, self._attempt, self._take(), seconds))

    def wait_for(self, name: str, *, timeout: float | None = None) -> Coroutine[object, object, Json]:
        """Wait for a wake of this name and return its value; a long wait holds no process.

        A wake that came before is taken at once, and none is taken twice. Raises `WaitTimedOut` if none has come within
        `timeout` seconds of when this was first reached.
        """
        return self._attempt.carry_out(partial(perform_wait_for, self._attempt, self._take(), name, timeout))

    def corrections(self) -> Coroutine[object, object, list[Correction]]:
        """Take what people have corrected since the last time, in the order of its arrival; often nothing.

        Call it where the agent can take words in: at a safe boundary. Each correction is applied exactly once, recorded with
        this place and the last checkpoint. Does not wait.
        """
        return self._attempt.carry_out(partial(perform_corrections, self._attempt, self._take()))

    def spawn(self, agent: Agent, *args: object, budget: Amounts | None = None) -> Coroutine[object, object, Child]:
        """Start a child run and return a handle; `await child.outcome()` waits for its end, and parks if that is long.

        The child shares this run's deadline and draws on its budget too; a cancel of this run's tree reaches it.
        """
        return self._attempt.carry_out(partial(spawn, self._attempt, self._take(), agent, args, budget))

    def save_artifact(self, name: str, content: str | bytes) -> Coroutine[object, object, ArtifactReceipt]:
        """Save a file of the run, once: content and digest are durable before this returns; a replay reads it back."""
        return self._attempt.carry_out(partial(perform_save_artifact, self._attempt, self._take(), name, content))

    def budget(self, unit: str) -> Allowance:
        """Return the allowance of a unit as of the beginning of this attempt."""
        return self._attempt.run.budget.of(unit)

    def wave(self, name: str, **options: object) -> NoReturn:
        """Open a wave of members that closes exactly once. Not there yet: raises `NotThereYet`; `spawn` starts children."""
        raise NotThereYet("run.wave: waves are not part of this version; run.spawn starts children", name=name, **options)

    @overload
    def ask(
        self, prompt: object, *, expires_in: float | None = None, about: object = None
    ) -> Coroutine[object, object, bool]: ...
    @overload
    def ask(
        self, prompt: object, *, answer: type[T], expires_in: float | None = None, about: object = None
    ) -> Coroutine[object, object, T]: ...
    @overload
    def ask(
        self, prompt: object, *, answer: object, expires_in: float | None = None, about: object = None
    ) -> Coroutine[object, object, Any]: ...
    def ask(
        self, prompt: object, *, answer: object = bool, expires_in: float | None = None, about: object = None
    ) -> Coroutine[object, object, object]:
        """Ask a person, once, and return the answer as `answer`: a bool, a `Literal`, a dataclass, … Holds no process.

        `about`: what exactly is decided, the arguments of a call say; it is shown, and the answer is bound to it. Raises
        `QuestionExpired` if nobody has answered within `expires_in` seconds of when this was first reached.
        """
        question = Question(prompt=prompt, answer=answer, expires_in=expires_in, about=about)
        return self._attempt.carry_out(partial(perform_ask, self._attempt, self._take(), question))

    def _take(self) -> Position:
        self._attempt.stir()
        return scopes.current().take()
