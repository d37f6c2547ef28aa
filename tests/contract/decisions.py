"""What is decided about questions, mailboxes and schedules, drawn at random for two stores at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.commands import IntentId, IntentStatus
from quiesce.domain.errors import required
from quiesce.domain.ids import Position, ThreadId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.domain.mailbox import EntryKind, MailboxEntry
from quiesce.domain.operations import OperationKind, OperationStatus, ResultKind
from quiesce.domain.runs import RunStatus
from quiesce.domain.schedules import Definition, Fire, Missed, ScheduleId, Timing
from quiesce.domain.writes import RunWrite
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import stage_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.interactions import Answer, answer_tx, ask_tx, expire_tx, settled_tx
from quiesce.runtime.mailbox import Arrival, arrive_tx, withdraw_entry_tx
from quiesce.runtime.schedules import PRODUCER, ScheduleOwner, create_tx, delete_tx, pause_tx, resume_tx
from tests.contract.outside import HOUR_MS, NAMES, TENANTS, Outside


class Decisions(Outside):
    """Draws one decision, and takes it on both stores."""

    # -- questions -----------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        run = self._run(RunStatus.RUNNING)
        position = Position(str(self.random.randint(1, 9)))
        question = Interaction(
            id=InteractionId(self.samples.id()),
            run_id=run.id,
            position=position,
            thread_id=run.thread_id,
            tenant=run.tenant,
            prompt=b'"?"',
            schema=b'{"type":"boolean"}',
            about=b"null",
            created_at=self.now,
            expires_at=self.random.choice([None, after_ms(self.now, 60_000), after_ms(self.now, HOUR_MS)]),
        )
        operation = replace(
            self.samples.operation(run, str(position), kind=OperationKind.QUESTION, status=OperationStatus.COMMITTED),
            fence=self._fence(run),
            result_kind=ResultKind.OK,
            result=b"{}",
        )
        asked = self.both("ask", lambda tx, _: ask_tx(tx, question, operation), lambda q: _word(q, question))
        if asked is not None:
            self.questions.append(asked.id)

    def answer(self) -> None:
        if not self.questions:
            return
        question_id = self._question()
        question = required(self.known(lambda tx: tx.interactions.get(question_id)), "it was asked")
        said = Answer(
            interaction_id=question.id,
            value=self.random.choice([True, True, False, "yes"]),
            actor=Actor(kind=ActorKind.USER, name=self.random.choice(NAMES)),
            key=self.random.choice(NAMES),
            digest=self.random.choice([None, question.digest, "another"]),
            tenant=self.random.choice([question.tenant] * 5 + ["stranger"]),
        )
        word = "again" if question.status is InteractionStatus.ANSWERED else "answered"
        self.both("answer", lambda tx, env: answer_tx(tx, said, env.limits), lambda _: word)

    def expire(self) -> None:
        limit = self.random.randint(1, 2)
        self.both("expire", lambda tx, _: expire_tx(tx, limit=limit), lambda ended: str(len(ended)))

    def settled(self) -> None:
        if self.questions:
            question_id = self._question()
            self.both("settled", lambda tx, _: settled_tx(tx, question_id), lambda question: question.status)

    # -- mailboxes -----------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        run_id = self.random.choice(self.runs)
        kind = self.random.choice(list(EntryKind))
        wanted = Arrival(
            run_id=run_id,
            kind=kind,
            value=self.random.choice(["x", "x", "y", 1]),
            key=self.random.choice("klmnopqr"),
            subject="ada",
            name=self.random.choice(NAMES) if kind is EntryKind.WAKE else "",
            tenant=self.random.choice([self._tenant_of(run_id)] * 5 + ["stranger"]),
        )
        there = self.known(lambda tx: {entry.id for entry in tx.mailbox.of_run(run_id)})
        entry = self.both("arrive", lambda tx, env: arrive_tx(tx, env, wanted), lambda e: "known" if e.id in there else "new")
        if entry is not None:
            self.entries.append(entry.id)

    def take(self) -> None:
        """A run takes what has reached it under a name, or what people have corrected."""
        run = self._run(RunStatus.RUNNING)
        kind = self.random.choice(list(EntryKind))
        name = self.random.choice(NAMES) if kind is EntryKind.WAKE else ""
        limit = self.random.randint(1, 2)
        operation = replace(
            self.samples.operation(run, self.samples.id(), kind=OperationKind.WAIT, status=OperationStatus.COMMITTED),
            fence=self._fence(run),
            result_kind=ResultKind.OK,
            result=b"{}",
        )

        def taken(tx: Transaction, _: Environment) -> tuple[str, list[MailboxEntry]]:
            tx.runs.lock(run.id)
            came = tx.mailbox.queued(run.id, kind, name=name, limit=limit)
            wrote = tx.apply(RunWrite(run_id=run.id, fence=operation.fence, operations=(operation,)))
            if wrote.is_applied:
                tx.mailbox.save_many([entry.applied(operation.position, None, tx.now) for entry in came])
            return str(wrote), came

        self.both("take", taken, lambda told: f"{told[0]} {len(told[1])}")

    def withdraw(self) -> None:
        if self.entries:
            entry_id = self.random.choice(self.entries)
            tenant = self.random.choice([*TENANTS, "local"])
            self.both("withdraw", lambda tx, _: withdraw_entry_tx(tx, entry_id, tenant=tenant), lambda entry: entry.status)

    # -- schedules -----------------------------------------------------------------------------------------------------

    def define(self) -> None:
        tenant, name = self._schedule_name()
        at = self.random.choice([after_ms(self.now, 30_000), Instant(1)])
        timing = self.random.choice(
            [Timing(cron="*/10 * * * *"), Timing(cron="0 2 * * *", timezone="Europe/London"), Timing(at=at)]
        )
        definition = Definition(
            agent=self.random.choice("xy"),
            input=b'{"args":[],"kwargs":{}}',
            timing=timing,
            thread_id=self.random.choice([None, ThreadId(f"of {tenant}")]),
            missed=self.random.choice(list(Missed)),
            catchup_max=self.random.choice([1, 2, 100]),
        )
        self.both(
            "define",
            lambda tx, env: create_tx(tx, env, tenant=tenant, subject="ada", name=name, definition=definition),
            lambda told: f"{told[0].status} {'changed' if told[1] else 'the same'}",
        )

    def verb(self) -> None:
        tenant, name = self._schedule_name()
        verb = self.random.choice([pause_tx, resume_tx, resume_tx, delete_tx])
        word = verb.__name__.removesuffix("_tx")
        self.both(word, lambda tx, env: verb(tx, env, tenant=tenant, name=name), lambda schedule: schedule.status)

    def fire(self) -> None:
        """A timer reaches its schedule: the one that it waits through, due or early, or one of an earlier incarnation."""
        tenant, name = self._schedule_name()
        if (schedule := self.known(lambda tx: tx.schedules.by_name(tenant, name))) is None:
            return
        key = f"{schedule.id}:{schedule.revision}:{schedule.next_at}"
        if (waiting := self.known(lambda tx: tx.intents.by_key(tenant, PRODUCER, key))) is not None:
            self.timers.append(waiting)
        if not self.timers:
            return
        intent = self.timers[-1] if self.random.random() < 0.7 else self.random.choice(self.timers)
        command = self.channel.command(intent)
        ids = [IntentId(self.samples.id()) for _ in range(2)]
        schedule_id = ScheduleId(intent.target.id)
        before = _counts(self.known(lambda tx: tx.schedules.fires(schedule_id, before=None, limit=99)))

        def decide(tx: Transaction, env: Environment) -> tuple[str, Counter[str]]:
            row = required(tx.intents.lock(intent.id), "an intent stays")
            if row.status is IntentStatus.STAGED:
                tx.intents.end([row.id], IntentStatus.RELAYED, tx.now)
                tx.intents.give_back({(row.tenant, row.scope): 1})
            decided = ScheduleOwner(env).decide(tx, command)
            for intent_id, following in zip(ids, decided.stages, strict=False):
                stage_tx(tx, following, intent_id=intent_id, limits=env.limits)
            return str(decided.verdict), _counts(tx.schedules.fires(schedule_id, before=None, limit=99))

        self.both("fire", decide, lambda told: f"{told[0]} {' '.join(sorted(told[1] - before))}".rstrip())


def _word(found: Interaction | None, wanted: Interaction) -> str:
    if found is None:
        return "not the holder"
    return "new" if found == wanted else "known"


def _counts(fires: list[Fire]) -> Counter[str]:
    return Counter(str(fire.status) for fire in fires)
