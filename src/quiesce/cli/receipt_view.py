"""A terminal receipt on the screen: D, V and T on one line, and the five answers of TR-48.

Stopped here; this became durable; this was seen beyond it; this is why; this may follow. Every word is taken from the
receipt; nothing is concluded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from quiesce.cli.output import STATUS_STYLE, grid, listing, moment, plural, shortened
from quiesce.domain.boundary import GapKind
from quiesce.domain.terminal import TerminalReceipt

_LINE: Final = 34
_TAIL: Final = 2


def frontier_line(receipt: TerminalReceipt) -> Text:
    """Draw D (last checkpoint), V (last number that may have been seen) and T (the end) to scale.

    `──●D 12────────○V 17──┤T cancelled`; dotted where numbers may have been seen and are not stored.
    """
    frontier = receipt.frontier
    durable, seen, stored = frontier.covered_seq, frontier.emitted_seq, max(frontier.covered_seq, frontier.stored_seq)
    scale = _LINE / max(1, seen)
    line = Text().append("─" * max(_TAIL, round(durable * scale)), style="dim")
    line.append("●D" if seen <= durable else f"●D {durable}", style="bold green")
    if seen > durable:
        kept = max(1, round((stored - durable) * scale)) if stored > durable else 0
        line.append("─" * kept, style="yellow")
        line.append("┄" * max(1, round((seen - stored) * scale)) if seen > stored else "", style="red")
    line.append(f"○V {'' if frontier.emitted_exact else '≤'}{seen}", style="bold cyan")
    line.append("─" * _TAIL, style="dim")
    line.append(f"┤T {receipt.status}", style=f"bold {STATUS_STYLE[receipt.status]}")
    return line


def show_receipt(out: Console, receipt: TerminalReceipt) -> None:
    """Print a receipt."""
    out.print(
        Group(
            Text.assemble(("run ", "dim"), receipt.run_id),
            Text(),
            Text("  ").append_text(frontier_line(receipt)),
            Text(),
            grid(_answers(receipt)),
            *_parts(receipt),
            Text(),
            grid(_proofs(receipt)),
        )
    )


def _answers(receipt: TerminalReceipt) -> list[tuple[str, str | Text]]:
    return [
        ("stopped here", _stopped(receipt)),
        ("became durable", _durable(receipt)),
        ("seen beyond it", _beyond(receipt)),
        ("why", _why(receipt)),
        ("may follow", f"{receipt.policy.policy} ({receipt.policy.rule}): {receipt.policy.admissible}"),
    ]


def _stopped(receipt: TerminalReceipt) -> str:
    if receipt.never_started:
        return f"before it began; {moment(receipt.published_at)}"
    bound = "at" if receipt.frontier.emitted_exact else "no later than"
    return f"{bound} event {receipt.frontier.emitted_seq}, in attempt {receipt.attempt}; {moment(receipt.published_at)}"


def _durable(receipt: TerminalReceipt) -> str:
    frontier = receipt.frontier
    state = f"checkpoint {receipt.checkpoint_id} covers event {frontier.covered_seq}" if receipt.checkpoint_id else "no state"
    return f"{receipt.durability}: {state}; the stream is stored through event {frontier.stored_seq}"


def _beyond(receipt: TerminalReceipt) -> str:
    gap = receipt.gap
    if gap.kind is GapKind.NONE:
        return "nothing"
    return (
        f"events {gap.first_seq} to {gap.last_seq}, {gap.state_bearing} of them state-bearing: {gap.kind} "
        f"(stored through {gap.stored_through})"
    )


def _why(receipt: TerminalReceipt) -> str:
    words = f': "{receipt.reason_text}"' if receipt.reason_text else ""
    who = "the run itself" if receipt.actor.name == receipt.run_id else f"{receipt.actor.kind} {receipt.actor.name}"
    return f"{receipt.cause} ({receipt.reason}), by {who}{words}"


def _parts(receipt: TerminalReceipt) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if receipt.unresolved:
        columns = ("operation", "name", "effect", "status", "run_id")
        rows = [tuple(_of(o, column) for column in columns) for o in receipt.unresolved]
        parts += [_title("effects that may have happened"), listing(columns, rows)]
    if receipt.unconsumed:
        names = ", ".join(f"{_of(o, 'operation')} {_of(o, 'name')}" for o in receipt.unconsumed)
        parts += [_title("results kept and not used"), Text("  " + names)]
    if receipt.artifacts:
        parts += [_title("artifacts"), artifact_table(receipt.artifacts)]
    if receipt.usage:
        parts += [_title("usage"), usage_table(receipt.usage)]
    return parts


def _proofs(receipt: TerminalReceipt) -> list[tuple[str, str | Text]]:
    cleanup = "completed" if receipt.cleanup_completed else "attempted" if receipt.cleanup_attempted else "not attempted"
    return [
        ("C", receipt.occurrence_id),
        ("P", receipt.outcome_id),
        ("T", receipt.id),
        ("H1", receipt.h1),
        ("H2", receipt.h2),
        ("H3", receipt.digest),
        ("", f"clean-up {cleanup}{', escalated' if receipt.escalated else ''}; store durability {receipt.store_durability}"),
    ]


def artifact_table(artifacts: Sequence[Mapping[str, object]]) -> RenderableType:
    """Return the artifacts of a receipt."""
    rows = [(_of(a, "name"), plural(int(_of(a, "bytes")), "byte"), shortened(_of(a, "digest"))) for a in artifacts]
    return listing(("file", "size", "digest"), rows)


def usage_table(usage: Mapping[str, Mapping[str, int | None]]) -> RenderableType:
    """Return what was used of each unit."""
    rows = []
    for unit, row in sorted(usage.items()):
        limit = row.get("limit")
        rows.append((unit, str(row.get("used") or 0), str(row.get("reserved") or 0), "-" if limit is None else str(limit)))
    return listing(("unit", "used", "reserved", "limit"), rows)


def _title(words: str) -> Text:
    return Text(f"\n{words}", style="bold")


def _of(row: Mapping[str, object], name: str) -> str:
    return str(row.get(name))
