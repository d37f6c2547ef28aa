"""Advancing one run and all that it spawns, in this process, until it ends, is left parked, or is handed back.

Claims nothing else of the store: `start` and `resume` are about one tree. What the tree waits for decides how long they
stay: a short timer is sat out, an unknown effect or a long timer is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiesce.cli.code import check_code
from quiesce.domain.errors import Refused, required
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import Run, RunStatus
from quiesce.ports.notifier import WORK, run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import is_held
from quiesce.runtime.environment import Environment
from quiesce.runtime.registry import Registry
from quiesce.runtime.trees import descendants
from quiesce.runtime.worker import RunWorker

_SETTLING_MS: Final = 20.0


class Ending(StrEnum):
    """Why driving stopped."""

    ENDED = "ended"
    PARKED = "parked"
    HANDED_BACK = "handed_back"


class Stop:
    """The operator's wish to leave, by SIGINT or SIGTERM: the run is handed back. A second one leaves at once."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.signal = 0

    def __call__(self, number: int) -> None:
        """Take a signal."""
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        self.event.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Take signals within this block."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self, number)
        try:
            yield self
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run of the tree as it stands."""

    run: Run
    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The tree in one view, the root first."""

    now: Instant
    seen: list[Seen]

    @property
    def root(self) -> Run:
        """The run that the command is about."""
        return self.seen[0].run

    def claimable(self, known: Registry) -> list[Run]:
        """Return what may be taken now, by agents known here."""
        return [s.run for s in self.seen if s.run.agent in known.names and s.run.is_claimable(self.now, holder_is_live=s.is_held)]

    def is_parked(self, patience_ms: int) -> bool:
        """Return whether nothing in it moves by itself soon."""
        soon = after_ms(self.now, patience_ms)
        return not any(_moves(s, soon) for s in self.seen)


def _moves(seen: Seen, soon: Instant) -> bool:
    run = seen.run
    if run.status is RunStatus.RUNNING:
        return seen.is_held
    falls_due = [instant for instant in (run.due_at, run.deadline_at) if instant is not None and run.is_active]
    return run.status is RunStatus.SETTLING or any(instant <= soon for instant in falls_due)


def look_tx(tx: Transaction, root_id: RunId) -> Tree:
    """Read a run and everything below it."""
    root = required(tx.runs.get(root_id), "the run was found before it is driven")
    return Tree(now=tx.now, seen=[Seen(run=run, is_held=is_held(tx, run)) for run in [root, *descendants(tx, root_id)]])


async def drive(env: Environment, known: Registry, root_id: RunId, stop: Stop, *, patience_ms: int, may_follow: bool) -> Ending:
    """Advance a run's tree. Raises `LeaseBusy` if a live holder advances the root, unless `may_follow`.

    Raises `BindingMismatch` before anything is claimed if a run of the tree is bound otherwise than the code offered here.
    """
    worker = RunWorker(env, known, name=f"cli-{os.getpid()}")
    await worker.start(claims=False)
    try:
        if not may_follow:
            await _take_root(env, known, worker, root_id)
        return await _until_over(env, known, worker, root_id, stop, patience_ms)
    finally:
        await worker.close()


async def _take_root(env: Environment, known: Registry, worker: RunWorker, root_id: RunId) -> None:
    tree = await env.store.read(lambda tx: look_tx(tx, root_id))
    root = tree.seen[0]
    if root.run.status is RunStatus.RUNNING or root.run.is_claimable(tree.now, holder_is_live=root.is_held):
        check_code(tree.root, known)
        await worker.take(root_id)


async def _until_over(
    env: Environment, known: Registry, worker: RunWorker, root_id: RunId, stop: Stop, patience_ms: int
) -> Ending:
    stopping = asyncio.ensure_future(stop.event.wait())
    try:
        while True:
            bell = env.store.notifier.bell(WORK, run_topic(root_id))
            try:
                tree = await env.store.read(lambda tx: look_tx(tx, root_id))
                if tree.root.is_terminal:
                    return Ending.ENDED
                if stopping.done():
                    return Ending.HANDED_BACK
                if await _take(tree, known, worker):
                    continue
                if tree.is_parked(patience_ms):
                    return Ending.PARKED
                ringing = asyncio.ensure_future(bell.wait(_wait_ms(env, tree)))
                await asyncio.wait({ringing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                ringing.cancel()
            finally:
                bell.close()
    finally:
        stopping.cancel()


async def _take(tree: Tree, known: Registry, worker: RunWorker) -> bool:
    """Take what may be taken. Somebody else may be quicker: that is no trouble."""
    taken = False
    for run in tree.claimable(known):
        check_code(run, known)
        with contextlib.suppress(Refused):
            await worker.take(run.id)
            taken = True
    return taken


def _wait_ms(env: Environment, tree: Tree) -> float:
    poll_ms = float(env.settings.poll_ms)
    dues = [s.run.due_at for s in tree.seen if s.run.due_at is not None and s.run.status is RunStatus.WAITING]
    left_ms = [(due - tree.now) / 1000 for due in dues]
    if any(s.run.status is RunStatus.SETTLING for s in tree.seen):
        left_ms.append(_SETTLING_MS)
    return max(1.0, min([poll_ms, *left_ms]))
