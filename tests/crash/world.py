"""A world that processes share and die in: one store, one directory, and what must hold whenever one has died.

`World` starts real processes through the forking parent of `driver`. `Facts` is everything stored and everything that the
outside has seen, at one moment while no process runs; two of them are compared by `check_progress`, one that has come to
rest by `check_rest`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quiesce.bootstrap import open_store
from quiesce.domain.boundary import Occurrence, PersistenceOutcome
from quiesce.domain.checkpoints import Checkpoint
from quiesce.domain.evidence import Evidence
from quiesce.domain.ids import RunId
from quiesce.domain.operations import EffectPolicy, Operation
from quiesce.domain.publication import OutboxMessage
from quiesce.domain.runs import Run, RunStatus, WaitKind
from quiesce.domain.streams import EventKind, StreamEvent, StreamState, first_chain, gap_range, next_chain
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.workers import Attempt
from quiesce.ports.store import Transaction
from tests.crash.agents import DIRECTORY

ROOT: Final = Path(__file__).resolve().parents[2]
SIGKILLED: Final = -signal.SIGKILL
PATIENCE_S: Final = 60.0
RUNS_MAX: Final = 500
Row = Mapping[str, Any]


class Forker:
    """The forking parent, and who waits for which of its children."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.driver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0
        )
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, job: Row) -> int:
        """Fork a process for a job and return its pid."""
        assert self._process.stdin is not None
        with self._changed:
            number = next(self._numbers)
            self._process.stdin.write(json.dumps({**job, "id": number}).encode() + b"\n")
            assert self._changed.wait_for(lambda: number in self._pids, PATIENCE_S), "the forking parent does not answer"
            return self._pids.pop(number)

    def wait(self, pid: int) -> int:
        """Return how a process has ended, once it has: its code, or minus the signal."""
        with self._changed:
            assert self._changed.wait_for(lambda: pid in self._codes, PATIENCE_S), f"process {pid} does not end"
            return self._codes[pid]

    def has_ended(self, pid: int) -> bool:
        """Return whether a process has ended."""
        with self._changed:
            return pid in self._codes

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            row = json.loads(line)
            with self._changed:
                if "started" in row:
                    self._pids[row["job"]] = row["started"]
                    self._codes.pop(row["started"], None)
                else:
                    self._codes[row["ended"]] = row["code"]
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Process:
    """One started process."""

    forker: Forker
    pid: int

    def wait(self) -> int:
        return self.forker.wait(self.pid)

    def is_over(self) -> bool:
        return self.forker.has_ended(self.pid)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything stored of one run."""

    run: Run
    attempts: list[Attempt]
    operations: list[Operation]
    events: list[StreamEvent]
    stream: StreamState
    checkpoints: list[Checkpoint]
    occurrence: Occurrence | None
    outcome: PersistenceOutcome | None
    receipt: TerminalReceipt | None
    evidence: list[Evidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything stored, and everything that happened outside."""

    runs: dict[RunId, RunFacts]
    outbox: list[OutboxMessage]
    effects: list[Row]
    steps: list[Row]
    answered: list[Row]
    about: str = field(compare=False)

    def of(self, agent: str) -> list[RunFacts]:
        return [facts for facts in self.runs.values() if facts.run.agent == agent]

    def effects_of(self, operation: Operation) -> int:
        return sum(line["key"] == operation.key for line in self.effects)


class World:
    """One store and one directory."""

    def __init__(self, forker: Forker, url: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = url
        self.directory = directory
        self._forker = forker
        self._pids: list[int] = []

    # -- processes -----------------------------------------------------------------------------------------------------

    def process(self, do: str, *, crash_at: str = "", **job: object) -> Process:
        """Start a process; it dies by SIGKILL when it gets to `crash_at`."""
        log = self.directory / f"{len(self._pids) + 1:02}-{do}.log"
        env = {DIRECTORY: str(self.directory), "QUIESCE_CRASH_AT": crash_at}
        pid = self._forker.start({"do": do, "url": self.url, "log": str(log), "env": env, **job})
        assert pid not in (*self._pids, os.getpid()), "another process, not the same one again"
        self._pids.append(pid)
        return Process(self._forker, pid)

    def work(self, *, crash_at: str = "", **job: object) -> int:
        """Have a process advance runs until nothing moves; return how it ended."""
        return self.process("work", crash_at=crash_at, until_quiet=True, **job).wait()

    def recover(self, *, crash_at: str = "", **job: object) -> int:
        """Let another process finish what dead ones have left; with `crash_at` it may die of that."""
        code = self.work(crash_at=crash_at, **job)
        assert code == 0 or (crash_at and code == SIGKILLED), f"recovery ended with {code}\n{self.logs()}"
        return code

    def decide_unknowns(self, facts: Facts, *, crash_at: str = "", verdict: str = "happened") -> int:
        """Record a decision about every effect that a run waits for; return how the process ended."""
        wanted = [(r.run.id, w.position) for r in facts.runs.values() for w in r.run.waits if w.kind is WaitKind.UNKNOWN]
        return self.process("decide", crash_at=crash_at, operations=wanted, verdict=verdict).wait()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something outside has become true."""
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, f"waited in vain: {what}\n{self.logs()}"
            time.sleep(0.01)

    def lines(self, name: str) -> list[Row]:
        path = self.directory / name
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in whole.splitlines()]

    def logs(self) -> str:
        """Return what the processes have said, for the message of a failure."""
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.directory.glob("*.log")) if p.stat().st_size)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """Read everything."""
        runs, outbox = asyncio.run(self._read())
        return Facts(
            runs=runs,
            outbox=outbox,
            effects=self.lines("effects.jsonl"),
            steps=self.lines("steps.jsonl"),
            answered=self.lines("answered.jsonl"),
            about=f"{self.url} {self.directory}\n{self.logs()}",
        )

    async def _read(self) -> tuple[dict[RunId, RunFacts], list[OutboxMessage]]:
        store = await asyncio.to_thread(open_store, self.url)
        try:
            return await store.read(read_all)
        finally:
            await store.close()

    def check_file(self) -> None:
        """Have SQLite look at every page."""
        if self.url.startswith("sqlite:"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()


def read_all(tx: Transaction) -> tuple[dict[RunId, RunFacts], list[OutboxMessage]]:
    found = tx.runs.page(tenant="local", statuses=(), before=None, limit=RUNS_MAX)
    assert len(found) < RUNS_MAX, "all runs are read"
    return {run.id: _read_run(tx, run) for run in found}, tx.outbox.pending(limit=RUNS_MAX)


def _read_run(tx: Transaction, run: Run) -> RunFacts:
    stream = tx.streams.state(run.id)
    assert stream is not None
    occurrence = tx.terminal.occurrence(run.id)
    return RunFacts(
        run=run,
        attempts=tx.runs.attempts(run.id),
        operations=tx.operations.of_run(run.id),
        events=tx.streams.read(run.id, after=0, limit=10_000),
        stream=stream,
        checkpoints=tx.checkpoints.of_run(run.id),
        occurrence=occurrence,
        outcome=tx.terminal.outcome(occurrence.id) if occurrence else None,
        receipt=tx.terminal.receipt(run.id),
        evidence=tx.evidence.of_run(run.id),
    )


# -- what must hold ------------------------------------------------------------------------------------------------------


def check_always(facts: Facts) -> None:
    """Check what holds at every moment, however the processes died."""
    for each in facts.runs.values():
        check_stream(each)
        check_boundary(facts, each)
        fences = [a.fence for a in each.attempts]
        assert fences == sorted(set(fences)), "the fence of a run rises with every attempt"
        for operation in each.operations:
            check_effects(facts, operation)
    keys = Counter(r.run.key for r in facts.runs.values() if r.run.key is not None)
    assert all(n == 1 for n in keys.values()), "a key names one run"
    assert {line["run"] for line in facts.answered} <= set(facts.runs), "what was answered exists (C57)"
    known = {o.key for r in facts.runs.values() for o in r.operations}
    assert {line["key"] for line in facts.effects} <= known, "no effect without its durable dispatch mark (RR-09)"


def check_effects(facts: Facts, operation: Operation) -> None:
    """Check how often the outside has seen one call, by its policy (C56)."""
    seen = facts.effects_of(operation)
    if operation.policy in (EffectPolicy.ONCE, EffectPolicy.PROBE):
        assert seen <= 1, f"{operation.name} {operation.position} took place {seen} times\n{facts.about}"


def check_stream(each: RunFacts) -> None:
    """Check numbers and chain of a stream."""
    seq, chain = 0, first_chain(each.run.id)
    for event in each.events:
        explained = event.kind is EventKind.GAP and gap_range(event) == (seq + 1, event.seq - 1)
        assert event.seq == seq + 1 or explained, f"number {event.seq} behind {seq}"
        chain = next_chain(chain, event.seq, event.kind, event.payload)
        assert event.chain == chain
        seq = event.seq
    assert (each.stream.stored_seq, each.stream.chain) == (seq, chain)


def check_boundary(facts: Facts, each: RunFacts) -> None:
    """Check that a terminal run has one receipt, bound to its own C and P, and that no other run has one (TR-58, TR-59)."""
    run, receipt = each.run, each.receipt
    announced = [m for m in facts.outbox if m.run_id == run.id]
    assert run.is_terminal == (receipt is not None)
    assert len(announced) == int(receipt is not None)
    if receipt is None:
        return
    assert each.occurrence is not None
    assert each.outcome is not None
    assert (receipt.occurrence_id, receipt.outcome_id) == (each.occurrence.id, each.outcome.id)
    assert receipt.digest == receipt.h3()
    assert (receipt.status, receipt.cause) == (run.status, each.occurrence.cause)
    open_calls = {o.key for o in each.operations if o.may_have_acted}
    assert open_calls <= {str(o["key"]) for o in receipt.unresolved}, "a receipt names every unresolved call"
    assert receipt.frontier.emitted_seq >= max((e.seq for e in each.events), default=0)


def check_progress(before: Facts, after: Facts) -> None:
    """Check that what was stored when a process died is still so, whoever went on from there."""
    assert before.runs.keys() <= after.runs.keys()
    for run_id, old in before.runs.items():
        _check_run_progress(before, old, after, after.runs[run_id])


def _check_run_progress(before: Facts, old: RunFacts, after: Facts, new: RunFacts) -> None:
    for name in ("id", "thread_id", "key", "agent", "input", "bindings", "deadline_at", "subject", "tenant", "fingerprint"):
        assert getattr(new.run, name) == getattr(old.run, name), f"{name} of a run never changes (RR-15…RR-18)"
    assert new.run.fence >= old.run.fence
    for was in old.run.budget.allowances:
        now = new.run.budget.of(was.unit)
        assert now.limit == was.limit
        assert now.used >= was.used, "used units are never given back (RR-19)"
    assert new.events[: len(old.events)] == old.events
    assert new.checkpoints[: len(old.checkpoints)] == old.checkpoints
    if old.receipt is not None:
        assert (new.run, new.receipt, new.operations) == (old.run, old.receipt, old.operations), "an end never changes"
    if old.occurrence is not None:
        assert new.occurrence == old.occurrence
    by_position = {o.position: o for o in new.operations}
    for operation in old.operations:
        now_stored = by_position[operation.position]
        is_once = operation.policy is EffectPolicy.ONCE and operation.may_have_acted
        if operation.has_result or is_once:
            assert after.effects_of(operation) == before.effects_of(operation), "never called again (RR-11, RR-13)"
        if operation.has_result:
            assert (now_stored.result, now_stored.result_kind) == (operation.result, operation.result_kind), "RR-31"
        if operation.has_result and operation.name == "think":
            assert _thoughts(after, operation) == _thoughts(before, operation), "a stored result is never asked for again (RR-10)"
        if is_once and old.run.is_active and not new.run.is_terminal:
            assert not now_stored.has_result, "an unknown outcome is neither dropped nor made up (RR-12)"
            assert now_stored.status in ("unknown", "dispatched")


def _thoughts(facts: Facts, operation: Operation) -> int:
    run_id, question = json.loads(operation.arguments)["args"]
    return sum(s["step"] == "think" and s["run"] == run_id and s["question"] == question for s in facts.steps)


def check_rest(facts: Facts, *, allow_unknown: bool) -> None:
    """Check that nothing is left under way: every run has ended, or waits for a decision where that is allowed."""
    for each in facts.runs.values():
        run = each.run
        if allow_unknown and not run.is_terminal:
            assert run.status is RunStatus.WAITING, facts.about
            unknown = {o.position for o in each.operations if o.may_have_acted and o.status == "unknown"}
            assert {w.position for w in run.waits if w.kind is WaitKind.UNKNOWN} == unknown
            assert unknown or {w.kind for w in run.waits} == {WaitKind.CHILD}, facts.about
            continue
        assert run.is_terminal, f"{run.agent} is {run.status}\n{facts.about}"
        dispatches = sum(facts.effects_of(o) for o in each.operations)
        allowance = run.budget.of("tool_calls")
        assert allowance.used + allowance.reserved >= dispatches, "no call is free"
        assert allowance.limit is None or allowance.used + allowance.reserved <= allowance.limit


def shown_words(events: Sequence[StreamEvent]) -> list[str]:
    """Return the words of the tests' own agents that a reader has seen in the end."""
    return [payload["word"] for payload in shown(events)]


def shown(events: Sequence[StreamEvent]) -> list[Any]:
    """Return what a reader has seen in the end: the payloads that no later event has replaced."""
    replaced: set[int] = set()
    for event in events:
        if event.kind is EventKind.SUPERSEDED:
            first, last = gap_range(event)
            scope = json.loads(event.payload)["operation"]
            replaced |= {e.seq for e in events if first <= e.seq <= last and e.operation == scope}
    data = [e for e in events if e.kind is EventKind.DATA and e.seq not in replaced]
    return [json.loads(e.payload) for e in data]
