"""What is drawn: the frontier on one line, help that teaches, streams that cannot steer the terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from quiesce.cli.guide import GUIDE
from quiesce.cli.main import app
from quiesce.cli.output import age
from quiesce.cli.receipt_view import frontier_line, show_receipt
from quiesce.cli.session import without_password
from quiesce.cli.streaming import Teller
from quiesce.domain.canonical import canonical
from quiesce.domain.ids import Fence, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.streams import Draft, StreamEvent, first_chain, gap_draft, status_draft
from tests.cli.playing import theatre

RUN = RunId("01a22ec6-0000-7000-8000-000000000000")


@pytest.mark.req("TR-48")
async def test_d_v_and_t_stand_on_one_line(tmp_path: Path) -> None:
    async with theatre(tmp_path) as played:
        completed = await played.play("slow-stream", tokens=7, delay_ms=0)
        cancelled = await played.stop_halting()
    assert re.fullmatch(r"─+●D○V 7──┤T completed", frontier_line(completed).plain)
    frontier = cancelled.frontier
    expected = rf"─+●D {frontier.covered_seq}─+○V {frontier.emitted_seq}──┤T cancelled"
    assert re.fullmatch(expected, frontier_line(cancelled).plain)
    lost = replace(cancelled, frontier=replace(frontier, emitted_seq=frontier.stored_seq + 250, emitted_exact=False))
    assert re.fullmatch(
        rf"─+●D {frontier.covered_seq}─+┄+○V ≤{lost.frontier.emitted_seq}──┤T cancelled", frontier_line(lost).plain
    )
    assert len(frontier_line(lost).plain) < 78


@pytest.mark.req("TR-48")
async def test_the_five_answers_are_there_at_80_columns_without_colour(tmp_path: Path) -> None:
    async with theatre(tmp_path) as played:
        receipt = await played.stop_halting()
    out = io.StringIO()
    show_receipt(Console(file=out, width=80, no_color=True, highlight=False, markup=False), receipt)
    for answer in ("stopped here", "became durable", "seen beyond it", "why", "may follow"):
        assert answer in out.getvalue()
    for digest in (receipt.h1, receipt.h2, receipt.digest):
        assert digest in out.getvalue(), "whole, on one line, to be copied"
    assert "\x1b" not in out.getvalue()
    assert all(len(line) <= 80 for line in out.getvalue().splitlines())


@pytest.mark.parametrize("verb", GUIDE)
def test_help_teaches_with_examples(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert f"quiesce {verb}" in result.output or "QUIESCE_CRASH_AT" in result.output
    assert "Examples:" in result.output


def test_every_verb_is_listed_with_one_line() -> None:
    result = CliRunner().invoke(app, ["--help"])
    for verb, guide in GUIDE.items():
        assert re.search(rf"^ *{verb} +{re.escape(guide.summary[:30])}", result.output, re.MULTILINE), verb


def told(*drafts: Draft) -> str:
    """Return what a teller writes of these events."""
    out = io.StringIO()
    teller = Teller(out)
    chain = first_chain(RUN)
    for seq, draft in enumerate(drafts, 1):
        event: StreamEvent = draft.sealed(run_id=RUN, seq=seq, previous=chain, fence=Fence(1), now=Instant(0))
        chain = event.chain
        teller.show(event)
    teller.finish()
    return out.getvalue()


def words(text: str) -> Draft:
    return Draft(channel="messages", payload=canonical(text))


def test_text_flows_and_remarks_stand_on_lines_of_their_own() -> None:
    gap = gap_draft(2, 9, "died")
    moved = status_draft("resumed", attempt=2)
    other = Draft(channel="progress", payload=canonical({"done": 1}))
    assert told(words("a "), words("b"), gap, moved, other, words("c\n")) == (
        "a b\n· events 2 to 9 may have been shown and are lost\n· resumed attempt 2\n· progress: {'done': 1}\nc\n"
    )


def test_a_stream_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in told(words("\x1b[2Jgone\x07"))


def test_an_age_is_short() -> None:
    minute = 60_000_000
    assert [age(Instant(0), Instant(n * minute)) for n in (0, 3, 150, 3000)] == ["0s", "3m", "2h", "2d"]


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://u:secret@h/db?x=1") == "postgresql://u:***@h/db?x=1"
    assert without_password("postgresql://h/db") == "postgresql://h/db"
