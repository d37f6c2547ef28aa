"""Two stores side by side, under one seeded stream of decisions: what is common to all of it, and the runs that it is about.

Each draw is made from what the oracle holds, so that most of it meets something; what the decision is given (ids, instants,
answers) is the same on both. After each step answers and content are compared, and what happened is noted: `op: outcome`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.commands import Intent
from quiesce.domain.errors import QuiesceError, required
from quiesce.domain.ids import Fence, OutcomeId, Position, ReceiptId, RunId, ThreadId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction, InteractionId
from quiesce.domain.limits import DEFAULT_LIMITS
from quiesce.domain.mailbox import EntryId
from quiesce.domain.runs import Run, RunStatus, Wait, WaitKind
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.workers import Worker
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelRequest, cancel_tx
from quiesce.runtime.claims import claim_tx, park_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.settlement import Cleanup, establish_tx, freeze_tx, publish_tx
from quiesce.runtime.submission import Submission, submit_tx
from quiesce.testing.channel_samples import ChannelSamples
from quiesce.testing.conformance import StoreUnderTest
from quiesce.testing.samples import Samples
from quiesce.testing.simloop import SimEntropy

T = TypeVar("T")
TENANTS: Final = ("local", "other")
NAMES: Final = ("a", "b", "c")
LIMITS: Final = replace(DEFAULT_LIMITS, mailbox_queued_max=4, schedules_max=2, fires_named_max=3, fires_counted_max=20)
RUNS: Final = 6
HOUR_MS: Final = 3_600_000


@dataclass
class Outside:
    """Both stores, what was made in them, and what has happened."""

    stores: list[StoreUnderTest]
    seed: int
    runs: list[RunId] = field(default_factory=list)
    questions: list[InteractionId] = field(default_factory=list)
    entries: list[EntryId] = field(default_factory=list)
    timers: list[Intent] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.worker: Worker = Samples().worker(lease_ms=1000 * HOUR_MS)
        self.samples, self.channel = Samples(), ChannelSamples()
        self.both("worker", lambda tx, _: tx.workers.insert(self.worker))
        for _ in range(2):
            self.submit()

    # -- on both -------------------------------------------------------------------------------------------------------

    def both(self, op: str, fn: Callable[[Transaction, Environment], T], outcome: Callable[[T], str] = str) -> T | None:
        """Decide the same on both stores; answers are equal, and errors. None for a refusal."""
        salt = self.random.getrandbits(64)
        answers: list[tuple[object, ...]] = []
        values: list[T] = []
        for store in self.stores:
            env = Environment(store=store.port, clock=store.clock, entropy=SimEntropy(salt), limits=LIMITS)
            try:
                values.append(store.transact(partial(_decided, fn, env)))
                answers.append(("answered", values[-1]))
            except QuiesceError as error:
                answers.append((error.code, error.message, error.details))
        expected, found = answers
        assert found == expected, f"seed {self.seed}, {op}: {expected} on the oracle, {found} on the other"
        self.seen[f"{op}: {outcome(values[0]) if values else expected[0]}"] += 1
        return values[0] if values else None

    def known(self, fn: Callable[[Transaction], T]) -> T:
        """Read of the oracle what a draw is made from."""
        return self.stores[0].read(fn)

    def compare(self) -> None:
        """Both hold the same."""
        expected, found = (store.read(self._everything) for store in self.stores)
        assert found == expected, f"seed {self.seed}"

    def _everything(self, tx: Transaction) -> list[object]:
        schedules = [one for tenant in TENANTS for one in tx.schedules.page(tenant=tenant, after="", limit=9)]
        return [
            [(tx.runs.get(id_), tx.operations.of_run(id_), tx.terminal.receipt(id_)) for id_ in self.runs],
            [(tx.interactions.of_run(id_), tx.mailbox.of_run(id_), tx.mailbox.count_queued(id_)) for id_ in self.runs],
            [tx.interactions.open(tenant, after=None, limit=99) for tenant in TENANTS],
            tx.interactions.due(now=self.now, limit=99),
            [(one, tx.schedules.fires(one.id, before=None, limit=99)) for one in schedules],
            [(tx.schedules.tally(one.id, now=self.now), tx.schedules.get(one.id)) for one in schedules],
            [(tx.schedules.count(tenant), tx.intents.capacities(tenant)) for tenant in TENANTS],
            [tx.runs.page(tenant=tenant, statuses=(), before=None, limit=99) for tenant in TENANTS],
        ]

    @property
    def now(self) -> Instant:
        return self.stores[0].clock.now()

    def wait(self) -> None:
        """Let time pass, sometimes to the very instant at which something is due."""
        due = [q.expires_at for q in self._open() if q.expires_at is not None and q.expires_at > self.now]
        exact = (min(due) - self.now) / 1000 if due and self.random.random() < 0.5 else None
        passing = self.random.choice([1, 1000, 60_000, HOUR_MS, 5 * HOUR_MS]) if exact is None else exact
        for store in self.stores:
            store.clock.advance(passing)
        self.seen["time: " + ("to the instant" if exact is not None else "passes")] += 1

    # -- runs ----------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """A run more, of one tenant or the other."""
        tenant = self.random.choice([*TENANTS, "local"])
        wanted = Submission(agent="a", input=b'{"args":[],"kwargs":{}}', bindings=b"{}", tenant=tenant, subject="ada")
        run_id, thread_id = RunId(self.samples.id()), ThreadId(self.samples.id())
        self.both("submit", lambda tx, env: submit_tx(tx, env, wanted, run_id=run_id, thread_id=thread_id), lambda r: r.status)
        self.runs = [*self.runs, run_id][-RUNS:]

    def claim(self) -> None:
        run_id = self._run(RunStatus.PENDING).id
        self.both("claim", lambda tx, _: claim_tx(tx, run_id, self.worker), lambda _: "held")

    def park(self) -> None:
        """A run waits for its open questions and for a wake, or for one of them."""
        run = self._run(RunStatus.RUNNING)
        waits = [
            Wait(kind=WaitKind.ANSWER, subject=q.id, position=q.position, due_at=q.expires_at)
            for q in self._open()
            if q.run_id == run.id
        ]
        waits.append(Wait(kind=WaitKind.WAKE, subject=self.random.choice(NAMES), position=Position("99")))
        chosen = tuple(waits if self.random.random() < 0.5 else waits[:1])
        fence = self._fence(run)
        self.both("park", lambda tx, _: park_tx(tx, run.id, fence, chosen))

    def cancel(self) -> None:
        run_id = self.random.choice(self.runs)
        key = self.samples.id()
        who = Actor(kind=ActorKind.USER, name="ada")
        tenant = self._tenant_of(run_id)
        wanted = CancelRequest(run_id=run_id, actor=who, key=key, tenant=tenant)
        self.both("cancel", lambda tx, env: cancel_tx(tx, env, wanted), lambda admission: admission.verdict)

    def finish(self) -> None:
        """End a run whose end is accepted: what it still had is returned."""
        run = self._run(RunStatus.SETTLING)
        outcome_id, receipt_id = OutcomeId(self.samples.id()), ReceiptId(self.samples.id())

        def establish(tx: Transaction, _: Environment) -> bool:
            freeze_tx(tx, run.id)
            return establish_tx(tx, run.id, outcome_id, Cleanup(attempted=False, completed=False))

        def publish(tx: Transaction, _: Environment) -> TerminalReceipt | None:
            return publish_tx(tx, run.id, receipt_id, store_durability="as said")

        self.both("establish", establish)
        self.both("publish", publish, lambda receipt: "nothing" if receipt is None else receipt.status)

    # -- draws ---------------------------------------------------------------------------------------------------------

    def _run(self, status: RunStatus) -> Run:
        """Most often one that stands there."""
        runs = self.known(lambda tx: [required(tx.runs.get(run_id), "a run stays") for run_id in self.runs])
        fitting = [run for run in runs if run.status is status]
        return self.random.choice(fitting if fitting and self.random.random() < 0.85 else runs)

    def _fence(self, run: Run) -> Fence:
        """The holder's fence, now and then one that has passed."""
        return run.fence if self.random.random() < 0.9 else Fence(run.fence - 1)

    def _tenant_of(self, run_id: RunId) -> str:
        return required(self.known(lambda tx: tx.runs.get(run_id)), "a run stays").tenant

    def _open(self) -> list[Interaction]:
        return self.known(lambda tx: [q for tenant in TENANTS for q in tx.interactions.open(tenant, after=None, limit=99)])

    def _question(self) -> InteractionId:
        """Most often one that is open."""
        still = [question.id for question in self._open()]
        return self.random.choice(still if still and self.random.random() < 0.6 else self.questions)

    def _schedule_name(self) -> tuple[str, str]:
        return self.random.choice([*TENANTS, "local"]), self.random.choice(NAMES)


def _decided(fn: Callable[[Transaction, Environment], T], env: Environment, tx: Transaction) -> T:
    return fn(tx, env)
