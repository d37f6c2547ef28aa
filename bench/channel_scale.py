"""How the control channel behaves at scale: claims beside a million settled commands, and order under many workers.

    python bench/channel_scale.py claims --store sqlite:///bench.db
    python bench/channel_scale.py claims --store postgresql://...
    python bench/channel_scale.py order  --store postgresql://... --targets 1000 --commands 100 --workers 8

`claims`: the time of one claim of 64 commands (relayed, claimed, rolled back to be claimed again) while the number of settled
commands grows from a thousand to a million, beside 100,000 timers that wait. Medians of 50.
`order`: that many targets with that many commands each, delivered by that many worker processes to a local owner that notes
the number of each command it decides; afterwards every target's numbers must ascend. Prints commands per second.

Settled commands are copied in bulk with SQL of this script's own: staging and delivering a million would only take longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from quiesce.adapters.clock_system import SystemClock
from quiesce.adapters.entropy_system import SystemEntropy
from quiesce.bootstrap import open_store
from quiesce.domain.ids import RunId, WorkerId
from quiesce.domain.instant import after_ms
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.publication import OutboxMessage
from quiesce.owners import (
    Command,
    CommandRequest,
    Decision,
    Deliverer,
    IntentId,
    Kind,
    LocalOwner,
    Target,
    Transaction,
    accepted,
    stage_tx,
)
from quiesce.runtime.deliveries import claim_commands_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.relay import relay_tx

DO = Kind(name="do")
CONSUMERS = [("book", "do", 1)]
ROUNDS = 50
LIMITS = replace(DEFAULT_LIMITS, command_scope_bound=10_000_000)


class Book(LocalOwner):
    """Notes each command in the outbox."""

    name: ClassVar[str] = "book"
    kinds: ClassVar[tuple[Kind, ...]] = (DO,)

    def decide(self, tx: Transaction, command: Command) -> Decision:
        """Note the command's place in its target's order."""
        body = json.dumps([command.target.id, command.number]).encode()
        tx.outbox.append(OutboxMessage.new(id=command.event_id, topic="book", run_id=RunId(""), body=body, created_at=tx.now))
        return accepted()


def environment(url: str) -> Environment:
    """Open a store without bounds that matter here."""
    return Environment(store=open_store(url, limits=LIMITS), clock=SystemClock(), entropy=SystemEntropy(), limits=LIMITS)


def request(target: str, key: str, **more: object) -> CommandRequest:
    """Return a command to the book."""
    wanted = CommandRequest(
        kind=DO, target=Target(owner="book", id=target), producer="bench", producer_key=key, subject="bench", payload=None
    )
    return replace(wanted, **more)  # type: ignore[arg-type]


async def stage_many(env: Environment, wanted: list[CommandRequest]) -> None:
    """Stage in transactions of 500."""
    for first in range(0, len(wanted), 500):
        batch = wanted[first : first + 500]

        def stage(tx: Transaction, batch: list[CommandRequest] = batch) -> None:
            for each in batch:
                stage_tx(tx, each, intent_id=IntentId(env.new_id(tx.now)), limits=LIMITS)

        await env.store.transact(stage)


async def relay_all(env: Environment) -> None:
    """Relay whatever is due."""
    while await env.store.transact(lambda tx: relay_tx(tx, env, limit=500)):
        pass


class _RolledBack(Exception):
    """Ends a measured transaction, so that the next one finds the same."""


def timed_claim(env: Environment) -> float:
    """Claim 64 commands in a transaction that is rolled back; return the milliseconds it took."""

    def claim(tx: Transaction) -> None:
        found = claim_commands_tx(tx, env, WorkerId("bench"), CONSUMERS, limit=64, after=None).commands
        if len(found) != 64:
            raise AssertionError(f"claimed {len(found)}")
        raise _RolledBack

    began = time.perf_counter()
    with contextlib.suppress(_RolledBack):
        env.store.transact_blocking(claim)
    return (time.perf_counter() - began) * 1000


COPY_INTENTS = """
INSERT INTO intent (id, tenant, scope, producer, producer_key, subject, owner, target_id, revision, kind, version, is_barrier,
  overtakes, payload, due_at, not_after, staged_at, status, ended_at)
SELECT {id}, tenant, scope, producer, 'copy-' || n, subject, owner, 'old-' || n, revision, kind, version, is_barrier,
  overtakes, payload, due_at, not_after, staged_at, 'relayed', staged_at
  FROM (SELECT * FROM intent WHERE producer_key = 'model') AS model, ({series}) AS series
"""
COPY_COMMANDS = """
INSERT INTO command (event_id, intent_id, number, accepted_at, status, claimable_at, fence, worker_id, expires_at,
  started_fence, is_uncertain, attempts, failures, reason, ended_at, tenant, scope, owner, target_id, kind, version, revision,
  is_barrier)
SELECT id, id, 1, staged_at, 'settled', NULL, 1, NULL, NULL, 1, {false}, 1, 0, {empty}, staged_at, tenant, scope, owner,
  target_id, kind, version, revision, is_barrier
  FROM intent WHERE producer = 'bench' AND producer_key LIKE 'copy-%'
   AND NOT EXISTS (SELECT 1 FROM command WHERE command.intent_id = intent.id)
"""


def copy_settled(env: Environment, first: int, last: int) -> None:
    """Store settled commands number `first` to `last`, as a long history leaves them."""
    if env.store.capabilities.name == "sqlite":
        series = f"WITH RECURSIVE s (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT n FROM s"
        words = {"id": "printf('00000000-0000-7000-8000-%012d', n)", "series": series, "false": "0", "empty": "X''"}
    else:
        series = f"SELECT n FROM generate_series({first}, {last}) AS n"
        words = {
            "id": "'00000000-0000-7000-8000-' || lpad(n::text, 12, '0')",
            "series": series,
            "false": "false",
            "empty": "''::bytea",
        }

    def copy(tx: Transaction) -> None:
        for sql in (COPY_INTENTS, COPY_COMMANDS):
            tx.connection.execute(sql.format(**words))

    env.store.transact_blocking(copy)


async def claims(url: str, sizes: list[int], timers: int) -> dict[str, object]:
    """Measure claims while the history grows."""
    env = environment(url)
    await stage_many(env, [request("model", "model")])
    await relay_all(env)
    await stage_many(env, [request(f"t{n}", f"live-{n}") for n in range(200)])
    await relay_all(env)
    due_at = after_ms(env.clock.now(), 30 * 24 * 3_600_000)
    await stage_many(env, [request(f"timer-{n}", f"timer-{n}", due_at=due_at) for n in range(timers)])
    rows: list[dict[str, object]] = []
    have = 0
    for size in sizes:
        if size > have:
            copy_settled(env, have + 1, size)
            have = size
        for _ in range(5):
            timed_claim(env)
        times = [timed_claim(env) for _ in range(ROUNDS)]
        row: dict[str, object] = {"settled": size, "timers": timers, "claim_ms": round(statistics.median(times), 2)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    await env.store.close()
    return {"store": env.store.capabilities.name, "batch": 64, "rounds": ROUNDS, "rows": rows}


def deliver_until_empty(url: str) -> None:
    """One worker process: deliver until everything has ended."""

    async def work() -> None:
        env = environment(url)
        deliverer = Deliverer(env, [Book()])
        while True:
            if not await deliverer.pass_once():
                counts = await env.store.read(lambda tx: tx.commands.counts("local"))
                if not counts:
                    break
                await asyncio.sleep(0.01)
        await env.store.close()

    asyncio.run(work())


async def order(url: str, targets: int, commands: int, workers: int) -> dict[str, object]:
    """Measure delivery by many workers, and check that each target kept its order."""
    env = environment(url)
    total = targets * commands
    await stage_many(env, [request(f"t{t}", f"{t}-{c}") for c in range(commands) for t in range(targets)])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=deliver_until_empty, args=(url,)) for _ in range(workers)]
    began = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    seen: dict[str, list[int]] = {}
    lines = await env.store.read(lambda tx: tx.outbox.pending(limit=total + 1))
    for line in lines:
        target, number = json.loads(line.body)
        seen.setdefault(target, []).append(number)
    in_order = all(numbers == list(range(1, commands + 1)) for numbers in seen.values()) and len(seen) == targets
    await env.store.close()
    found: dict[str, object] = {
        "store": env.store.capabilities.name,
        "targets": targets,
        "commands": commands,
        "workers": workers,
        "effects": len(lines),
        "in_order": in_order,
        "commands_per_s": round(total / seconds),
    }
    print(json.dumps(found), flush=True)
    if not in_order or len(lines) != total:
        raise SystemExit("a target lost its order, or an effect")
    return found


def keep(name: str, found: dict[str, object]) -> None:
    """Keep what was measured beside this script."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["claims", "order"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--targets", type=int, default=1_000)
    parser.add_argument("--commands", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.what == "claims":
        found = asyncio.run(claims(arguments.store, arguments.sizes, arguments.timers))
    else:
        found = asyncio.run(order(arguments.store, arguments.targets, arguments.commands, arguments.workers))
    keep(f"channel_{arguments.what}_{found['store']}", found)


if __name__ == "__main__":
    main()
