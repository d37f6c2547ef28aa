"""The one error tree. Each class has a stable code, an HTTP status and says whether the same call may succeed later.

    QuiesceError
    ├── InvalidInput              INVALID_INPUT          a field breaks a rule; nothing was changed
    │   ├── InvalidPayload        PAYLOAD_INVALID        a value that canonical JSON cannot hold
    │   └── PayloadTooLarge       PAYLOAD_TOO_LARGE
    ├── NotFound                  NOT_FOUND              run, thread, receipt, agent, case, session
    ├── Refused                   REFUSED                a rule of the present state forbids it; nothing was changed
    │   ├── IdempotencyConflict   KEY_CONFLICT           same key, other content
    │   ├── LeaseBusy             LEASE_BUSY             a live holder advances the run
    │   ├── ThreadBusy            THREAD_BUSY            the thread has an unfinished run
    │   ├── ContinuationRefused   CONTINUATION_REFUSED   the last receipt of the thread does not allow it unasked
    │   ├── BindingMismatch       BINDING_MISMATCH       the run was bound to another model or authority
    │   ├── CapacityExhausted     CAPACITY_EXHAUSTED     a scope has no room for another command
    │   ├── StaleClaim            STALE_CLAIM            the claim of a command is over: its owner decided nothing
    │   ├── SettlementPending     SETTLEMENT_PENDING     no boundary is established yet
    │   ├── RunEnded              RUN_ENDED              the run has ended; names the receipt of that end
    │   ├── AlreadyAnswered       ALREADY_ANSWERED       somebody was first; names who, and the answer
    │   ├── QuestionExpired       QUESTION_EXPIRED       nobody answered in time; raised in the agent's code too
    │   ├── QuestionRevoked       QUESTION_REVOKED       the run that asked has ended
    │   └── NotThereYet           NOT_THERE_YET          the product does not do this yet
    ├── ReplayMismatch            REPLAY_MISMATCH        code and journal disagree
    ├── BudgetExceeded            BUDGET_EXHAUSTED
    ├── AdmissionRolledBack       ADMISSION_ROLLED_BACK  an owner could not decide; certainly nothing was stored
    ├── StepFailed                STEP_FAILED            a step raised, its tries are used up
    ├── WaitTimedOut              WAIT_TIMED_OUT         no wake came in time; raised in the agent's code
    ├── ToolFailed                TOOL_FAILED            the tool answered with an error: a result, not a doubt
    ├── OutcomeUnknown            TOOL_OUTCOME_UNKNOWN   raised by a tool, or kept for it: it may have happened
    ├── ModelError                MODEL_ERROR            the model gave no whole answer
    │   └── ModelUnavailable      MODEL_UNAVAILABLE      unreachable, overloaded or cut off: asking again may help
    ├── VerificationFailed        VERIFICATION_FAILED    a digest or a binding of a receipt does not hold
    └── StoreError                STORE_ERROR
        ├── StoreBusy             STORE_BUSY             not accepted: another writer held the store for too long
        ├── StoreUnavailable      STORE_UNAVAILABLE      cannot be reached; whether a commit took place may be open
        ├── StoreFull             STORE_FULL
        ├── StoreReadOnly         STORE_READ_ONLY
        ├── NotAStore             NOT_A_STORE            the file or database is something else
        └── SchemaTooNew          SCHEMA_TOO_NEW         written by a later version; nothing is written to it

`FenceLost` and `Stopped` are control flow: they derive from `BaseException`, so that an `except Exception` in
an agent cannot swallow them (as with `asyncio.CancelledError`). They never reach a caller.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

T = TypeVar("T")


class QuiesceError(Exception):
    """Root of all errors that the product raises. `details` is machine-readable and holds no secret."""

    code: ClassVar[str] = "QUIESCE_ERROR"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_json(self) -> dict[str, object]:
        """Return code, message and details, as CLI and HTTP show them."""
        return {"code": self.code, "message": self.message, "retryable": self.retryable, "details": dict(self.details)}


class InvalidInput(QuiesceError):
    """A field breaks a rule. Raised before anything is changed; the message names field, value and rule."""

    code = "INVALID_INPUT"
    status = 422

    def __init__(self, *, field: str, value: object, rule: str) -> None:
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field}: {shown} {rule}", field=field, value=shown, rule=rule)


class InvalidPayload(InvalidInput):
    """A value that canonical JSON cannot hold faithfully (NaN, a lone surrogate, an unknown type, too deep)."""

    code = "PAYLOAD_INVALID"


class PayloadTooLarge(InvalidInput):
    """A payload over `Limits.payload_bytes_max`. Save it as an artifact and pass its name."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413


class NotFound(QuiesceError):
    """What was named does not exist for this caller (another tenant's counts as not existing)."""

    code = "NOT_FOUND"
    status = 404

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"no {kind} {name!r}" + (f"; {hint}" if hint else ""), kind=kind, name=name)


class Refused(QuiesceError):
    """The present state forbids it. Nothing was changed; the details say what stands in the way."""

    code = "REFUSED"
    status = 409


class IdempotencyConflict(Refused):
    """The key names an earlier submission with other content. Names both; the original stays as it is (CC-13)."""

    code = "KEY_CONFLICT"


class LeaseBusy(Refused):
    """A live holder advances this run. Retry after `expires_at`, or cancel the run (RR-03)."""

    code = "LEASE_BUSY"
    retryable = True


class ThreadBusy(Refused):
    """The thread has an unfinished run."""

    code = "THREAD_BUSY"
    retryable = True


class ContinuationRefused(Refused):
    """The last receipt of the thread has a policy other than allow: going on needs a recorded choice (TR-30)."""

    code = "CONTINUATION_REFUSED"


class BindingMismatch(Refused):
    """The run was bound to another model or authority than what is offered now (RR-17, RR-40)."""

    code = "BINDING_MISMATCH"


class SettlementPending(Refused):
    """A cancel or end is accepted, its boundary not yet published. Never shown as terminal (TR-07)."""

    code = "SETTLEMENT_PENDING"
    retryable = True


class RunEnded(Refused):
    """The run that something was meant for has ended. The details name the receipt of that end (C07)."""

    code = "RUN_ENDED"


class AlreadyAnswered(Refused):
    """A question was answered before. The details name by whom and what; that answer stands (C76)."""

    code = "ALREADY_ANSWERED"


class QuestionExpired(Refused):
    """The time for an answer has passed and nobody gave one: that is no "no" (C81). Raised where the run asked, too."""

    code = "QUESTION_EXPIRED"
    status = 410


class QuestionRevoked(Refused):
    """The run that asked has ended: an answer would change nothing."""

    code = "QUESTION_REVOKED"
    status = 410


class CapacityExhausted(Refused):
    """The scope of a command holds as many unfinished ones as it may (CC-24, CC-26). Nothing was staged."""

    code = "CAPACITY_EXHAUSTED"
    status = 429
    retryable = True


class StaleClaim(Refused):
    """The claim under which an owner was asked is not live any more: nothing was decided, and no receipt exists (V16)."""

    code = "STALE_CLAIM"


class NotThereYet(Refused):
    """A documented part that this version does not have."""

    code = "NOT_THERE_YET"
    status = 501


class ReplayMismatch(QuiesceError):
    """The code asked for another operation than the journal holds at that position. Names both; the run fails."""

    code = "REPLAY_MISMATCH"


class BudgetExceeded(QuiesceError):
    """A reservation does not fit. Nothing was reserved and nothing dispatched. An agent may catch it to wrap up."""

    code = "BUDGET_EXHAUSTED"


class AdmissionRolledBack(QuiesceError):
    """An owner could not decide about a command, and certainly nothing of it was stored: it may be offered again."""

    code = "ADMISSION_ROLLED_BACK"


class StepFailed(QuiesceError):
    """A step raised and its tries are used up: a result, stored and raised again on replay. `__cause__` only at first."""

    code = "STEP_FAILED"


class WaitTimedOut(QuiesceError):
    """No wake of this name came within the timeout of `run.wait_for`. A stored result: a replay raises it again."""

    code = "WAIT_TIMED_OUT"


class ToolFailed(QuiesceError):
    """The tool raised: a definitive result, stored like any other and raised again on replay."""

    code = "TOOL_FAILED"


class OutcomeUnknown(QuiesceError):
    """Raise it from a tool when it cannot tell whether its effect took place (a timeout after sending, say)."""

    code = "TOOL_OUTCOME_UNKNOWN"


class ModelError(QuiesceError):
    """The model refused the request or answered what cannot be read. Asking the same again gives the same."""

    code = "MODEL_ERROR"
    status = 502


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, or the answer was cut off. Asking again may help."""

    code = "MODEL_UNAVAILABLE"
    status = 503
    retryable = True


class VerificationFailed(QuiesceError):
    """A digest, a chain value or a binding of a receipt does not hold. The details name each failed check."""

    code = "VERIFICATION_FAILED"


class StoreError(QuiesceError):
    """The store could not do it."""

    code = "STORE_ERROR"


class StoreBusy(StoreError):
    """Another writer held the store longer than the busy timeout. Not accepted: nothing was written."""

    code = "STORE_BUSY"
    status = 503
    retryable = True


class StoreUnavailable(StoreError):
    """The store cannot be reached. If this ended a commit, whether it took place is open: ask again by key."""

    code = "STORE_UNAVAILABLE"
    status = 503
    retryable = True


class StoreFull(StoreError):
    """No room left on the device. Nothing was written."""

    code = "STORE_FULL"
    status = 507


class StoreReadOnly(StoreError):
    """The file or directory cannot be written. Nothing was written."""

    code = "STORE_READ_ONLY"


class NotAStore(StoreError):
    """The file or database is not a Quiesce store. It was not touched."""

    code = "NOT_A_STORE"
    status = 422


class SchemaTooNew(StoreError):
    """A later version wrote this store; this version does not write to it. Upgrade."""

    code = "SCHEMA_TOO_NEW"


class FenceLost(BaseException):
    """Control flow: this holder's fence is no longer the run's. The attempt ends at once and writes nothing more."""


class Stopped(BaseException):
    """Control flow: the run is being stopped; no operation begins any more."""


class InvariantBroken(QuiesceError):
    """A rule of the product itself does not hold: a bug. Raised instead of `assert`, which `-O` removes."""

    code = "INVARIANT_BROKEN"


def invariant(holds: bool, message: str) -> None:
    """Raise `InvariantBroken` unless `holds`."""
    if not holds:
        raise InvariantBroken(message)


def required(value: T | None, message: str) -> T:
    """Return `value`, or raise `InvariantBroken` if it is None: for what other rules of the product guarantee."""
    if value is None:
        raise InvariantBroken(message)
    return value
