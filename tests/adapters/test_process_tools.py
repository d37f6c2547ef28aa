"""Isolated tools: the answer comes through, errors are told from doubts, and nothing outlives its call."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quiesce.adapters.process_tools import ProcessTools
from quiesce.domain.canonical import Json
from quiesce.domain.errors import OutcomeUnknown, ToolFailed
from quiesce.ports.executor import ToolProcess

FUNCTIONS = Path(__file__).with_name("tool_functions.py")
GRACE_MS = 200


async def run(name: str, *args: Json, grace_ms: int = GRACE_MS, kwargs: dict[str, Json] | None = None) -> Json:
    tools: ToolProcess = ProcessTools()
    payload = json.dumps({"args": list(args), "kwargs": kwargs or {}}).encode()
    result: Json = json.loads(await tools.run(f"{FUNCTIONS}:{name}", payload, grace_ms=grace_ms))
    return result


async def pids_in(path: Path) -> list[int]:
    """Wait until the tool has written its ids."""
    while not (pids := pids_written(path)):
        await asyncio.sleep(0.005)
    return pids


def pids_written(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def alive(pids: list[int]) -> list[int]:
    """Return those that still run. The dead whom nobody has reaped do not count."""
    command = ["ps", "-o", "pid=,state=", "-p", ",".join(map(str, pids))]
    listing = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, state in rows if state[0] not in "ZX"]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "result"),
    [
        ("add", [1, 2], {}, 3),
        ("add", [1], {"b": 2}, 3),
        ("add_later", [1], {"b": 2}, 3),
        ("Namespace.nested", [], {}, "nested"),
        ("echo", [{"a": [None, True, "ü\x00"]}], {}, {"a": [None, True, "ü\x00"]}),
    ],
)
async def test_a_function_is_called_in_a_child_and_its_result_returned(
    name: str, args: list[Json], kwargs: dict[str, Json], result: Json
) -> None:
    assert await run(name, *args, kwargs=kwargs) == result


async def test_an_importable_function_is_named_by_its_module() -> None:
    assert await ProcessTools().run("operator:add", b'{"args": [1, 2]}', grace_ms=GRACE_MS) == b"3"


async def test_a_payload_and_a_result_larger_than_a_pipe_go_through() -> None:
    assert await run("echo", "x" * 1_000_000) == "x" * 1_000_000


async def test_the_child_leads_a_process_group_of_its_own() -> None:
    assert await run("leads_its_group", os.getpgrp()) is True


async def test_what_a_tool_prints_does_not_touch_its_answer_however_much_it_is() -> None:
    assert await run("print_much", 20_000) == "quiet"


async def test_a_tool_has_nothing_to_read() -> None:
    assert await run("read_stdin") == ""


async def test_what_a_tool_raises_is_a_definite_failure_with_type_message_and_output() -> None:
    with pytest.raises(ToolFailed, match="ValueError: no such account") as caught:
        await run("fail", "no such account")
    assert caught.value.details["error_type"] == "ValueError"
    assert "on my way down" in str(caught.value.details["output"])


async def test_a_tool_may_say_that_it_cannot_tell() -> None:
    with pytest.raises(OutcomeUnknown, match="timed out after sending"):
        await run("cannot_tell")


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_json", "has no JSON form"), ("missing", "has no attribute"), ("FUNCTIONS", "has no attribute")],
)
async def test_a_result_without_json_form_and_a_missing_function_are_failures(name: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        await run(name)


@pytest.mark.req("RR-38")
async def test_a_process_that_dies_without_an_answer_leaves_the_outcome_unknown() -> None:
    with pytest.raises(OutcomeUnknown, match="was killed by SIGKILL before it answered") as caught:
        await run("kill_oneself")
    assert "last words" in str(caught.value.details["output"])


async def test_a_process_that_exits_without_an_answer_leaves_the_outcome_unknown() -> None:
    with pytest.raises(OutcomeUnknown, match="exited with status 3"):
        await run("leave", 3)


async def test_a_forked_child_that_holds_the_pipes_does_not_hide_the_death_of_its_parent(tmp_path: Path) -> None:
    with pytest.raises(OutcomeUnknown, match="SIGKILL"):
        await run("leave_a_forked_child_and_die", str(tmp_path / "pids"))
    assert alive(await pids_in(tmp_path / "pids")) == []


async def test_what_an_answered_call_has_left_running_is_killed(tmp_path: Path) -> None:
    assert await run("answer_and_leave_a_child", str(tmp_path / "pids")) == "answered"
    assert alive(await pids_in(tmp_path / "pids")) == []


@pytest.mark.req("C19")
async def test_a_cancel_ends_a_child_and_a_grandchild_that_both_ignore_the_request_to_stop(tmp_path: Path) -> None:
    call = asyncio.create_task(run("stubborn_family", str(tmp_path / "pids"), grace_ms=50))
    pids = await pids_in(tmp_path / "pids")
    assert alive(pids) == pids
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert alive(pids) == []


@pytest.mark.req("C19")
async def test_a_second_cancel_ends_the_grace_at_once(tmp_path: Path) -> None:
    call = asyncio.create_task(run("stubborn_family", str(tmp_path / "pids"), grace_ms=600_000))
    pids = await pids_in(tmp_path / "pids")
    call.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert alive(pids) == []


@pytest.mark.parametrize("name", ["tidy", "tidy_later"])
async def test_within_the_grace_a_cancelled_tool_runs_its_finally_blocks(name: str, tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    call = asyncio.create_task(run(name, str(begun), str(done), grace_ms=10_000))
    await pids_in(begun)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert done.read_text() == "tidied"


@pytest.mark.req("C19")
@pytest.mark.parametrize("name", ["stubborn_family", "hold_the_interpreter"])
async def test_the_death_of_the_parent_ends_the_whole_group(name: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import asyncio, sys; from quiesce.adapters.process_tools import ProcessTools;"
        "asyncio.run(ProcessTools().run(sys.argv[1], sys.argv[2].encode(), grace_ms=0))"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, f"{FUNCTIONS}:{name}", json.dumps({"args": [str(pids)]}))
    )
    members = await pids_in(pids)
    assert alive(members) == members
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    while alive(members):
        await asyncio.sleep(0.005)
