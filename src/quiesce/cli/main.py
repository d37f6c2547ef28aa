"""The entry point `quiesce`: names the verbs and hands over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Final

import typer

from quiesce.cli import advancing, answering, comparing, controlling, proving, reaching, reading, threads, upkeep
from quiesce.cli.demo.verb import demo
from quiesce.cli.guide import GUIDE
from quiesce.cli.queueing import queue
from quiesce.cli.scheduling import schedules

app = typer.Typer(
    name="quiesce",
    help="Durable run control for AI agents: runs that survive their process, cancels that leave a provable boundary.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS: Final[tuple[tuple[str, Callable[..., None]], ...]] = (
    ("start", advancing.start),
    ("resume", advancing.resume),
    ("watch", reading.watch),
    ("cancel", controlling.cancel),
    ("correct", reaching.correct),
    ("wake", reaching.wake),
    ("mailbox", reaching.mailbox),
    ("inbox", answering.inbox),
    ("receipt", reading.receipt),
    ("list", reading.list_runs),
    ("inspect", reading.inspect),
    ("explain", reading.explain),
    ("trace", reading.trace),
    ("answer", answering.answer),
    ("reconcile", controlling.reconcile),
    ("thread", threads.thread),
    ("continue", threads.continue_thread),
    ("standing", threads.standing),
    ("verify", proving.verify_run),
    ("export", proving.export),
    ("compare", comparing.compare),
    ("worker", advancing.worker),
    ("demo", demo),
    ("doctor", upkeep.doctor),
    ("crash-points", upkeep.crash_points),
)
for _name, _verb in _VERBS:
    app.command(_name, help=GUIDE[_name].text, short_help=GUIDE[_name].summary)(_verb)

app.add_typer(queue, name="queue", help=GUIDE["queue"].text, short_help=GUIDE["queue"].summary)
app.add_typer(schedules, name="schedules", help=GUIDE["schedules"].text, short_help=GUIDE["schedules"].summary)


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="quiesce")
