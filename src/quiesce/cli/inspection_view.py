"""An inspection on the screen: the run, its journal, and the three questions after a change of process (RR-44)."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from quiesce.cli.output import grid, listing, moment, plural, status_text
from quiesce.cli.receipt_view import artifact_table, frontier_line, usage_table
from quiesce.runtime.inspection import Inspection

_QUESTIONS: Final = (
    ("may_continue", "may continue", "green"),
    ("read_only", "may only be read again", "dim"),
    ("must_stop", "must stop", "bold red"),
)
_SHOWN_MAX: Final = 12


def show_inspection(out: Console, seen: Inspection) -> None:
    """Print an inspection."""
    parts: list[RenderableType] = [grid(_head(seen))]
    if seen.receipt is not None:
        parts += [Text(), Text("  ").append_text(frontier_line(seen.receipt))]
    if seen.operations:
        parts += [_title("journal"), journal_table(seen)]
    parts += [_title("what may be done"), grid(_authority(seen))]
    if seen.attempts:
        rows = [(str(a.number), str(a.fence), a.worker_name, str(a.end or "open"), moment(a.opened_at)) for a in seen.attempts]
        parts += [_title("attempts"), listing(("attempt", "fence", "worker", "end", "opened"), rows)]
    if seen.children:
        children = [(c.id, c.agent, status_text(c.status)) for c in seen.children]
        parts += [_title("children"), listing(("run", "agent", "status"), children)]
    if seen.evidence:
        evidence = [(e.position, str(e.kind), str(e.verdict), f"{e.actor.kind} {e.actor.name}") for e in seen.evidence]
        parts += [_title("evidence"), listing(("op", "kind", "verdict", "by"), evidence)]
    if seen.artifacts:
        parts += [_title("artifacts"), artifact_table([a.to_json() for a in seen.artifacts])]
    if usage := seen.run.budget.to_json():
        parts += [_title("usage"), usage_table(usage)]
    out.print(Group(*parts))


def journal_table(seen: Inspection) -> RenderableType:
    """Return the journal of a run, an operation a line."""
    rows = [
        (
            o.position,
            str(o.kind),
            o.name,
            str(o.policy) if o.kind == "call" else "",
            status_text(o.status),
            str(o.result_kind or "-"),
            str(len(o.tries)),
        )
        for o in seen.operations
    ]
    return listing(("op", "kind", "name", "effect", "status", "result", "tries"), rows)


def _head(seen: Inspection) -> list[tuple[str, str | Text]]:
    run = seen.run
    stored = seen.stream.stored_seq if seen.stream else 0
    covered = seen.checkpoint.covered_seq if seen.checkpoint else 0
    rows: list[tuple[str, str | Text]] = [
        ("run", run.id),
        ("agent", f"{run.agent}  bound to {run.bindings.decode()}"),
        ("status", status_text(run.status)),
        ("now", seen.explain()),
        ("thread", f"{run.thread_id}  run {run.number}"),
        ("submitted", f"{moment(run.created_at)} by {run.subject}" + (f"  key {run.key}" if run.key else "")),
        ("stream", f"{plural(stored, 'event')} stored; the last checkpoint covers {covered}"),
    ]
    if run.deadline_at is not None:
        rows.append(("deadline", moment(run.deadline_at)))
    if run.parent_id is not None:
        rows.append(("parent", run.parent_id))
    return rows


def _authority(seen: Inspection) -> list[tuple[str, str | Text]]:
    lists = seen.authority()
    rows: list[tuple[str, str | Text]] = []
    for name, words, style in _QUESTIONS:
        items = [f"{i['operation'] or ''} {i['name']} ({i['why']})".strip() for i in lists[name]]
        more = f" and {len(items) - _SHOWN_MAX} more" if len(items) > _SHOWN_MAX else ""
        text = (", ".join(items[:_SHOWN_MAX]) + more) or "nothing"
        rows.append((words, Text(text, style=style if items else "dim")))
    return rows


def _title(words: str) -> Text:
    return Text(f"\n{words}", style="bold")
