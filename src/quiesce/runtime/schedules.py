"""The Schedule as an owner: when a timer falls due, it alone decides which runs that makes (NO-13, CC-68).

A schedule waits through one staged `timer_due` command, which it stages itself: the first with its creation, each next one in
the transaction that decides the one before. So a timer is neither lost nor there twice, whatever dies (C71).

Keeps: an occurrence is decided once, under the schedule's lock, with its runs and its receipt or not at all; what stands in the
way of a run is an outcome of the occurrence, never of the timer; each change of a schedule is its next revision, so timers of
earlier ones have no force (G-10). A timer brings no budget: each run has the allowances that the schedule was defined with
(NO-14). That an occurrence fired never says that anything ran (C73).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from quiesce.domain.budgets import Budget
from quiesce.domain.canonical import parse
from quiesce.domain.commands import IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import Command
from quiesce.domain.errors import CapacityExhausted, InvalidInput, NotFound, Refused, required
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.instant import Instant, to_iso
from quiesce.domain.schedules import (
    Definition,
    Fire,
    FireStatus,
    PlannedFire,
    Schedule,
    ScheduleId,
    ScheduleStatus,
    plan,
)
from quiesce.domain.texts import check_text
from quiesce.ports.store import Transaction
from quiesce.runtime.commands import CommandRequest, stage_tx, supersede_tx, withdraw_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Decision, LocalOwner, accepted, rejected
from quiesce.runtime.submission import Submission, submit_tx

TIMER_DUE: Final = Kind(name="timer_due")
SCOPE: Final = "schedules"
"""Timers take places of their own: a full scope of somebody else's commands stops no schedule."""
PRODUCER: Final = "schedule"


def submission_of(definition: Definition, tenant: str, subject: str, key: str | None = None) -> Submission:
    """Return the request for a run of a schedule."""
    return Submission(
        agent=definition.agent,
        input=definition.input,
        bindings=definition.bindings,
        thread_id=definition.thread_id,
        key=key,
        tenant=tenant,
        subject=subject,
        timeout_ms=definition.timeout_ms,
        budget=Budget.of_limits(definition.budget),
    )


def run_key(schedule_id: ScheduleId, planned: Instant) -> str:
    """Return the key of an occurrence's run: whoever asks for it again makes no second one."""
    return f"schedule:{schedule_id}:{to_iso(planned)}"


def create_tx(
    tx: Transaction, env: Environment, *, tenant: str, subject: str, name: str, definition: Definition
) -> tuple[Schedule, bool]:
    """Store a schedule with its first timer, or change the one of this name; return it, and whether anything changed.

    The same definition again changes nothing. Another one is the schedule's next revision: a paused one stays paused, an ended
    one begins anew. Raises `InvalidInput` for a definition that breaks a rule or never matches, `CapacityExhausted` for a
    tenant with too many schedules; nothing is stored then.
    """
    check_text("name", name, env.limits.name_chars_max)
    definition.check(env.limits)
    submission_of(definition, tenant, subject).check(env.limits)
    if (known := tx.schedules.by_name(tenant, name)) is not None:
        return _define_anew(tx, env, known.id, subject, definition)
    if (count := tx.schedules.count(tenant)) >= env.limits.schedules_max:
        raise CapacityExhausted(f"there are {count} schedules; no more are taken. Nothing was stored", used=count)
    schedule = _fresh(tx, env, tenant, subject, name, definition)
    if not tx.schedules.insert(schedule):  # stored by another process while this one waited for it
        known = required(tx.schedules.by_name(tenant, name), "a schedule whose name is taken is there")
        return _define_anew(tx, env, known.id, subject, definition)
    stage_timer_tx(tx, env, schedule)
    return schedule, True


def _fresh(tx: Transaction, env: Environment, tenant: str, subject: str, name: str, definition: Definition) -> Schedule:
    return Schedule(
        id=ScheduleId(env.new_id(tx.now)),
        tenant=tenant,
        name=name,
        subject=subject,
        definition=definition,
        revision=0,
        status=ScheduleStatus.ACTIVE,
        next_at=_first(definition, tx.now),
        created_at=tx.now,
        changed_at=tx.now,
    )


def _decided_until(tx: Transaction, schedule: Schedule) -> Instant:
    """Return the instant behind which anything is planned: now, or the last occurrence, if that was decided ahead of it.

    By a clock that has fallen back its instant may lie ahead of us again, and it is not to be decided twice.
    """
    return max([tx.now, *(fire.planned for fire in tx.schedules.fires(schedule.id, before=None, limit=1))])


def _first(definition: Definition, behind: Instant) -> Instant:
    """Return the first planned instant behind this one. Raises `InvalidInput` if there is none."""
    first = definition.timing.next_after(behind)
    if first is not None:
        return first
    if definition.timing.at is not None:
        raise InvalidInput(field="at", value=to_iso(definition.timing.at), rule="lies in the past")
    raise InvalidInput(field="cron", value=definition.timing.cron, rule="never matches")


def _define_anew(
    tx: Transaction, env: Environment, schedule_id: ScheduleId, subject: str, definition: Definition
) -> tuple[Schedule, bool]:
    schedule = required(tx.schedules.lock(schedule_id), "a schedule that was found is there")
    if schedule.status is ScheduleStatus.DELETED:
        raise Refused("the schedule was deleted at the same moment; define it again", schedule_id=schedule_id)
    if (schedule.definition.fingerprint(), schedule.subject) == (definition.fingerprint(), subject):
        return schedule, False
    first = _first(definition, _decided_until(tx, schedule))
    is_paused = schedule.status is ScheduleStatus.PAUSED
    status = ScheduleStatus.PAUSED if is_paused else ScheduleStatus.ACTIVE
    return _change(tx, env, schedule, status, None if is_paused else first, definition=definition, subject=subject), True


def pause_tx(tx: Transaction, env: Environment, *, tenant: str, name: str) -> Schedule:
    """Stop a schedule from firing until it is resumed; what it fired already stays. Pausing it twice changes nothing.

    Raises `NotFound`, or `Refused` for one that has ended.
    """
    schedule = _lock(tx, tenant, name)
    if schedule.status is ScheduleStatus.PAUSED:
        return schedule
    if schedule.status is ScheduleStatus.ENDED:
        raise Refused(f"schedule {name!r} has ended: there is nothing to pause", schedule_id=schedule.id)
    return _change(tx, env, schedule, ScheduleStatus.PAUSED, None)


def resume_tx(tx: Transaction, env: Environment, *, tenant: str, name: str) -> Schedule:
    """Let a paused schedule go on with its next planned instant; those of the pause were not missed, they were not planned.

    A one-shot keeps its instant: if that has passed, its policy decides. Raises `NotFound`.
    """
    schedule = _lock(tx, tenant, name)
    if schedule.status is not ScheduleStatus.PAUSED:
        return schedule
    timing = schedule.definition.timing
    next_at = timing.at or timing.next_after(_decided_until(tx, schedule))
    status = ScheduleStatus.ENDED if next_at is None else ScheduleStatus.ACTIVE
    return _change(tx, env, schedule, status, next_at)


def delete_tx(tx: Transaction, env: Environment, *, tenant: str, name: str) -> Schedule:
    """Delete a schedule: it never fires again, and its name is free. Runs that it made and their receipts stay.

    Raises `NotFound`.
    """
    return _change(tx, env, _lock(tx, tenant, name), ScheduleStatus.DELETED, None)


def _lock(tx: Transaction, tenant: str, name: str) -> Schedule:
    found = tx.schedules.by_name(tenant, name)
    schedule = None if found is None else tx.schedules.lock(found.id)
    if schedule is None or schedule.status is ScheduleStatus.DELETED:
        raise NotFound("schedule", name, "`quiesce schedules list` shows what there is")
    return schedule


def _change(
    tx: Transaction,
    env: Environment,
    schedule: Schedule,
    status: ScheduleStatus,
    next_at: Instant | None,
    *,
    definition: Definition | None = None,
    subject: str | None = None,
) -> Schedule:
    """Store the next incarnation, take its earlier timer's force away, and stage its own."""
    changed = schedule.changed(status, next_at, tx.now, definition=definition, subject=subject)
    tx.schedules.save(changed)
    timer = None if schedule.next_at is None else tx.intents.by_key(schedule.tenant, PRODUCER, _timer_key(schedule))
    waiting = None if timer is None else tx.intents.lock(timer.id)
    supersede_tx(tx, _target(schedule), changed.revision)
    if waiting is not None and waiting.status is IntentStatus.STAGED:
        withdraw_tx(tx, waiting.id, tenant=schedule.tenant)
    stage_timer_tx(tx, env, changed)
    return changed


def _target(schedule: Schedule) -> Target:
    return Target(owner=ScheduleOwner.name, id=schedule.id)


def _timer_key(schedule: Schedule) -> str:
    return f"{schedule.id}:{schedule.revision}:{schedule.next_at}"


def _timers(schedule: Schedule) -> Iterator[CommandRequest]:
    """Return the timer that a schedule waits through, if it waits."""
    if schedule.next_at is not None:
        yield CommandRequest(
            kind=TIMER_DUE,
            target=_target(schedule),
            producer=PRODUCER,
            producer_key=_timer_key(schedule),
            subject=schedule.subject,
            payload={"planned": schedule.next_at},
            revision=schedule.revision,
            scope=SCOPE,
            tenant=schedule.tenant,
            due_at=schedule.next_at,
        )


def stage_timer_tx(tx: Transaction, env: Environment, schedule: Schedule) -> None:
    """Stage the timer that a schedule waits through, if it waits."""
    for timer in _timers(schedule):
        stage_tx(tx, timer, intent_id=IntentId(env.new_id(tx.now)), limits=env.limits)


class ScheduleOwner(LocalOwner):
    """Decides about timers of schedules."""

    name: ClassVar[str] = "schedule"
    kinds: ClassVar[tuple[Kind, ...]] = (TIMER_DUE,)

    def __init__(self, env: Environment) -> None:
        self._env = env

    def decide(self, tx: Transaction, command: Command) -> Decision:
        """Decide the occurrences that are due: their runs, their receipts and the next timer, or a refusal that says why."""
        schedule = tx.schedules.lock(ScheduleId(command.target.id))
        if schedule is None or schedule.tenant != command.intent.tenant:
            return rejected("no such schedule")
        payload = parse(command.intent.payload)
        if not isinstance(payload, dict) or payload.get("planned") != schedule.next_at:
            return rejected(f"the schedule is {schedule.status} and waits for another instant, or for none")
        planned = required(schedule.next_at, "a planned instant that is equal to one is one")
        now = max(tx.now, planned)
        decided = plan(schedule, now, self._env.limits)
        fires = [self._fire(tx, schedule, one, now, is_exact=decided.is_exact) for one in decided.fires]
        moved = schedule.moved(decided.next_at)
        tx.schedules.add_fires(fires)
        tx.schedules.save(moved)
        made = ", ".join(f"run {fire.run_id}" for fire in fires if fire.run_id is not None)
        return accepted(made or "no run", stages=tuple(_timers(moved)))

    def _fire(self, tx: Transaction, schedule: Schedule, one: PlannedFire, now: Instant, *, is_exact: bool) -> Fire:
        run_id, reason = self._run(tx, schedule, one.planned) if one.runs else (None, "")
        status = FireStatus.FIRED if run_id is not None else FireStatus.REFUSED if one.runs else FireStatus.MISSED
        return Fire(
            schedule_id=schedule.id,
            planned=one.planned,
            status=status,
            fired_at=now,
            stands_for=one.stands_for[-self._env.limits.fires_named_max :],
            count=len(one.stands_for),
            is_exact=is_exact,
            run_id=run_id,
            reason=reason,
        )

    def _run(self, tx: Transaction, schedule: Schedule, planned: Instant) -> tuple[RunId | None, str]:
        """Submit an occurrence's run. What refuses it is told; nothing of the run is stored then."""
        run_id, thread_id = RunId(self._env.new_id(tx.now)), ThreadId(self._env.new_id(tx.now))
        key = run_key(schedule.id, planned)
        wanted = submission_of(schedule.definition, schedule.tenant, schedule.subject, key)
        try:
            return submit_tx(tx, self._env, wanted, run_id=run_id, thread_id=thread_id).id, ""
        except (Refused, InvalidInput) as error:
            return None, f"{error.code}: {error.message}"[: self._env.limits.text_chars_max]
