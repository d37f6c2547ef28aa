"""What the simulation has found in the runtime, each told as a short scene of its own."""

import asyncio
from collections.abc import Iterator

import pytest

from quiesce.domain.canonical import parse
from quiesce.domain.errors import OutcomeUnknown, ToolFailed
from quiesce.domain.evidence import Verdict
from quiesce.domain.operations import OperationStatus, ResultKind, RetryPolicy
from quiesce.domain.runs import RunStatus
from quiesce.domain.streams import EventKind, StreamEvent, gap_range
from quiesce.domain.terminal import TerminalReceipt
from quiesce.runtime.context import Run
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.runtime.registry import Agent, Tool, declare_agent, declare_tool
from tests.simulation.stage import Stage, play


def idempotent(*, tries: int, first_delay_ms: int, answers: Iterator[Exception | str]) -> Tool:
    """A tool that acts, and then answers as told."""

    async def note(what: str, *, call: Call) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    retry = RetryPolicy(tries=tries, first_delay_ms=first_delay_ms)
    return declare_tool(note, effect="idempotent", retry=retry)


def caller_of(tool: Tool) -> Agent:
    async def caller(run: Run) -> str:
        try:
            return str(await run.call(tool, "it"))
        except (ToolFailed, OutcomeUnknown) as error:
            return error.code

    return declare_agent(caller)


def unresolved(receipt: TerminalReceipt) -> list[object]:
    return [row["operation"] for row in receipt.unresolved]


@pytest.mark.req("TR-64", "TR-43")
def test_a_call_that_nobody_answered_is_in_doubt_while_it_backs_off() -> None:
    """Seeds 148, 219, 299: it was stored as sealed, as after a definite failure, and no receipt listed it."""
    agent = caller_of(idempotent(tries=3, first_delay_ms=5_000, answers=iter([OutcomeUnknown("no answer")])))

    async def scene(stage: Stage) -> list[object]:
        await stage.process(agent)
        run_id = await stage.submit(agent)
        await stage.waits(run_id)
        return unresolved(await stage.cancel(run_id))

    assert play(scene) == ["1"]


@pytest.mark.req("RR-12", "TR-64")
def test_a_definite_failure_says_nothing_of_an_earlier_try_without_an_answer() -> None:
    """Seeds 112, 396: the second try's error became the call's result, though the first may have acted."""
    answers = iter([OutcomeUnknown("no answer"), ConnectionRefusedError("not this time")])
    agent = caller_of(idempotent(tries=2, first_delay_ms=20, answers=answers))

    async def scene(stage: Stage) -> tuple[OperationStatus, object]:
        await stage.process(agent)
        run_id = await stage.submit(agent)
        await stage.reaches(run_id, lambda run, _: bool(run.waits) and run.waits[0].kind == "unknown")
        status = (await stage.journal(run_id))["1"].status
        await stage.decide(run_id, "1", Verdict.GIVE_UP)
        await stage.receipt(run_id)
        return status, await stage.service.result(run_id)

    assert play(scene) == (OperationStatus.UNKNOWN, "TOOL_OUTCOME_UNKNOWN")


@pytest.mark.req("RR-12", "RR-19")
def test_a_budget_that_refuses_the_next_try_leaves_the_doubt_about_the_last() -> None:
    """Seeds 398, 428: the refusal became the call's result."""
    agent = caller_of(idempotent(tries=3, first_delay_ms=20, answers=iter([OutcomeUnknown("no answer")])))

    async def scene(stage: Stage) -> tuple[OperationStatus, int, int]:
        await stage.process(agent)
        run_id = await stage.submit(agent, budget={"tool_calls": 1})
        await stage.reaches(run_id, lambda run, _: bool(run.waits) and run.waits[0].kind == "unknown")
        units = (await stage.service.get(run_id)).budget.of("tool_calls")
        return (await stage.journal(run_id))["1"].status, units.used, units.reserved

    assert play(scene) == (OperationStatus.UNKNOWN, 0, 1)


@pytest.mark.req("TR-45", "RR-09", "RR-31")
@pytest.mark.parametrize("answer", [Absent(), Happened("paid")])
def test_a_decision_while_the_destination_is_asked_comes_first(answer: object) -> None:
    """Seed 812: the holder went on with the probe's answer; it even called again, under a mark that was never stored."""
    calls: list[str] = []

    async def scene(stage: Stage) -> tuple[object, ResultKind | None]:
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def probe(key: str) -> object:
            asked.set()
            await may_answer.wait()
            return answer

        async def pay(what: str, *, call: Call) -> str:
            calls.append(call.key)
            raise OutcomeUnknown("no answer")

        agent = caller_of(declare_tool(pay, effect="probe", probe=probe))
        await stage.process(agent)
        run_id = await stage.submit(agent)
        await asked.wait()
        await stage.decide(run_id, "1", Verdict.GIVE_UP)
        may_answer.set()
        await stage.receipt(run_id)
        return await stage.service.result(run_id), (await stage.journal(run_id))["1"].result_kind

    assert play(scene) == ("TOOL_OUTCOME_UNKNOWN", ResultKind.GIVEN_UP)
    assert len(calls) == 1


@pytest.mark.req("RR-13", "C56")
def test_a_holder_that_was_replaced_behind_its_mark_does_not_call_under_the_mark_of_its_successor() -> None:
    """Seed 4778: it read the mark back, took the successor's for its own, and paid a second time under the same try."""
    tries: list[int] = []

    async def scene(stage: Stage) -> RunStatus:
        async def probe(key: str) -> object:
            return Absent()

        async def pay(what: str, *, call: Call) -> str:
            tries.append(call.try_number)
            if call.try_number == 1:
                raise OutcomeUnknown("no answer")
            await asyncio.sleep(5)  # the first process is back before this is over
            return "paid"

        agent = caller_of(declare_tool(pay, effect="probe", probe=probe))
        first, _ = await stage.process(agent)

        def freeze_behind_the_second_mark() -> None:
            marked = stage.store.snapshot()["operations"]
            assert isinstance(marked, dict)
            if any(len(o.tries) == 2 for journal in marked.values() for o in journal):
                stage.store.hooks.after_commit = None
                first.freeze(3_000)

        stage.store.hooks.after_commit = freeze_behind_the_second_mark
        run_id = await stage.submit(agent)
        await stage.process(agent)
        return (await stage.receipt(run_id)).status

    assert play(scene) is RunStatus.COMPLETED
    assert tries == [1, 3]


def lasting(events: list[StreamEvent]) -> list[object]:
    """Return what a reader is left with: the payloads that no later event has replaced."""
    replaced: set[int] = set()
    for event in events:
        if event.kind is EventKind.SUPERSEDED:
            facts = parse(event.payload)
            assert isinstance(facts, dict)
            first, last = gap_range(event)
            replaced |= {e.seq for e in events if first <= e.seq <= last and e.operation == facts["operation"]}
    return [parse(e.payload) for e in events if e.kind is EventKind.DATA and e.seq not in replaced]


@pytest.mark.req("ST-01", "TR-31")
def test_what_an_interrupted_step_has_said_is_replaced_though_a_checkpoint_covers_it() -> None:
    """Seed 6: only events behind the last checkpoint were known to a restart, so the step was heard twice."""

    async def scene(stage: Stage) -> list[object]:
        said = asyncio.Event()
        gate = asyncio.Event()

        async def speak() -> str:
            await run_now[-1].emit("a")
            await run_now[-1].emit("b")
            said.set()
            await gate.wait()
            return "spoken"

        async def keep(run: Run) -> None:
            await said.wait()
            await run.checkpoint("in between")

        async def speaker(run: Run) -> None:
            run_now.append(run)
            step = run.step(speak)
            await asyncio.gather(step, keep(run))

        run_now: list[Run] = []
        agent = declare_agent(speaker)
        first, _ = await stage.process(agent)
        run_id = await stage.submit(agent)
        await stage.reaches(run_id, lambda _, journal: any(o.kind == "checkpoint" for o in journal.values()))
        first.kill()
        gate.set()
        await stage.process(agent)
        await stage.receipt(run_id)
        return lasting(await stage.events(run_id))

    assert play(scene) == ["a", "b"]


@pytest.mark.req("RR-22")
def test_code_that_keeps_errors_as_results_does_not_end_a_run_that_was_only_interrupted() -> None:
    """An agent that gathers with `return_exceptions` is handed the interruption as a result, and returns."""

    async def scene(stage: Stage) -> tuple[RunStatus, object]:
        gate = asyncio.Event()

        async def work() -> str:
            await gate.wait()
            return "done"

        async def more() -> str:
            return "more"

        async def lenient(run: Run) -> list[str]:
            slow = asyncio.ensure_future(run.step(work))
            await asyncio.sleep(0.05)
            results = await asyncio.gather(run.step(more), return_exceptions=True)
            background.append(slow)
            return [str(r) for r in results if not isinstance(r, BaseException)]

        background: list[object] = []
        agent = declare_agent(lenient)
        process, worker = await stage.process(agent)
        run_id = await stage.submit(agent)
        await stage.reaches(run_id, lambda run, _: run.status is RunStatus.RUNNING)
        await asyncio.sleep(0.01)
        closing = process.start(worker.close())
        await asyncio.sleep(0.1)
        gate.set()
        await closing
        await stage.process(agent)
        receipt = await stage.receipt(run_id)
        return receipt.status, await stage.service.result(run_id)

    assert play(scene) == (RunStatus.COMPLETED, ["more"])
