"""Questions to people, decided under the lock of the run that asks: asked once, ended once (A37).

Keeps: only this module gives a question its identity and only it ends one (NO-10). A question stands at one position of the
journal, stored in the same transaction: a replay, a restart and another worker find the same one (C80, C83). Of two
answers one wins, and the other is told by whom and with what (C76). No answer in time is the clock's word and never a
person's (C81).

An answer is stored and its run woken in one transaction, by the run's own rule and not by a command: what it means for the
run, the run's own code decides when it goes on (NO-11, NO-12).
"""

from __future__ import annotations

from dataclasses import dataclass

from quiesce.domain.boundary import Actor
from quiesce.domain.canonical import Json, canonical, parse
from quiesce.domain.errors import InvalidInput, NotFound, required
from quiesce.domain.ids import RunId
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.domain.limits import Limits
from quiesce.domain.operations import Operation
from quiesce.domain.runs import Admission, WaitKind
from quiesce.domain.texts import check_text
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.notifier import run_topic
from quiesce.ports.store import Transaction
from quiesce.runtime.claims import wake_tx
from quiesce.runtime.schemas import check_fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person says. `key`: identity of this answer. `digest`: of the question that was read, if it is to be checked."""

    interaction_id: InteractionId
    value: Json
    actor: Actor
    key: str
    digest: str | None = None
    tenant: str = "local"

    def check(self, limits: Limits) -> bytes:
        """Return the value as it is stored. Raises `InvalidInput` for a field that breaks a rule."""
        check_text("key", self.key, limits.key_chars_max)
        check_text("actor", self.actor.name, limits.name_chars_max)
        return canonical(self.value, field="value", limits=limits)


def ask_tx(tx: Transaction, wanted: Interaction, operation: Operation) -> Interaction | None:
    """Store a question with its place in the journal; return it, or the one that stands there. None if the run is lost."""
    run = tx.runs.lock(wanted.run_id)
    if run is None or run.admits(operation.fence) is not Admission.HOLDER:
        return None
    if (known := tx.interactions.at(run.id, wanted.position)) is not None:
        return known
    if tx.apply(RunWrite(run_id=run.id, fence=operation.fence, operations=(operation,))) is not WriteOutcome.APPLIED:
        return None
    tx.interactions.add(wanted)
    return wanted


def answer_tx(tx: Transaction, answer: Answer, limits: Limits) -> Interaction:
    """Keep an answer and let the run go on; return the question as answered. The same key and value give the same again.

    Raises `NotFound` for a question that this tenant does not have, `AlreadyAnswered`, `QuestionExpired`, `QuestionRevoked`,
    or `InvalidInput` for a value that does not fit, or a digest of another question. Nothing is stored then.
    """
    value = answer.check(limits)
    seen = tx.interactions.get(answer.interaction_id)
    if seen is None or seen.tenant != answer.tenant:
        raise NotFound("question", answer.interaction_id, "see `quiesce inbox`")
    run = required(tx.runs.lock(seen.run_id), "a question has its run")
    question = required(tx.interactions.get(seen.id), "a question stays")
    if question.status is InteractionStatus.ANSWERED and (question.answer_key, question.answer) == (answer.key, value):
        return question
    if question.status is not InteractionStatus.OPEN:
        raise question.refusal()
    if not question.is_open(tx.read_clock()):  # the lock may have been waited for past the hour
        raise question.expiry()
    if answer.digest is not None and answer.digest != question.digest:
        raise InvalidInput(
            field="digest", value=answer.digest, rule=f"is not of this question, whose digest is {question.digest}"
        )
    check_fits(parse(value), parse(question.schema), field="value")
    answered = question.answered(value, answer.actor, answer.key, tx.now)
    tx.interactions.end(answered)
    wake_tx(tx, run, lambda wait: wait.kind is WaitKind.ANSWER and wait.subject == question.id)
    tx.ring(run_topic(run.id))
    return answered


def expire_tx(tx: Transaction, *, limit: int) -> list[InteractionId]:
    """End questions whose time has passed, and let their runs go on."""
    due = tx.interactions.due(now=tx.now, limit=limit)
    tx.runs.lock_many({question.run_id for question in due})
    ended: list[InteractionId] = []
    for seen in due:
        question = required(tx.interactions.get(seen.id), "a question stays")
        if question.status is not InteractionStatus.OPEN:
            continue
        tx.interactions.end(question.expired(tx.now))
        ended.append(question.id)
        run = required(tx.runs.get(question.run_id), "a locked run exists")
        wake_tx(tx, run, lambda wait, asked=question.id: wait.kind is WaitKind.ANSWER and wait.subject == asked)  # type: ignore[misc]
        tx.ring(run_topic(run.id))
    return ended


def revoke_tx(tx: Transaction, run_id: RunId, by: Actor) -> None:
    """End what a run, locked by the caller, still asks: its end is accepted, and nothing would come of an answer."""
    for question in tx.interactions.of_run(run_id):
        if question.status is InteractionStatus.OPEN:
            tx.interactions.end(question.expired(tx.now) if question.is_due(tx.now) else question.revoked(by, tx.now))


def settled_tx(tx: Transaction, interaction_id: InteractionId) -> Interaction:
    """Return how a question ended; one whose time has passed is ended here if nobody has done it yet."""
    seen = required(tx.interactions.get(interaction_id), "a question stays")
    if seen.status is InteractionStatus.OPEN and seen.is_due(tx.now):
        tx.runs.lock(seen.run_id)
        seen = required(tx.interactions.get(interaction_id), "a question stays")
        if seen.status is InteractionStatus.OPEN:
            seen = seen.expired(tx.now)
            tx.interactions.end(seen)
    return seen
