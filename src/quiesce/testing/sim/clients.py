"""Who acts on a world from outside its processes: clients that ask, readers that watch, and what befalls the processes.

Clients keep to what the product promises them: an answer they got is held against what they get later, and of a question
that was not answered they assume nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from quiesce.domain.boundary import Actor, ActorKind, CancelMode, CancelScope
from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import Json
from quiesce.domain.errors import ContinuationRefused, IdempotencyConflict, QuiesceError, Refused, StoreError, ThreadBusy
from quiesce.domain.evidence import Verdict
from quiesce.domain.ids import OccurrenceId, RunId, ThreadId
from quiesce.domain.instant import after_ms
from quiesce.domain.operations import Operation, OperationStatus
from quiesce.domain.runs import Durability, Run
from quiesce.domain.streams import EventKind, StreamEvent, Visibility, gap_range
from quiesce.runtime.cancel import CancelAdmission, CancelVerdict
from quiesce.runtime.codec import encode
from quiesce.runtime.readers import StreamEnd
from quiesce.runtime.reconciliation import Decision
from quiesce.runtime.service import ControlService
from quiesce.runtime.submission import Submission
from quiesce.testing.sim.config import Config, Trouble, Wish
from quiesce.testing.sim.hosts import Host, NoAnswer
from quiesce.testing.sim.outside import Outside, answer_of
from quiesce.testing.sim.watch import WatchedStore
from quiesce.testing.sim.workload import AGENT_NAMES, UNIT, Planner
from quiesce.testing.simloop import EPOCH, SimLoop

_NO_ANSWER = (NoAnswer, StoreError)


@dataclass(slots=True, kw_only=True)
class Scene:
    """What those who act on a world have in common."""

    loop: SimLoop
    config: Config
    store: WatchedStore
    hosts: Sequence[Host]
    outside: Outside
    fail: Callable[[str], None]
    mark: Callable[[str], None]
    note: Callable[[str], None]
    submitted: dict[str, Submission] = field(default_factory=dict)
    """Key → what was last asked under it."""
    by_key: dict[str, RunId] = field(default_factory=dict)
    """Key → the run that an answer named."""
    cancelled: dict[tuple[RunId, str], OccurrenceId] = field(default_factory=dict)
    busy: bool = True

    def runs(self) -> list[Run]:
        """Return all runs as they are stored now."""
        return list(self.store.state.runs)

    def require(self, holds: bool, text: str) -> None:
        """Report what does not hold."""
        if not holds:
            self.fail(text)


class Client:
    """Asks random things of random processes until the world calms down."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._scene = scene
        self._random = random.Random(f"client {number} of {scene.config.seed}")  # noqa: S311 - repeatable on purpose
        self._planner = Planner(self._random, scene.config.deeds, scene.config.acts_max)
        self._wishes = scene.config.wishes

    async def live(self) -> None:
        """Ask until it is over."""
        while self._scene.busy:
            await asyncio.sleep(self._random.uniform(0.005, 0.25))
            with contextlib.suppress(*_NO_ANSWER):
                await self._ask_something()

    async def _ask_something(self) -> None:
        if len(self._scene.submitted) < self._scene.config.runs_max and self._random.random() < 0.4:
            await self._submit(f"key {len(self._scene.submitted)}", self._new_submission())
            return
        run = self._some_run()
        wishes = [w for w in self._wishes if w not in (Wish.THREADS, Wish.DEADLINES, Wish.BUDGETS)]
        if run is None or not wishes:
            return
        match self._random.choice(wishes):
            case Wish.AGAIN:
                await self._submit_again()
            case Wish.RECONCILE:
                await decide_unknowns(self._scene, self._random, self._host(), most=1, wavers=True)
            case Wish.WAIT:
                await self._wait(run)
            case wish:
                if self._random.random() < 0.25:
                    await self._cancel(run, wish)

    # -- submissions -------------------------------------------------------------------------------------------------------

    def _new_submission(self) -> Submission:
        rng, wishes = self._random, self._wishes
        deadline_ms = rng.choice((None, None, 30, 400, 2_000)) if Wish.DEADLINES in wishes else None
        limits = {"tool_calls": rng.randint(0, 6), UNIT: rng.randint(1, 8)} if Wish.BUDGETS in wishes else {}
        now = after_ms(EPOCH, self._scene.loop.time() * 1000)
        return Submission(
            agent=rng.choice(AGENT_NAMES),
            input=encode({"args": [self._planner.plan()], "kwargs": {}}, field="input"),
            thread_id=ThreadId(f"thread {rng.randint(1, 3)}") if Wish.THREADS in wishes else None,
            deadline_at=None if deadline_ms is None else after_ms(now, deadline_ms),
            budget=Budget.of_limits({unit: n for unit, n in limits.items() if rng.random() < 0.6}),
            durability=rng.choice(tuple(Durability)),
            visibility=rng.choice(tuple(Visibility)),
        )

    async def _submit(self, key: str, wanted: Submission) -> None:
        scene = self._scene
        wanted = replace(wanted, key=key)
        scene.submitted.setdefault(key, wanted)
        try:
            run = await self._host().ask(lambda service: service.submit(wanted), "submit")
        except IdempotencyConflict:
            stored = next((r for r in scene.runs() if r.key == key), None)
            is_true = stored is not None and stored.fingerprint != wanted.fingerprint()
            scene.require(is_true, f"{key}: a false conflict")
            scene.mark("key conflict")
            return
        except (ThreadBusy, ContinuationRefused) as error:
            scene.mark(error.code)
            return
        except QuiesceError as error:
            scene.require(isinstance(error, StoreError) or wanted.deadline_at is not None, f"submission: {error!r}")
            raise NoAnswer from None
        if key in scene.by_key:
            scene.mark("key repeated")
        scene.require(scene.by_key.setdefault(key, run.id) == run.id, f"{key} names two runs")
        scene.require(scene.store.state.runs.get(run.id) is not None, f"{key}: a run that is not stored was answered")

    async def _submit_again(self) -> None:
        if not self._scene.submitted:
            return
        key = self._random.choice(sorted(self._scene.submitted))
        wanted = self._scene.submitted[key]
        await self._submit(key, wanted if self._random.random() < 0.7 else self._new_submission())

    # -- cancels -----------------------------------------------------------------------------------------------------------

    async def _cancel(self, run: Run, wish: Wish) -> None:
        scene, rng = self._scene, self._random
        key = rng.choice(("cancel 1", "cancel 2")) if wish is Wish.CANCEL_AGAIN else f"cancel {rng.getrandbits(32)}"
        mode = CancelMode.AFTER_STEP if wish is Wish.CANCEL_SOFTLY else CancelMode.NOW
        scope = CancelScope.RUN if wish is Wish.CANCEL_ALONE else CancelScope.TREE
        grace_ms = rng.choice((None, 0, 1_500))

        async def cancel(service: ControlService) -> CancelAdmission:
            return await service.cancel(run.id, key=key, mode=mode, scope=scope, grace_ms=grace_ms, reason="enough")

        admission = await self._host().ask(cancel, "cancel")
        scene.mark(f"cancel {admission.verdict}")
        scene.note(f"cancel {run.id} {mode} {scope}: {admission.verdict}")
        c = admission.occurrence
        if c is None:
            scene.fail(f"cancel of {run.id}: {admission.verdict} without C")
            return
        known = scene.cancelled.setdefault((run.id, key), c.id)
        scene.require(known == c.id, f"cancel of {run.id}: the same key got another C")
        scene.require(scene.store.state.occurrences.get(run.id) == c, f"cancel of {run.id}: C is not what is stored")
        is_terminal = admission.verdict is CancelVerdict.ALREADY_TERMINAL
        scene.require(not is_terminal or admission.receipt is not None, f"cancel of {run.id}: ended without a receipt")
        if scope is CancelScope.TREE and not is_terminal:
            spared = [r.id for r in _below(scene.runs(), run.id) if r.is_active]
            scene.require(not spared, f"cancel of {run.id} and all below it: {spared} go on (RR-30)")

    async def _wait(self, run: Run) -> None:
        timeout_ms = self._random.choice((0, 100, 1_000))
        with contextlib.suppress(Refused):
            receipt = await self._host().ask(lambda service: service.wait(run.id, timeout_ms=timeout_ms), "wait")
            self._scene.require(self._scene.store.state.receipts.get(run.id) == receipt, f"a receipt of {run.id} is not stored")

    def _some_run(self) -> Run | None:
        runs = self._scene.runs()
        if not runs:
            return None
        return runs[-1] if self._random.random() < self._scene.config.hot else self._random.choice(runs)

    def _host(self) -> Host:
        return self._random.choice(self._scene.hosts)


def _below(runs: Sequence[Run], run_id: RunId) -> list[Run]:
    """Return the runs below one. A child is stored after its parent."""
    found: dict[RunId, Run] = {}
    for run in runs:
        if run.parent_id == run_id or run.parent_id in found:
            found[run.id] = run
    return list(found.values())


async def decide_unknowns(scene: Scene, rng: random.Random, host: Host, *, most: int, wavers: bool) -> None:
    """Decide, truthfully, about unknown effects of runs that wait. With `wavers`, sometimes give up or say nothing."""
    for run in scene.runs():
        for operation in list(scene.store.state.operations.of(run.id)):
            if operation.status is not OperationStatus.UNKNOWN or most <= 0:
                continue
            most -= 1
            await _decide(scene, operation, host, _verdict(scene, rng, operation, wavers=wavers))


def _verdict(scene: Scene, rng: random.Random, operation: Operation, *, wavers: bool) -> Verdict:
    if wavers and rng.random() < 0.3:
        return rng.choice((Verdict.GIVE_UP, Verdict.CANNOT_TELL))
    if scene.outside.has_acted(operation.key):
        return Verdict.HAPPENED
    scene.outside.void(operation.key, operation.run_id, operation.policy)
    return Verdict.DID_NOT_HAPPEN


async def _decide(scene: Scene, operation: Operation, host: Host, verdict: Verdict) -> None:
    result: Json = answer_of(operation.key) if verdict is Verdict.HAPPENED else None
    decision = Decision(
        run_id=operation.run_id,
        position=operation.position,
        verdict=verdict,
        actor=Actor(kind=ActorKind.USER, name="somebody"),
        grounds="asked the destination",
        result=result,
    )
    try:
        await host.ask(lambda service: service.reconcile(decision), "reconcile")
    except Refused:
        scene.mark("decision refused")
        return
    scene.mark(f"decided: {verdict}")
    scene.note(f"decided {operation.key}: {verdict}")


class Reader:
    """Reads streams by number, is cut off at random, goes on elsewhere, and keeps what it was given."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._scene = scene
        self._random = random.Random(f"reader {number} of {scene.config.seed}")  # noqa: S311 - repeatable on purpose
        self.views: list[View] = []

    async def live(self) -> None:
        """Read one run after the other."""
        while True:
            unread = [r.id for r in self._scene.runs() if all(v.run_id != r.id for v in self.views)]
            if not unread:
                await asyncio.sleep(0.1)
                continue
            view = View(self._random.choice(unread), after=self._random.choice((0, 0, 0, 2)))
            self.views.append(view)
            while view.end is None:
                if view.seen:
                    self._scene.mark("reader resumed")
                with contextlib.suppress(*_NO_ANSWER):
                    await self._random.choice(self._scene.hosts).ask(lambda s, v=view: self._read(s, v), "read")  # type: ignore[misc]
                await asyncio.sleep(self._random.uniform(0.01, 0.3))

    async def _read(self, service: ControlService, view: View) -> None:
        patience = self._random.randint(1, 12) if self._scene.busy else 1_000_000
        async with contextlib.aclosing(service.stream(view.run_id, after=view.after)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                if isinstance(frame, StreamEvent):
                    view.take(frame, self._scene)
                elif isinstance(frame, StreamEnd):
                    view.end = frame
                patience -= 1
                if patience <= 0:
                    return


class View:
    """What one reader was given of one stream."""

    def __init__(self, run_id: RunId, after: int) -> None:
        self.run_id = run_id
        self.start = after
        self.after = after
        self.seen: dict[int, StreamEvent] = {}
        self.end: StreamEnd | None = None

    def take(self, event: StreamEvent, scene: Scene) -> None:
        """Keep an event; it follows the last one, or accounts for what lies between (ST-01)."""
        is_gap = event.kind is EventKind.GAP and gap_range(event)[0] <= self.after + 1 <= event.seq
        scene.require(event.seq == self.after + 1 or is_gap, f"reader of {self.run_id}: {event.seq} came behind {self.after}")
        self.after = event.seq
        self.seen[event.seq] = event
        if scene.store.state.events.of(self.run_id).get(event.seq) is None:
            scene.mark("seen before it was stored")


async def befall(scene: Scene) -> None:
    """Let things happen to processes until the world calms down."""
    rng = random.Random(f"troubles of {scene.config.seed}")  # noqa: S311 - repeatable on purpose
    kinds = [t for t in scene.config.troubles if t in (Trouble.KILL, Trouble.CLOSE, Trouble.FREEZE)]
    while scene.busy and kinds:
        await asyncio.sleep(rng.expovariate(1000 / scene.config.trouble_every_ms))
        life = rng.choice(scene.hosts).life
        if life is None or not scene.busy:
            continue
        kind = rng.choice(kinds)
        scene.note(f"{kind} {life.process.name}")
        scene.mark(f"trouble: {kind}")
        match kind:
            case Trouble.KILL:
                life.process.kill()
            case Trouble.CLOSE:
                life.closing.set()
            case Trouble.FREEZE:
                life.process.freeze(scene.config.settings.lease_ms * rng.uniform(0.2, 2.5))
