"""Clients that leave: a run that has asked for it is ended when no client has been heard of for its grace (ST-06…ST-10).

    submitted, or attended ──▶ a timer `client_left` number n, due after the grace
       attended again ──▶ number n is taken back, n + 1 is due after the grace
       nobody attends ──▶ it falls due; the run owner ends the run, if n is still the newest

One mechanism for every way to be gone. A client that leaves, a process that is killed and a cable that is pulled look alike:
nobody renews. So nothing has to be noticed or written by whoever goes away, and a client that comes back within the grace
annuls it, on any server. The timers are commands to the run, so they survive every process.

Keeps: at most one timer of a run counts, the newest, and the run's lock orders them; an older one that is already on its way
is refused by its number. A timer that comes later than a grace says that deliveries stood still, not that a client is gone:
then the clients get their grace again. Runs without the policy have no timer and cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from quiesce.domain.boundary import Actor, ActorKind, Reason
from quiesce.domain.commands import Intent, IntentId, IntentStatus, Kind, Target
from quiesce.domain.deliveries import Command
from quiesce.domain.disconnects import DisconnectPolicy, OnDisconnect
from quiesce.domain.errors import NotFound, StoreError
from quiesce.domain.ids import RunId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.runs import Run
from quiesce.ports.store import Transaction
from quiesce.runtime.cancel import CancelRequest
from quiesce.runtime.commands import CommandRequest, stage_tx, withdraw_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Decision, rejected

CLIENT_LEFT: Final = Kind(name="client_left", is_barrier=False, overtakes=True)
"""Ends a run as a cancel does, and like one it waits for no earlier command."""

_PRODUCER: Final = "quiesce.disconnect"
_SCOPE: Final = "disconnect"
_OWNER: Final = "run"
_BEATS: Final = 3
"""Renewals in one grace: two may be lost."""
_POLICY: Final = Actor(kind=ActorKind.SERVICE, name="on_disconnect")


class _Payload(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    grace_ms: int


def watch_clients_tx(tx: Transaction, env: Environment, run: Run, policy: DisconnectPolicy) -> None:
    """Start the first timer of a run that is being submitted, if its policy wants one: its client has the grace to attend."""
    if policy.on_disconnect is OnDisconnect.CANCEL:
        stage_tx(tx, _timer(run, 0, policy.grace_ms, tx.now), intent_id=_new_id(tx, env), limits=env.limits)


def attend_tx(tx: Transaction, env: Environment, run_id: RunId, *, tenant: str, known: int = 0) -> tuple[int, int] | None:
    """Say that a client of the run is there: its newest timer is taken back, and the next is due after the grace.

    Returns its number and the grace; None if the run has no such policy, or has ended. `known`: a number that was given
    out before. Raises `NotFound`.
    """
    run = tx.runs.lock(run_id)
    if run is None or run.tenant != tenant:
        raise NotFound("run", run_id)
    newest = _newest(tx, run, known)
    if newest is None or not run.is_active:
        return None
    timer = msgspec.json.decode(newest.payload, type=_Payload)
    current = tx.intents.lock(newest.id)
    if current is not None and current.status is IntentStatus.STAGED:
        withdraw_tx(tx, current.id, tenant=tenant)
    wanted = _timer(run, timer.number + 1, timer.grace_ms, tx.now)
    stage_tx(tx, wanted, intent_id=_new_id(tx, env), limits=env.limits)
    return timer.number + 1, timer.grace_ms


def request_of(tx: Transaction, command: Command, run: Run) -> CancelRequest | Decision:
    """Return the end that a timer which has come means for its locked run, or why it means none."""
    timer = msgspec.json.decode(command.intent.payload, type=_Payload)
    if command.intent.producer != _PRODUCER or command.intent.producer_key != _key(run.id, timer.number):
        return rejected("a client's leaving is told by the run's own timer alone")
    newest = _newest(tx, run, timer.number)
    if newest is None or newest.id != command.intent.id:
        return rejected("a client was there since")
    if run.is_active and tx.now > after_ms(command.intent.due_at, timer.grace_ms):
        again = _timer(run, timer.number + 1, timer.grace_ms, tx.now)
        late = rejected("deliveries stood still for longer than the grace: the clients get it again")
        return Decision(verdict=late.verdict, reason=late.reason, stages=(again,))
    return CancelRequest(
        run_id=run.id,
        actor=_POLICY,
        key=command.key,
        text=f"no client was there for {timer.grace_ms} ms, and the run was to end then (on_disconnect=cancel)",
        reason=Reason.CLIENT_LEFT,
        tenant=run.tenant,
    )


@contextlib.asynccontextmanager
async def attending(env: Environment, run_id: RunId, *, tenant: str = "local") -> AsyncIterator[None]:
    """Be a client of the run for the length of the block. Leaving it ends nothing at once: the grace begins.

    For a run that was not submitted with `on_disconnect=cancel` this does nothing. Raises `NotFound`, `StoreError`; in the
    block the store may be away for up to a grace.
    """
    known = await env.store.transact(lambda tx: attend_tx(tx, env, run_id, tenant=tenant))
    if known is None:
        yield
        return
    beating = asyncio.get_running_loop().create_task(_beat(env, run_id, tenant, *known), name=f"attend {run_id}")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait({beating})


async def _beat(env: Environment, run_id: RunId, tenant: str, number: int, grace_ms: int) -> None:
    """Renew until cancelled, or until the run has ended."""
    known: tuple[int, int] | None = (number, grace_ms)
    while known is not None:
        await env.clock.sleep(grace_ms / _BEATS)
        with contextlib.suppress(StoreError):  # the next beat tries again; the grace is longer than two
            known = await env.store.transact(_again(env, run_id, tenant, known[0]))


def _again(env: Environment, run_id: RunId, tenant: str, known: int) -> Callable[[Transaction], tuple[int, int] | None]:
    return lambda tx: attend_tx(tx, env, run_id, tenant=tenant, known=known)


def _newest(tx: Transaction, run: Run, known: int) -> Intent | None:
    """Return the run's newest timer, or None if it has none.

    Numbers have no holes and the run's lock is held: what lies behind `known` is found by strides that double, then halve.
    """

    def at(number: int) -> Intent | None:
        return tx.intents.by_key(run.tenant, _PRODUCER, _key(run.id, number))

    newest, stride = at(known), 1
    while newest is not None and (later := at(known + stride)) is not None:
        newest, known, stride = later, known + stride, 2 * stride
    while newest is not None and stride > 1:
        stride //= 2
        if (later := at(known + stride)) is not None:
            newest, known = later, known + stride
    return newest


def _timer(run: Run, number: int, grace_ms: int, now: Instant) -> CommandRequest:
    return CommandRequest(
        kind=CLIENT_LEFT,
        target=Target(owner=_OWNER, id=run.id),
        producer=_PRODUCER,
        producer_key=_key(run.id, number),
        subject=run.subject,
        payload={"number": number, "grace_ms": grace_ms},
        scope=_SCOPE,
        tenant=run.tenant,
        due_at=after_ms(now, grace_ms),
    )


def _key(run_id: RunId, number: int) -> str:
    return f"{run_id}:{number}"


def _new_id(tx: Transaction, env: Environment) -> IntentId:
    return IntentId(env.new_id(tx.now))
