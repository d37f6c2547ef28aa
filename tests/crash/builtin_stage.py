"""The stage of the built-in cases' crash tests: one case in one world, its deaths, and what must have come of them.

An undisturbed run is played first. It tells which crash points there are to die at, and what every other run is to be like
in the end: the same result, the same words in the same order, and each effect once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from quiesce.adapters.artifact_directory import ArtifactDirectory
from quiesce.bootstrap import open_store
from quiesce.cases.destination import EFFECTS_LOG, MODEL_LOG, read_lines
from quiesce.domain.ids import Position
from quiesce.domain.operations import EffectPolicy, Operation, OperationKind
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.ports.store import Transaction
from quiesce.runtime.bundle import Bundle, gather_tx
from quiesce.runtime.verification import require, verify, verify_files
from tests.crash.world import SIGKILLED, Facts, Process, RunFacts, World, check_always, check_progress, check_rest, shown

TRIES: Final = 5
"""How many runs may end in peace because a first arrival did not come: whether a run parks, say, depends on the machine."""

SAME: Final = (
    (r'"is_new":(true|false)', '"is_new":0'),
    (r'"tries":\d+', '"tries":0'),
    (r"succeeded on try \d+", "succeeded"),
    ("found in the destination's book", "twelve cups"),
)
"""What a run may say otherwise than an undisturbed one, with equal right: what it counts are tries."""


_UNPARKED: Final = {OperationKind.STEP, OperationKind.CALL, OperationKind.CORRECTION, OperationKind.CHECKPOINT}
"""What no run parks for, but on a slow machine."""
Death = Callable[[str, str], bool]
"""Has a run of its own, under this key, meet this crash point; returns whether a process died of it."""


class Stage:
    """One case in one world, and what an undisturbed run of it is like."""

    def __init__(self, world: World, case: str) -> None:
        self.world = world
        self.case = case
        self.keys: list[str] = []
        assert self.start("whole").wait() == 0, self.world.logs()
        self.whole = {(r.run.agent, r.run.input): r for r in self.facts().runs.values()}
        self.arrivals = {point: n for point, n in self.counted("whole").items() if self._is_certain(point)}

    def _is_certain(self, point: str) -> bool:
        """Whether every run of the case gets there: one that waits for a back-off alone parks only on a slow machine."""
        kinds = {operation.kind for each in self.whole.values() for operation in each.operations}
        return not point.startswith("park.") or not kinds <= _UNPARKED

    def first_of(self, points: Iterable[str]) -> str:
        return next(point for point in points if point in self.arrivals)

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, key: str, *, crash_at: str = "", gate: str = "") -> Process:
        """Start a process that plays one run."""
        self.keys.append(key)
        return self.world.process("play", case=self.case, key=key, crash_at=crash_at, gate=gate)

    def is_at_gate(self, key: str, process: Process) -> bool:
        """Wait until a run stands at its gate; False if its process has ended instead."""

        def at_gate() -> bool:
            return any(line["key"] == key for line in self.world.lines("gates.jsonl"))

        self.world.until(lambda: at_gate() or process.is_over(), f"{key} gets to its gate")
        return at_gate()

    def open_gate(self, key: str) -> None:
        (self.world.directory / f"open-{key}").touch()

    def go_on(self) -> None:
        """Have another process bring everything to rest."""
        assert self.world.process("go on", case=self.case, keys=self.keys).wait() == 0, self.world.logs()

    def has_died(self, process: Process) -> bool:
        """Return whether a process died at its crash point; otherwise it has ended well."""
        code = process.wait()
        assert code in (0, SIGKILLED), f"{code}\n{self.world.logs()}"
        return code == SIGKILLED

    # -- facts ---------------------------------------------------------------------------------------------------------

    def counted(self, key: str) -> Counter[str]:
        """Return the arrivals that a run's process has noted; none if it did not get to its end."""
        return Counter(next((line["arrivals"] for line in self.world.lines("arrivals.jsonl") if line.get("key") == key), {}))

    def run_of(self, key: str) -> str:
        return str(next(line["run"] for line in self.world.lines("answered.jsonl") if line["key"] == key))

    def facts(self) -> Facts:
        """Read everything stored, and the effects from the destination's own log; check what holds at every moment."""
        rows = [line.split(" ") for line in read_lines(self.world.directory / "artifacts" / EFFECTS_LOG)]
        requests = [line.split(" ") for line in read_lines(self.world.directory / "artifacts" / MODEL_LOG)]
        facts = replace(
            self.world.facts(),
            effects=[{"run": row[0], "key": row[2]} for row in rows],
            steps=[{"run": row[0], "step": "request to a model"} for row in requests],
        )
        check_always(facts)
        for each in facts.runs.values():
            for operation in each.operations:
                assert facts.effects_of(operation) <= 1, f"{operation.key} took place twice\n{facts.about}"
        return facts

    def told(self, each: RunFacts, text: str) -> str:
        """Return what a run says, without its id and without what it may say otherwise."""
        for pattern, put in ((re.escape(each.run.id), "RUN"), *SAME):
            text = re.sub(pattern, put, text)
        return text

    def result(self, each: RunFacts) -> str:
        last = each.checkpoints[-1]
        assert last.is_final
        return self.told(each, json.dumps(json.loads(last.state)["result"], separators=(",", ":")))

    def words(self, each: RunFacts) -> list[str]:
        return [self.told(each, json.dumps(payload)) for payload in shown(each.events)]

    def twin(self, each: RunFacts) -> RunFacts:
        """Return the undisturbed run that this one is to be like."""
        return self.whole[each.run.agent, each.run.input]

    # -- deaths --------------------------------------------------------------------------------------------------------

    def kill(self, arrivals: Mapping[str, int], die: Death) -> None:
        """Have a run die at the first and at the last arrival at each point."""
        for point, last in arrivals.items():
            for nth in sorted({1, last}):
                assert self.dies(point, nth, die), f"{self.case} gets to {point} and never dies there\n{self.world.logs()}"

    def dies(self, point: str, nth: int, die: Death) -> bool:
        """Have a run die at an arrival. If that did not come, the run was left in peace, and another one dies before it."""
        at = [*range(nth, 1, -1), *([1] * TRIES)]
        return any(die(f"{point}:{n}", f"{point}-{nth}-{number}") for number, n in enumerate(at))


# -- what must have come of it ---------------------------------------------------------------------------------------------


def check_completed(stage: Stage, before: Facts, after: Facts) -> None:
    """Check that each run has completed like an undisturbed one, once what is unknown has been found out."""
    check_progress(before, after)
    check_rest(after, allow_unknown=True)
    for run_id, each in before.runs.items():
        if len(steps_with_result(each)) == len(steps_with_result(stage.twin(each))):
            assert requests_of(after, run_id) == requests_of(before, run_id), "a stored answer is not asked for again (RR-10)"
    for _ in range(6):
        found = [find_out(stage, after, each, position) for each, position in unknown_of(after)]
        if not found:
            break
        assert stage.world.process("decide", crash_at="reconcile.after", operations=found).wait() == SIGKILLED
        assert stage.world.process("decide", operations=found).wait() == 0, stage.world.logs()
        stage.go_on()
        after = stage.facts()
    check_rest(after, allow_unknown=False)
    assert len(after.runs) == len(stage.keys) * len(stage.whole), "the same key is the same run, also for who was not answered"
    for each in after.runs.values():
        assert each.run.status is RunStatus.COMPLETED, (each.receipt, after.about)
        assert stage.result(each) == stage.result(stage.twin(each)), after.about
        assert stage.words(each) == stage.words(stage.twin(each)), after.about
        for operation in filter(has_effect, each.operations):
            assert after.effects_of(operation) == 1, f"{operation.key} took place once\n{after.about}"
    check_proofs(stage.world, after.runs)


def steps_with_result(each: RunFacts) -> list[Operation]:
    return [o for o in each.operations if o.kind is OperationKind.STEP and o.has_result]


def requests_of(facts: Facts, run_id: str) -> int:
    return sum(line["run"] == run_id for line in facts.steps)


def unknown_of(facts: Facts) -> list[tuple[RunFacts, Position]]:
    """Return the calls whose outcome runs wait for."""
    return [(each, w.position) for each in facts.runs.values() for w in each.run.waits if w.kind is WaitKind.UNKNOWN]


def find_out(stage: Stage, facts: Facts, each: RunFacts, position: str) -> tuple[str, str, str, object]:
    """Ask the destination what became of a call, and take the answer that an undisturbed run was given."""
    (mine,) = (o for o in each.operations if o.position == position)
    twin = stage.twin(each)
    (its,) = (o for o in twin.operations if o.position == position)
    assert mine.policy is EffectPolicy.ONCE, "only what may not be repeated waits for somebody to find out"
    assert not mine.has_result
    result = (its.result or b"null").decode().replace(twin.run.id, each.run.id)
    return each.run.id, position, "happened" if facts.effects_of(mine) else "did_not_happen", json.loads(result)


def check_cancelled(stage: Stage, before: Facts, after: Facts, run_id: str) -> None:
    """Check that a cancelled tree has come to rest, and that its receipt tells all that may have happened."""
    check_progress(before, after)
    check_rest(after, allow_unknown=False)
    root = next(each for each in after.runs.values() if each.run.id == run_id)
    assert root.run.status is RunStatus.CANCELLED, (root.receipt, after.about)
    tree = [each for each in after.runs.values() if run_id in (each.run.id, *lineage(after, each))]
    for each in tree:
        assert each.run.status in (RunStatus.CANCELLED, RunStatus.COMPLETED), (each.receipt, after.about)
        words = stage.words(each)
        assert words == stage.words(stage.twin(each))[: len(words)], "what was shown is how an undisturbed run begins"
        assert each.receipt is not None
        listed = {str(row["key"]) for row in each.receipt.unresolved} | {f"{e.run_id}:{e.position}" for e in each.evidence}
        for operation in filter(has_effect, each.operations):
            took_place = after.effects_of(operation) == 1
            assert operation.has_result <= took_place, "no result without its effect"
            assert took_place <= (operation.has_result or operation.key in listed), "counted once, or reported unknown"
    check_proofs(stage.world, [each.run.id for each in tree])


def lineage(facts: Facts, each: RunFacts) -> list[str]:
    """Return the ids of the runs above a run."""
    above: list[str] = []
    parent = each.run.parent_id
    while parent is not None:
        above.append(parent)
        parent = facts.runs[parent].run.parent_id
    return above


def has_effect(operation: Operation) -> bool:
    return operation.kind is OperationKind.CALL and operation.policy is not EffectPolicy.PURE


def check_proofs(world: World, run_ids: Iterable[str]) -> None:
    """Compute again what each receipt claims, from the evidence in the store and from the files."""

    def gather(tx: Transaction) -> list[Bundle]:
        return [gather_tx(tx, run_id) for run_id in run_ids]  # type: ignore[arg-type]

    async def read() -> list[Bundle]:
        store = await asyncio.to_thread(open_store, world.url)
        try:
            return await store.read(gather)
        finally:
            await store.close()

    files = ArtifactDirectory(world.directory / "artifacts")
    for bundle in asyncio.run(read()):
        require([*verify(bundle), *verify_files(bundle.artifacts, files)], subject=f"{world.directory} {bundle.run_id}")
