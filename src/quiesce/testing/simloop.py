"""A deterministic world: one event loop with virtual time, in which simulated processes die, freeze, and race.

The loop picks the next ready callback with a random generator made from a seed, and when nothing is ready it jumps to the
next timer. So one seed is one interleaving, and the same seed is the same interleaving on every machine; thousands run in
a second. `digest` covers the whole sequence of what ran, so that two runs can be compared.

A `SimProcess` groups tasks, whoever creates them: membership travels with the context, as a task inherits it from its
creator. A killed process's callbacks are discarded, and its tasks are kept, suspended where they were, until the world
ends: a `finally` block runs no sooner than that. Hence what a test wants to know it asks before `main` returns.

Rejected: threads with a scheduler (slow, and no control between two awaits); cancelling the tasks of a killed process
(they would tidy up, which is what a dying process does not do). The loop overrides private methods of `BaseEventLoop`;
the tests pin that it works on each supported version of Python.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import itertools
import random
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from quiesce.domain.instant import Instant

T = TypeVar("T")

EPOCH: Final = Instant(1_750_000_000_000_000)
"""Where virtual time begins."""

_STEPS_MAX: Final = 1_000_000
_CLOSES_MAX: Final = 100


class SimDeadlock(RuntimeError):
    """Nothing is ready and no timer is set: the pending tasks that it names wait for each other, or for a lost wake-up."""


class SimEndless(RuntimeError):
    """The simulation has taken more steps than allowed: something spins."""


class SimForbidden(RuntimeError):
    """The code under test wanted a thread, a file descriptor or a signal, none of which a simulation has."""


class SimKilled(BaseException):
    """Raised where a killed process would go on and cannot be suspended, as in a call that blocks."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A ready callback, with the name by which it is traced and ordered."""

    name: str
    handle: asyncio.Handle
    owner: SimProcess | None


class SimLoop(asyncio.BaseEventLoop):
    """The loop. Its time is in seconds since the start of the simulation."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, *, steps_max: int = _STEPS_MAX) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self._steps_max = steps_max
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._time = 0.0
        self._digest = hashlib.sha256()
        self._order = itertools.count()
        self._numbers: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._runnable: list[_Entry] = []
        self._frozen: list[tuple[float, int, _Entry]] = []
        self._processes: list[SimProcess] = []
        self._failure: BaseException | None = None
        self.set_exception_handler(self._keep_failure)

    @property
    def digest(self) -> str:
        """Hexadecimal digest of everything that has run so far, and of all notes."""
        return self._digest.hexdigest()

    def note(self, text: str) -> None:
        """Add something that happened to the digest."""
        self._digest.update(f"{self._time!r} {text}\n".encode())

    def time(self) -> float:
        """Return the virtual time."""
        return self._time

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task, numbered in the order of creation: names from asyncio's own counter differ between runs."""
        task = super().create_task(coro, name=name or _name_of(coro), context=context)
        self._numbers[task] = next(self._order)
        if (owner := _PROCESS.get()) is not None:
            owner.adopt(task)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., object], *args: object) -> NoReturn:  # noqa: ARG002
        """Refuse: a thread would bring the real world in."""
        raise SimForbidden(f"run_in_executor({_name_of(func)}) inside a simulation")

    def close(self) -> None:
        """End all processes and whatever else is pending: `finally` blocks run now, and nothing comes of them."""
        for process in self._processes:
            process.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that a dying `finally` block makes in vain
            for task in self._unfinished():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
            super().close()

    def _run_once(self) -> None:
        self._collect()
        while not self._runnable:
            self._jump()
            self._collect()
        entry = self._runnable.pop(self._random.randrange(len(self._runnable)))
        if entry.handle.cancelled() or (entry.owner is not None and entry.owner.is_dead):
            return
        if entry.owner is not None and entry.owner.frozen_until > self._time:
            heapq.heappush(self._frozen, (entry.owner.frozen_until, next(self._order), entry))
            return
        self._execute(entry)

    def _collect(self) -> None:
        """Move all that has become ready to the runnable ones.

        Each batch is ordered by name first: asyncio keeps tasks in sets, whose order is that of memory addresses.
        """
        while self._scheduled and self._scheduled[0].when() <= self._time:
            self._ready.append(heapq.heappop(self._scheduled))
        while self._frozen and self._frozen[0][0] <= self._time:
            self._runnable.append(heapq.heappop(self._frozen)[2])
        if self._ready:
            batch = [self._entry(handle) for handle in self._ready if not handle.cancelled()]
            self._ready.clear()
            self._runnable += sorted(batch, key=lambda entry: entry.name)

    def _jump(self) -> None:
        while self._scheduled and self._is_void(self._scheduled[0]):
            heapq.heappop(self._scheduled)
        moments = [self._scheduled[0].when()] if self._scheduled else []
        moments += [self._frozen[0][0]] if self._frozen else []
        if not moments:
            raise SimDeadlock(f"seed {self.seed}: nothing can run any more; pending: {', '.join(self._pending())}")
        self._time = max(self._time, min(moments))

    def _execute(self, entry: _Entry) -> None:
        self.steps += 1
        if self.steps > self._steps_max:
            raise SimEndless(f"seed {self.seed}: more than {self._steps_max} steps; the last was {entry.name}")
        self.note(entry.name)
        entry.handle._run()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _entry(self, handle: asyncio.Handle) -> _Entry:
        callback = handle._callback  # type: ignore[attr-defined]
        task = getattr(callback, "__self__", None)
        name = self._task_name(task) if isinstance(task, asyncio.Task) else _name_of(callback)
        return _Entry(name, handle, _owner(handle))

    def _task_name(self, task: asyncio.Task[Any]) -> str:
        return f"{task.get_name()}#{self._numbers[task]}"

    def _is_void(self, handle: asyncio.Handle) -> bool:
        owner = _owner(handle)
        return handle.cancelled() or (owner is not None and owner.is_dead)

    def _unfinished(self) -> list[asyncio.Task[Any]]:
        tasks = asyncio.all_tasks(self).union(*(process.tasks for process in self._processes))
        return sorted((task for task in tasks if not task.done()), key=self._numbers.__getitem__)

    def _pending(self) -> list[str]:
        dead = {task for process in self._processes if process.is_dead for task in process.tasks}
        return [f"{self._task_name(task)} {_where(task)}" for task in self._unfinished() if task not in dead]

    def _keep_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # noqa: ARG002
        """Fail the simulation when a callback fails, which asyncio would only log."""
        if "handle" in context:
            self._failure = context.get("exception")
        else:
            self.default_exception_handler(context)

    def _process_events(self, event_list: object) -> None:
        """There are no file descriptors to hear of."""

    def _write_to_self(self) -> None:
        """There is no selector to wake: `call_soon_threadsafe` comes from this thread."""


class SimProcess:
    """A process of the simulated world: its tasks, and theirs, die and freeze together."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_dead = False
        self.frozen_until = 0.0
        self._loop = loop
        self._end = loop.create_future()
        loop._processes.append(self)

    def start(self, main: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task inside this process. What it creates belongs to the process too."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        task: asyncio.Task[T] = context.run(
            self._loop.create_task, main, name=f"{self.name}/{name or _name_of(main)}", context=context
        )
        return task

    async def run(self, main: Coroutine[Any, Any, T]) -> T | None:
        """Start `main` and wait for its end. Returns what it returns, raises what it raises; None if it was killed."""
        task = self.start(main)
        task.add_done_callback(lambda _: self._note_end(), context=contextvars.Context())
        await asyncio.shield(self._end)
        return None if self.is_dead or not task.done() else task.result()

    def kill(self) -> None:
        """End the process here and now, as SIGKILL does: none of its code runs any more. Idempotent.

        Called from inside, the running step goes on to its next `await`: follow it with `await vanish()`.
        """
        if self.is_dead:
            return
        self.is_dead = True
        self._note_end()

    def freeze(self, duration_ms: float) -> None:
        """Let nothing of the process run for a while (SIGSTOP, a long collection, a suspended machine).

        Called from inside, the running step goes on to its next `await`.
        """
        self.frozen_until = max(self.frozen_until, self._loop.time() + duration_ms / 1000)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Take a task in, and forget those that have ended."""
        if len(self.tasks) >= 64:
            self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(task)

    def _note_end(self) -> None:
        if not self._end.done():
            self._end.set_result(None)


class SimClock:
    """Implements `ports.clock.Clock` on virtual time, with an error of its own that a test can change."""

    def __init__(self, loop: SimLoop, *, skew_ms: float = 0) -> None:
        self._loop = loop
        self._skew_ms = skew_ms
        self._last = EPOCH

    def now(self) -> Instant:
        """Return the present instant; after a step back, the last one until time has caught up."""
        wall = EPOCH + round(self._loop.time() * 1_000_000 + self._skew_ms * 1000)
        self._last = Instant(max(self._last, wall))
        return self._last

    def step(self, by_ms: float) -> None:
        """Set the clock forward, or back if negative."""
        self._skew_ms += by_ms

    async def sleep(self, duration_ms: float) -> None:
        """Suspend the calling task for a span of virtual time."""
        await asyncio.sleep(duration_ms / 1000)


class SimEntropy:
    """Implements `ports.clock.Entropy` with repeatable bytes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def token(self, size: int) -> bytes:
        """Return `size` bytes."""
        return self._random.randbytes(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRun(Generic[T]):
    """What came of a simulation."""

    value: T
    digest: str
    steps: int
    elapsed_ms: float
    """Virtual time."""


def run_sim(seed: int, main: Callable[[SimLoop], Coroutine[Any, Any, T]], *, steps_max: int = _STEPS_MAX) -> SimRun[T]:
    """Run `main(loop)` in a world made from `seed`, to its end, and end everything that it has left.

    Raises what `main` raises, `SimDeadlock`, `SimEndless`, or what a failing callback raised.
    """
    loop = SimLoop(seed, steps_max=steps_max)
    try:
        value = loop.run_until_complete(main(loop))
        return SimRun(value=value, digest=loop.digest, steps=loop.steps, elapsed_ms=loop.time() * 1000)
    finally:
        loop.close()


async def vanish() -> NoReturn:
    """Suspend for ever: the last `await` of a step that has killed its own process."""
    await asyncio.get_running_loop().create_future()
    raise SimKilled


_PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("sim_process", default=None)


def _owner(handle: asyncio.Handle) -> SimProcess | None:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(_PROCESS)


def _name_of(callback: object) -> str:
    """Return a name that is the same in every run: never a memory address."""
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _where(task: asyncio.Task[Any]) -> str:
    """Return where a suspended task awaits, innermost."""
    coroutine: object = task.get_coro()
    while (inner := getattr(coroutine, "cr_await", None)) is not None and hasattr(inner, "cr_frame"):
        coroutine = inner
    frame = getattr(coroutine, "cr_frame", None)
    return f"in {_name_of(coroutine)}" + (f", line {frame.f_lineno}" if frame is not None else "")


def _close(coroutine: object) -> None:
    """Close a suspended coroutine, however often it awaits again in its `finally` blocks."""
    for _ in range(_CLOSES_MAX if isinstance(coroutine, Coroutine) else 0):
        try:
            coroutine.close()  # type: ignore[attr-defined]
        except BaseException:  # noqa: BLE001, S112 - last words of the dead, of which nothing may come
            continue
        return
