"""Conversations that are stopped in the middle: what the tests of threads begin with."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiesce.domain.continuations import Carry, Choice, OnGap
from quiesce.domain.history import Turn
from quiesce.domain.ids import RunId, ThreadId
from quiesce.domain.terminal import TerminalReceipt
from quiesce.domain.threads import OnBusy
from quiesce.runtime.context import Run
from quiesce.runtime.placement import TurnRequest
from quiesce.runtime.registry import Agent, declare_agent
from tests.runtime.kit import Cluster, Gate


def accept(receipt: TerminalReceipt, policy: OnGap | None = None, carry: Carry = Carry.KEEP_PARTIAL) -> TurnRequest:
    """Make a choice about a receipt."""
    return TurnRequest(choice=Choice(receipt_id=receipt.id, policy=policy, carry=carry))


def busy(on_busy: OnBusy, on_gap: OnGap | None = None, carry: Carry = Carry.KEEP_PARTIAL) -> TurnRequest:
    """Say what a message does to a busy thread."""
    return TurnRequest(on_busy=on_busy, on_gap=on_gap, carry=carry)


@dataclass(slots=True)
class Talk:
    """An agent that keeps what it has said, says more, and waits at a gate; it also notes what each run builds on."""

    cluster: Cluster
    gate: Gate = field(default_factory=Gate)
    pasts: dict[str, list[Turn]] = field(default_factory=dict)

    @property
    def agent(self) -> Agent:
        """`talk(message)`: `stop` waits beyond its checkpoint, `clean` at it, `empty` without one; anything else is answered."""

        async def talk(run: Run, message: str) -> str:
            self.pasts[message] = await run.history()
            word = message.partition(" ")[0]
            await run.emit({"text": f"kept {message}. "})
            if word != "empty":
                await run.checkpoint({"kept": message})
            if word in ("stop", "empty"):
                await run.emit({"text": f"seen {message}"})
            if word in ("stop", "clean", "empty"):
                await run.step(self.gate.wait)
            return f"answer to {message}"

        return declare_agent(talk)

    async def start(self) -> None:
        """Start a host that knows the agent."""
        await self.cluster.start(self.agent)

    async def say(self, message: str, turn: TurnRequest | None = None, *, thread: str = "t-1", key: str | None = None) -> RunId:
        """Submit a message."""
        more = {} if key is None else {"key": key}
        return await self.cluster.submit(self.agent, message, thread=thread, turn=turn or TurnRequest(), **more)  # type: ignore[arg-type]

    async def stopped(self, message: str, turn: TurnRequest | None = None, *, thread: str = "t-1") -> TerminalReceipt:
        """Submit a message, cancel it once all that it says is stored, and return the receipt."""
        run_id = await self.say(message, turn, thread=thread)
        await self.cluster.stored(run_id, 1 if message.startswith("clean") else 2)
        if message.startswith("clean"):
            await self.gate.arrival()
        await self.cluster.service.cancel(run_id)
        return await self.cluster.receipt(run_id)

    async def answered(self, message: str, turn: TurnRequest | None = None, *, thread: str = "t-1") -> RunId:
        """Submit a message and wait for its answer."""
        run_id = await self.say(message, turn, thread=thread)
        assert await self.cluster.result(run_id) == f"answer to {message}"
        return run_id

    async def head(self, thread: str = "t-1") -> RunId | None:
        """Return the thread's head."""
        return (await self.cluster.threads.view(ThreadId(thread))).head_run_id

    def words(self, message: str) -> list[str]:
        """Return what a message was said behind: the messages before it, with what was kept of an answer that was stopped."""
        return [_shown(turn) for turn in self.pasts[message]]


def _shown(turn: Turn) -> str:
    args = turn.input["args"] if isinstance(turn.input, dict) else None
    message = args[0] if isinstance(args, list) else ""
    return f"{message}" + (f" [{turn.partial.text}]" if turn.partial is not None else "")
