"""Ctrl-C ends a verb where it waits, and never in the middle of what its event loop is doing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from quiesce.cli.exits import run_to_end


@pytest.mark.req("RR-39")
def test_ctrl_c_is_a_cancel_at_the_next_wait_and_is_told_apart_from_any_other() -> None:
    seen: list[str] = []

    async def work() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("went on")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return 0

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(work())
    assert seen == ["went on", "cancelled"]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_coroutine_that_cancels_itself_is_no_ctrl_c() -> None:
    async def work() -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_to_end(work())


def test_what_a_coroutine_returns_is_returned() -> None:
    async def work() -> int:
        return 7

    assert run_to_end(work()) == 7
