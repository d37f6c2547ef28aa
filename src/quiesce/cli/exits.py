"""Exit codes, and the one boundary at which an error becomes a line on stderr.

Different ends stay different (RR-39): completed, failed, cancelled and parked runs have codes of their own, and none of them
is the code of a command that could not be carried out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Final, NoReturn, TypeVar

import typer

from quiesce.domain.errors import (
    IdempotencyConflict,
    InvalidInput,
    LeaseBusy,
    NotAStore,
    NotFound,
    QuiesceError,
    Refused,
    SchemaTooNew,
    SettlementPending,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    VerificationFailed,
)
from quiesce.domain.runs import RunStatus

T = TypeVar("T")
_JOIN_S: Final = 0.3


class Exit(IntEnum):
    """What the process answers its caller. Documented in `docs/cli.md`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    PARKED = 5
    STORE = 6
    VERIFICATION = 7
    CANCELLED = 8
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


OF_STATUS: Final = {RunStatus.COMPLETED: Exit.OK, RunStatus.FAILED: Exit.FAILED, RunStatus.CANCELLED: Exit.CANCELLED}
"""What a run that has ended makes of `start` and `resume`."""

_OF_ERROR: Final[tuple[tuple[type[QuiesceError], Exit], ...]] = (
    (InvalidInput, Exit.USAGE),
    (NotFound, Exit.NOT_FOUND),
    (Refused, Exit.REFUSED),
    (StoreError, Exit.STORE),
    (VerificationFailed, Exit.VERIFICATION),
)

_HINTS: Final[tuple[tuple[type[QuiesceError], str], ...]] = (
    (LeaseBusy, "follow it with `quiesce watch`, or end it with `quiesce cancel`"),
    (SettlementPending, "see `quiesce explain`; `quiesce resume` goes on with it"),
    (IdempotencyConflict, "a key names one request for good"),
    (NotAStore, "name another session directory or store"),
    (SchemaTooNew, "a later version of quiesce has written it: upgrade"),
    (StoreReadOnly, "quiesce needs to write beside the database file"),
    (StoreBusy, "nothing was changed; try again"),
)


def perform(work: Callable[[], Coroutine[object, object, int]], *, as_json: bool) -> NoReturn:
    """Carry out a verb and leave the process with its code. The boundary of the command line: every error ends here."""
    try:
        code = run_to_end(work())
    except QuiesceError as error:
        code = report(error, as_json=as_json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.BROKEN_PIPE
    leave(code)


def run_to_end(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine on a loop of its own.

    Unlike `asyncio.run`, this does not wait for threads: a tool's blocking code must not keep the process (it holds a stale
    fence and can write nothing). Ctrl-C cancels the coroutine and then raises `KeyboardInterrupt`: raised wherever the loop
    happens to be, it could lose a wake-up that the tasks are waiting for, and they would never end. A second one raises there.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    interrupts: list[int] = []

    def interrupt() -> None:
        interrupts.append(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.run_until_complete(_end_all_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_all_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def leave(code: int) -> NoReturn:
    """End the process with a code, past any thread that will not end."""
    sys.stdout.flush()
    sys.stderr.flush()
    others = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    for thread in others:
        thread.join(_JOIN_S)
    if any(thread.is_alive() for thread in others):
        os._exit(code)
    raise typer.Exit(code)


def report(error: QuiesceError, *, as_json: bool) -> Exit:
    """Print an error on stderr, as one line with a hint or as JSON, and return its exit code."""
    if as_json:
        print(json.dumps({"error": error.to_json()}, default=str), file=sys.stderr)
    else:
        print(f"error {error.code}: {error.message}", file=sys.stderr)
        hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
        if hint is not None:
            print(f"  hint: {hint}", file=sys.stderr)
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), Exit.INTERNAL)
