"""How a run's own code asks a person: a question in the journal, and a wait without a process.

The operation is done when the question is stored. How the question ended is read from its row, which never changes after
that: every replay is given the same, and another branch's answer moves nothing here (C77, C78).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import InvalidInput, required
from quiesce.domain.ids import Position
from quiesce.domain.instant import after_ms
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.domain.operations import Operation, OperationKind, fingerprint
from quiesce.domain.runs import Wait, WaitKind
from quiesce.ports.store import Transaction
from quiesce.runtime.attempt import Attempt
from quiesce.runtime.codec import decode, encode
from quiesce.runtime.interactions import ask_tx, settled_tx
from quiesce.runtime.points import SLEEP_SECONDS_MAX, fact
from quiesce.runtime.schemas import schema_of
from quiesce.runtime.transacting import persist

_NAME: Final = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the code asks: words or a value, the type of an answer, how long it stays open, what exactly it is about."""

    prompt: object
    answer: object
    expires_in: float | None
    about: object


async def perform_ask(attempt: Attempt, position: Position, question: Question) -> object:
    """Ask, once, and return the answer; parked until there is one. Raises `QuestionExpired` if nobody gave one in time."""
    attempt.journal.check_open()
    interaction_id = await _asked(attempt, position, question)
    due_at = required(await attempt.read(lambda tx: tx.interactions.get(interaction_id)), "a question stays").expires_at
    wait = Wait(kind=WaitKind.ANSWER, subject=interaction_id, position=position, due_at=due_at)
    await attempt.wait_until_over(wait)
    attempt.journal.check_open()
    ended = await persist(attempt.env, lambda tx: settled_tx(tx, interaction_id))
    attempt.journal.consume(position)
    if ended.status is not InteractionStatus.ANSWERED:
        raise ended.refusal()
    return decode(required(ended.answer, "an answered question has its answer"), question.answer, field="answer")


async def _asked(attempt: Attempt, position: Position, question: Question) -> InteractionId:
    """Store the question, or find the one that was stored here before."""
    journal, env = attempt.journal, attempt.env
    if question.expires_in is not None and not 0 < question.expires_in <= SLEEP_SECONDS_MAX:
        raise InvalidInput(field="expires_in", value=question.expires_in, rule=f"must be above 0, to {SLEEP_SECONDS_MAX} seconds")
    prompt = encode(question.prompt, field="prompt", limits=env.limits)
    schema = canonical(schema_of(question.answer), field="answer", limits=env.limits)
    about = encode(question.about, field="about", limits=env.limits)
    arguments = canonical(
        {"prompt": parse(prompt), "schema": parse(schema), "about": parse(about), "expires_in": question.expires_in},
        limits=env.limits,
    )
    known = journal.expect(position, OperationKind.QUESTION, _NAME, fingerprint(OperationKind.QUESTION, _NAME, arguments))
    if known is not None:
        return _id_of(known)
    await journal.flush()
    env.crash.reach("ask.before")
    minted = InteractionId(env.new_id())

    def ask(tx: Transaction) -> tuple[Interaction, Operation] | None:
        result = canonical({"interaction_id": minted})
        done = fact(attempt, position, OperationKind.QUESTION, _NAME, arguments=arguments, result=result)
        wanted = Interaction(
            id=minted,
            run_id=attempt.run.id,
            position=position,
            thread_id=attempt.run.thread_id,
            tenant=attempt.run.tenant,
            prompt=prompt,
            schema=schema,
            about=about,
            created_at=tx.now,
            expires_at=None if question.expires_in is None else after_ms(tx.now, question.expires_in * 1000),
        )
        stored = ask_tx(tx, wanted, done)
        return None if stored is None else (stored, done)

    asked = await persist(env, ask)
    if asked is None:
        await attempt.refused()
    env.crash.reach("ask.after")
    stored, operation = asked
    journal.operations[position] = operation
    return stored.id


def _id_of(operation: Operation) -> InteractionId:
    facts = parse(required(operation.result, "a stored question has its id"))
    return InteractionId(str(facts["interaction_id"]) if isinstance(facts, dict) else "")
