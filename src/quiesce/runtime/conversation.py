"""Conversations rebuilt from what is stored, such that a model accepts them again, however the runs ended (C21, C24).

Keeps: every proposed call has an answer behind it, its stored result or words that say it was not started or that its outcome
is unknown; nothing is executed. What was streamed of a reply that never became whole is no reply: it comes in only where the
continuation record keeps it, word for word as it was seen, and marked as stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from quiesce.domain.canonical import Json, parse
from quiesce.domain.history import Turn
from quiesce.domain.ids import Position, RunId
from quiesce.domain.operations import Operation, OperationKind, OperationStatus, ResultKind
from quiesce.ports.models import Message, ModelReply, assistant_message, system_message, tool_message, user_message
from quiesce.ports.store import Transaction
from quiesce.runtime.history import past_of
from quiesce.runtime.intake import corrections_of

MODEL_STEP: Final = "model"
NOT_STARTED: Final = "stopped: this call was not started"
OUTCOME_UNKNOWN: Final = "stopped: whether this call took place is unknown; do not repeat it"
NO_ANSWER: Final = "stopped: this call did not answer; it changes nothing, so it may be made again"
STOPPED_HERE: Final = "(The answer above was stopped at this point. It is partial; exactly this much of it was seen.)"


def opening(system: str, message: str, history: Sequence[Mapping[str, object]]) -> list[Message]:
    """Return the conversation that a run begins with."""
    first = [system_message(system)] if system else []
    return [*first, *(dict(m) for m in history), user_message(message)]  # type: ignore[list-item]


def past_messages(tx: Transaction, run_id: RunId, agent: str, *, limit: int) -> list[Message]:
    """Return what a run of `agent` builds on, as a model reads it: by the run's own continuation record, so always the same."""
    messages: list[Message] = []
    for turn in past_of(tx, run_id, limit=limit):
        journal = tx.operations.of_run(turn.run_id) if turn.agent == agent else []
        messages += _turn_messages(turn, journal)
    return messages


def _turn_messages(turn: Turn, journal: Sequence[Operation]) -> list[Message]:
    """Return one turn: what was asked, and what came of it."""
    asked = _asked(turn.input)
    if not journal:
        answer = turn.partial.text if turn.partial is not None else as_text(turn.result) if turn.result is not None else ""
        return [user_message(asked), *_said(answer, is_whole=turn.partial is None)]
    kept = journal if turn.partial is not None or not turn.is_behind else _up_to_checkpoint(journal)
    messages = conversation_of("", asked, [], kept)
    if turn.partial is not None:
        whole = {o.position for o in journal if _is_said(o)}
        cut = "".join(turn.partial.of_operation(position).text for position in _unfinished(turn, whole))
        messages += _said(cut, is_whole=False)
    return messages


def _unfinished(turn: Turn, whole: set[Position]) -> list[Position | None]:
    """Return the operations that emitted what was seen and never became a whole reply, in the order of their words."""
    events = turn.partial.events if turn.partial is not None else ()
    return list(dict.fromkeys(e.operation for e in events if e.operation not in whole))


def _said(text: str, *, is_whole: bool) -> list[Message]:
    if not text:
        return []
    return [assistant_message(text)] if is_whole else [assistant_message(text), user_message(STOPPED_HERE)]


def _asked(given: Json) -> str:
    """Return what a run was called with as text: its one argument, or all of them."""
    args = given.get("args") if isinstance(given, dict) else None
    named = given.get("kwargs") if isinstance(given, dict) else None
    if not isinstance(args, list) or named:
        return as_text(given)
    return as_text(args[0] if len(args) == 1 else args)


def _up_to_checkpoint(journal: Sequence[Operation]) -> Sequence[Operation]:
    """Return what the last checkpoint contains: a restart goes on from there, and from nothing behind it."""
    marks = [i for i, o in enumerate(journal) if o.kind is OperationKind.CHECKPOINT]
    return journal[: marks[-1] + 1] if marks else []


def as_text(value: object) -> str:
    """Return a result as a model reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def conversation_of(
    system: str, message: str, history: Sequence[Mapping[str, object]], journal: Sequence[Operation]
) -> list[Message]:
    """Rebuild a run's conversation from its journal, such that a model accepts it again, however the run ended (C21).

    What was streamed of a reply that never became whole is not in it: that is partial evidence, and the continuation policy
    decides about it.
    """
    messages = opening(system, message, history)
    by_position = {operation.position: operation for operation in journal}
    for operation in sorted(filter(_is_said, journal), key=lambda o: int(o.position)):
        if operation.kind is OperationKind.CORRECTION:
            messages.extend(user_message(correction.text) for correction in corrections_of(operation))
            continue
        reply = ModelReply.from_json(parse(operation.result or b"null"))
        messages.append(reply.to_message())
        for offset, call in enumerate(reply.tool_calls, start=1):
            answer = by_position.get(Position(str(int(operation.position) + offset)))
            messages.append(tool_message(call.id, _answer_text(answer)))
    return messages


def _is_said(operation: Operation) -> bool:
    """Whether an operation is a whole reply of the model, or words of a person that were taken in."""
    is_reply = operation.kind is OperationKind.STEP and operation.name == MODEL_STEP
    return (is_reply or operation.kind is OperationKind.CORRECTION) and operation.result_kind is ResultKind.OK


def _answer_text(operation: Operation | None) -> str:
    if operation is None or operation.kind not in _ANSWERING or operation.status is OperationStatus.SEALED:
        return NOT_STARTED
    if not operation.has_result and not operation.may_have_acted:
        return NO_ANSWER
    if not operation.has_result or operation.result_kind is ResultKind.GIVEN_UP:
        return OUTCOME_UNKNOWN
    value = parse(operation.result or b"null")
    if operation.result_kind is ResultKind.OK:
        return as_text(value)
    facts = value if isinstance(value, dict) else {}
    return f"error: {facts.get('type')}: {facts.get('message')}"


_ANSWERING: Final = (OperationKind.CALL, OperationKind.STEP)
"""What stands behind a reply for a call of it: the call, or the step that refused it. The last reply's are not made."""
