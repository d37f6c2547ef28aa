"""What `start` and `resume` say at their end: the run, where it is kept, what it saved and used, and what may be done next.

A run that has ended is shown by its receipt; with `reads_back`, after its saved files were compared with their digests. One
that waits is shown by what it waits for. Nothing here changes anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from rich.text import Text

from quiesce.cli.driving import Ending
from quiesce.cli.exits import OF_STATUS, Exit
from quiesce.cli.output import console, grid, print_json, status_text
from quiesce.cli.receipt_view import show_receipt
from quiesce.cli.session import Place
from quiesce.domain.ids import RunId
from quiesce.domain.runs import RunStatus, WaitKind
from quiesce.runtime.bundle import gather_tx
from quiesce.runtime.environment import Environment
from quiesce.runtime.inspection import Inspection
from quiesce.runtime.service import ControlService
from quiesce.runtime.verification import require, verify, verify_files


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What is put out about a run."""

    place: Place
    seen: Inspection
    result: object

    def to_json(self) -> dict[str, object]:
        """Return the document of `start --json` and `resume --json`."""
        seen, receipt = self.seen, self.seen.receipt
        artifacts = receipt.artifacts if receipt else [a.to_json() for a in seen.artifacts]
        return {
            "run_id": seen.run.id,
            "thread_id": seen.run.thread_id,
            "agent": seen.run.agent,
            "status": str(seen.run.status),
            "directory": str(self.place.directory) if self.place.directory else None,
            "store": self.place.shown,
            "artifacts": [dict(a) for a in artifacts],
            "usage": receipt.usage if receipt else seen.run.budget.to_json(),
            "result": self.result,
            "receipt": receipt.to_json() if receipt else None,
            "waits": [w.to_json() for w in seen.run.waits],
            "explanation": seen.explain(),
            "next": self.next_steps(),
        }

    def next_steps(self) -> list[str]:
        """Return the commands that make sense now."""
        run, flags = self.seen.run, self.place.flags
        if run.is_terminal:
            return [f"quiesce verify {run.id}{flags}"]
        unknown = [w for w in run.waits if w.kind is WaitKind.UNKNOWN]
        decide = [f"quiesce reconcile {run.id} {w.position} --verdict happened|did_not_happen|give_up{flags}" for w in unknown]
        answers = [f"quiesce answer {w.subject} --value JSON{flags}" for w in run.waits if w.kind is WaitKind.ANSWER]
        below = [f"quiesce explain {child.id}{flags}" for child in self.seen.children if child.status is RunStatus.WAITING]
        return [*decide, *answers, *below, f"quiesce resume {run.id}{flags}", f"quiesce cancel {run.id}{flags}"]

    def print(self) -> None:
        """Print it for people."""
        out, run, receipt = console(), self.seen.run, self.seen.receipt
        if receipt is None:
            rows: list[tuple[str, str | Text]] = [
                ("run", run.id),
                ("agent", run.agent),
                ("status", status_text(run.status)),
                ("directory" if self.place.directory else "store", self.place.shown),
                ("now", self.seen.explain()),
            ]
            out.print(grid(rows))
        else:
            out.print(grid([("directory" if self.place.directory else "store", self.place.shown)]))
            if self.result is not None:
                out.print(grid([("result", json.dumps(self.result, ensure_ascii=False))]))
            show_receipt(out, receipt)
        out.print(Text("\nnext", style="bold"))
        for command in self.next_steps():
            out.print(Text(f"  {command}"), soft_wrap=True)


async def show_ending(
    env: Environment,
    place: Place,
    run_id: RunId,
    ending: Ending,
    *,
    as_json: bool,
    reads_back: bool = False,
) -> int:
    """Show how far a run has come and return the exit code that says it too.

    With `reads_back`, raises `VerificationFailed` if the receipt or a file that it lists is not as it was.
    """
    service = ControlService(env)
    if reads_back:
        bundle = await env.store.read(lambda tx: gather_tx(tx, run_id))
        listed = await service.receipt(run_id)
        require([*verify(bundle), *verify_files(listed.artifacts, env.artifacts)], subject=f"readback of run {run_id}")
    shown = _Shown(
        place=place,
        seen=await service.inspect(run_id),
        result=await service.result(run_id),
    )
    if as_json:
        print_json(shown.to_json())
    else:
        shown.print()
    if shown.seen.run.status in OF_STATUS:
        return OF_STATUS[shown.seen.run.status]
    return Exit.PARKED if ending is Ending.PARKED else Exit.OK
