"""The world outside: what tools act on. It keeps its own record of what really happened, against which all is judged.

A request that has left travels by itself, whatever becomes of the process that sent it: it may arrive after its sender has
died, given up, or been replaced. Then it acts, or refuses, and its answer may be lost. Requests under one key are
distinguished by their try. A *void* key refuses every try announced up to then: only so can "it did not happen" be said
with certainty (`runtime.calls.Absent`), by a probe or by a person.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

from quiesce.domain.errors import OutcomeUnknown
from quiesce.domain.ids import RunId
from quiesce.domain.operations import EffectPolicy
from quiesce.runtime.isolated import Call
from quiesce.runtime.probing import Absent, Happened
from quiesce.testing.sim.config import Whim
from quiesce.testing.simloop import SimLoop

_WHIM_PROBABILITY = 0.2


class Said(StrEnum):
    """What a request came back with."""

    DONE = "done"
    REFUSED = "refused"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that left a process."""

    key: str
    run_id: RunId
    position: str
    policy: EffectPolicy
    try_number: int


@dataclass(slots=True, kw_only=True)
class Record:
    """What the outside knows under one key."""

    run_id: RunId
    policy: EffectPolicy
    effects: int = 0
    voided_tries: int = 0
    requests: list[Request] = field(default_factory=list)


class Outside:
    """Serves the tools of all processes. `on_request` and `on_effect` are told before a request travels, and acts."""

    def __init__(self, loop: SimLoop, seed: int, whims: Collection[Whim]) -> None:
        self.records: dict[str, Record] = {}
        self.on_request: Callable[[Request], None] = _ignore
        self.on_effect: Callable[[Request], None] = _ignore
        self.tries_announced: Callable[[str], int] = _none
        """How many tries under a key are durably announced."""
        self._loop = loop
        self._random = random.Random(f"outside {seed}")  # noqa: S311 - repeatable on purpose
        self._whims = frozenset(whims)

    def calm_down(self) -> None:
        """Serve everybody from now on."""
        self._whims = frozenset()

    async def ask(self, call: Call, policy: EffectPolicy, *, has_timeout: bool) -> str:
        """Send a request and wait for its answer; a caller with a timeout may wait in vain.

        Raises `ConnectionRefusedError` if this try surely did not act, `OutcomeUnknown` if nobody can say.
        """
        request = Request(key=call.key, run_id=call.run_id, position=call.operation, policy=policy, try_number=call.try_number)
        self.on_request(request)
        record = self.records.setdefault(request.key, Record(run_id=request.run_id, policy=policy))
        record.requests.append(request)
        answer: asyncio.Future[Said] = self._loop.create_future()
        self._loop.create_task(self._serve(request, record, answer, has_timeout), name="serve", context=contextvars.Context())
        match await answer:
            case Said.DONE:
                return answer_of(request.key)
            case Said.REFUSED:
                raise ConnectionRefusedError("refused before anything happened")
            case Said.NOTHING:
                raise OutcomeUnknown("the line went dead")

    async def probe(self, key: str) -> object:
        """Say whether something happened under a key; after "no", it never will by what was announced before."""
        await asyncio.sleep(self._delay_s())
        if self._strikes(Whim.CANNOT_TELL):
            if self._random.random() < 0.5:
                raise ConnectionError("the destination cannot be asked")
            return None
        return Happened(answer_of(key)) if self.has_acted(key) else self._absent(key)

    def has_acted(self, key: str) -> bool:
        """Whether something happened under a key."""
        record = self.records.get(key)
        return record is not None and record.effects > 0

    def void(self, key: str, run_id: RunId, policy: EffectPolicy) -> None:
        """Refuse, from now on, every try under this key that is announced by now."""
        record = self.records.setdefault(key, Record(run_id=run_id, policy=policy))
        record.voided_tries = max(record.voided_tries, self.tries_announced(key))

    def _absent(self, key: str) -> Absent:
        self.void(key, RunId(key.rpartition(":")[0]), EffectPolicy.PROBE)
        return Absent()

    async def _serve(self, request: Request, record: Record, answer: asyncio.Future[Said], has_timeout: bool) -> None:
        await asyncio.sleep(self._delay_s())
        if request.try_number <= record.voided_tries or self._strikes(Whim.REFUSES):
            _reply(answer, Said.REFUSED)
            return
        is_lost = self._strikes(Whim.LOSES_REQUEST)
        if not is_lost and (request.policy is not EffectPolicy.IDEMPOTENT or not record.effects):
            self.on_effect(request)
            record.effects += 1
        await asyncio.sleep(self._delay_s())
        if not is_lost and not self._strikes(Whim.LOSES_ANSWER):
            _reply(answer, Said.DONE)
        elif not has_timeout or self._random.random() < 0.5:
            _reply(answer, Said.NOTHING)

    def _strikes(self, whim: Whim) -> bool:
        return whim in self._whims and self._random.random() < _WHIM_PROBABILITY

    def _delay_s(self) -> float:
        most = 2.5 if self._strikes(Whim.IS_SLOW) else 0.06
        return self._random.uniform(0.001, most)


def answer_of(key: str) -> str:
    """Return what the outside answers under a key, on every try."""
    return f"did {key[-12:]}"


def _reply(answer: asyncio.Future[Said], said: Said) -> None:
    if not answer.done():
        answer.set_result(said)


def _ignore(_: Request) -> None:
    pass


def _none(_: str) -> int:
    return 0
