"""Questions to people, inside one transaction. Who writes has locked the run that asks: asking and ending have one order."""

from __future__ import annotations

from typing import Protocol

from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction, InteractionId


class Interactions(Protocol):
    """Rows of questions."""

    def add(self, interaction: Interaction) -> None:
        """Add an open question. A second of its run and position is an error."""

    def get(self, interaction_id: InteractionId) -> Interaction | None:
        """Return a question."""

    def at(self, run_id: RunId, position: Position) -> Interaction | None:
        """Return the question that was asked at this place."""

    def of_run(self, run_id: RunId) -> list[Interaction]:
        """Return all questions of a run, by id."""

    def open(self, tenant: str, *, after: InteractionId | None, limit: int) -> list[Interaction]:
        """Return open questions of a tenant, over all its threads, by id, behind `after`.

        Costs the same however many have ended.
        """

    def due(self, *, now: Instant, limit: int) -> list[Interaction]:
        """Return open questions whose time has passed, of all tenants, the longest overdue first."""

    def end(self, interaction: Interaction) -> None:
        """Store how an open question ended. What was asked is never written again, and an end never replaced."""
