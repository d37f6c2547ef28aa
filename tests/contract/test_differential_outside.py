"""Questions, mailboxes and schedules: what is decided over SQLite and PostgreSQL is what is decided over the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from quiesce.bootstrap import open_store
from quiesce.ports.store import Store
from quiesce.stores.memory import MemoryStore
from quiesce.testing.clock import ManualClock
from quiesce.testing.conformance import StoreUnderTest
from tests.contract.decisions import Decisions
from tests.contract.differential import Url, postgres_url, sqlite_url

SHARES: Final = (
    *(("wait", 6), ("submit", 1), ("claim", 6), ("park", 3), ("cancel", 1), ("finish", 3)),
    *(("ask", 8), ("answer", 10), ("expire", 3), ("settled", 3)),
    *(("arrive", 12), ("take", 6), ("withdraw", 3)),
    *(("define", 6), ("verb", 5), ("fire", 8)),
)
HAPPENED: Final = frozenset(
    {
        *("time: passes", "time: to the instant"),
        *("submit: pending", "claim: held", "claim: LEASE_BUSY", "claim: REFUSED", "park: True", "park: False"),
        *("cancel: accepted", "cancel: already_terminal", "establish: True", "publish: cancelled"),
        *("ask: new", "ask: known", "ask: not the holder"),
        *("answer: answered", "answer: again", "answer: ALREADY_ANSWERED", "answer: QUESTION_EXPIRED"),
        *("answer: QUESTION_REVOKED", "answer: NOT_FOUND", "answer: INVALID_INPUT"),
        *("expire: 0", "expire: 1", "settled: open", "settled: answered", "settled: expired", "settled: revoked"),
        *("arrive: new", "arrive: known", "arrive: KEY_CONFLICT", "arrive: NOT_FOUND", "arrive: RUN_ENDED"),
        *("arrive: CAPACITY_EXHAUSTED", "arrive: INVALID_INPUT", "take: applied 0", "take: applied 1", "take: applied 2"),
        *("take: stale 1", "withdraw: withdrawn", "withdraw: REFUSED", "withdraw: NOT_FOUND"),
        *("define: active changed", "define: paused changed", "define: CAPACITY_EXHAUSTED", "define: INVALID_INPUT"),
        *("pause: paused", "pause: NOT_FOUND", "resume: active", "resume: NOT_FOUND", "delete: deleted", "delete: NOT_FOUND"),
        *("fire: accepted fired", "fire: accepted refused", "fire: accepted missed", "fire: rejected"),
    }
)
"""What has to have happened: each decision, with each of its outcomes."""
DECISIONS: Final = frozenset(happened.partition(":")[0] for happened in HAPPENED)


def play(url: Url, directory: Path, *, first_seed: int, steps: int, is_enough: Callable[[set[str]], bool]) -> set[str]:
    """Play one stream after the other until enough has happened, eight at most; return what happened."""
    seen: set[str] = set()
    for seed in range(first_seed, first_seed + 8):
        place = directory / f"outside_{seed}"
        place.mkdir()
        at = url(place)

        async def oracle(clock: ManualClock) -> Store:
            return MemoryStore(clock)

        async def other(clock: ManualClock, at: str = at) -> Store:
            return open_store(at, clock=clock)

        with StoreUnderTest(oracle) as expected, StoreUnderTest(other) as found:
            outside = Decisions([expected, found], seed)
            ops = [op for op, share in SHARES for _ in range(share)]
            for _ in range(steps):
                getattr(outside, outside.random.choice(ops))()
                outside.compare()
        seen |= set(outside.seen)
        if is_enough(seen):
            break
    return seen


@pytest.mark.req("NO-10", "NO-13", "CC-68")
def test_sqlite_decides_what_the_oracle_decides(tmp_path: Path) -> None:
    seen = play(sqlite_url, tmp_path, first_seed=0, steps=260, is_enough=HAPPENED.issubset)
    assert seen >= HAPPENED


@pytest.mark.req("NO-10", "NO-13", "CC-68")
def test_postgres_decides_what_the_oracle_decides(tmp_path: Path, postgres_server: str) -> None:
    def decided(seen: set[str]) -> set[str]:
        return {happened.partition(":")[0] for happened in seen}

    url = postgres_url(postgres_server)
    seen = play(url, tmp_path, first_seed=3, steps=110, is_enough=lambda seen: decided(seen) >= DECISIONS)
    assert decided(seen) >= DECISIONS
