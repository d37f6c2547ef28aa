"""Readers in processes of their own: what they see when the process that writes is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.shell import SHORT_LEASE, Shell
from tests.cli.test_proving import Document

LAST_WORD = 60


def frames_of(text: str) -> tuple[list[Document], Document]:
    """Return the events and the end; numbers rise by one, or an event accounts for those between."""
    *events, end = (json.loads(line) for line in text.splitlines())
    assert [event["seq"] for event in events] == list(range(events[0]["seq"], end["last_seq"] + 1))
    return events, end


def words(events: list[Document]) -> list[str]:
    return [event["payload"] for event in events if event["kind"] == "data"]


@pytest.mark.req("C32", "ST-15", "ST-01", "RR-23")
def test_when_the_writer_is_killed_readers_elsewhere_get_the_rest_once_and_the_end(
    user_code: Shell, hold: Path, postgres_url: str
) -> None:
    where = "--store", postgres_url, "--artifacts", str(user_code.directory / "files")
    given = {**SHORT_LEASE, "QUIESCE_SESSION": ""}
    run_id = user_code.run("start", "mine:talker", "--detach", "--json", *where, **given).json()["run_id"]
    watch = ("watch", run_id, "--json", *where)
    with user_code.begin(*watch, **given) as watching, user_code.begin("worker", "mine", *where, **given) as first:
        watching.read_until('"seq": 30,')
        first.send(signal.SIGKILL)
        first.end()
        with user_code.begin(*watch, "--after", "12", **given) as rejoined:
            rejoined.read_until('"seq": 30,')
            hold.unlink()
            with user_code.begin("worker", "mine", *where, **given) as second:
                whole, rest = frames_of(watching.end().out), frames_of(rejoined.end().out)
                second.send(signal.SIGTERM)
                second.end()
    events, end = whole
    assert words(events) == [f"word {n}\n" for n in range(1, LAST_WORD + 1)]
    assert [event["payload"] for event in events if event["kind"] == "status"] == [{"status": "resumed", "attempt": 2}]
    assert (end["run_id"], end["status"]) == (run_id, "completed")
    assert rest == (events[12:], end)


@pytest.mark.req("C32", "C33", "TR-22")
def test_when_the_writer_is_killed_and_the_run_is_cancelled_a_reader_elsewhere_gets_the_end(user_code: Shell, hold: Path) -> None:
    run_id = user_code.run("start", "mine:talker", "--detach", "--json").json()["run_id"]
    with user_code.begin("watch", run_id, "--json") as watching:
        with user_code.begin("worker", "mine", **SHORT_LEASE) as first:
            watching.read_until('"seq": 30,')
            first.send(signal.SIGKILL)
            first.end()
        assert hold.exists(), "nobody goes on with it"
        receipt = user_code.run("cancel", run_id, "--grace", "0", "--json").json()["receipt"]
        events, end = frames_of(watching.end().out)
    assert words(events) == [f"word {n}\n" for n in range(1, 31)]
    assert (end["receipt_id"], end["status"]) == (receipt["receipt_id"], "cancelled")
