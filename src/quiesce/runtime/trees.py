"""Trees of runs: what lies below a run, and what lies above it."""

from __future__ import annotations

from quiesce.domain.ids import RunId
from quiesce.domain.runs import Run
from quiesce.ports.store import Transaction


def descendants(tx: Transaction, run_id: RunId) -> list[Run]:
    """Return the runs below `run_id`, breadth first, not locked."""
    found: list[Run] = []
    layer = tx.runs.children(run_id)
    while layer:
        found.extend(layer)
        layer = [child for run in layer for child in tx.runs.children(run.id)]
    return found


def lineage_of(tx: Transaction, run_id: RunId) -> list[Run]:
    """Return the run and the runs above it, itself first, not locked; nothing if there is no such run."""
    found: list[Run] = []
    above: RunId | None = run_id
    while above is not None and (run := tx.runs.get(above)) is not None:
        found.append(run)
        above = run.parent_id
    return found
