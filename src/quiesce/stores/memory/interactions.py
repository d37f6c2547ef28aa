"""Questions in memory."""

from __future__ import annotations

from dataclasses import replace

from quiesce.domain.errors import invariant, required
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.stores.memory.state import State


class MemoryInteractions:
    """Implements `ports.interactions.Interactions`."""

    def __init__(self, state: State) -> None:
        self._interactions = state.interactions

    def add(self, interaction: Interaction) -> None:
        """See the port."""
        invariant(self.at(interaction.run_id, interaction.position) is None, "one question a position")
        invariant(interaction.id not in self._interactions, "a question is added once")
        self._interactions.put(interaction.id, interaction)

    def get(self, interaction_id: InteractionId) -> Interaction | None:
        """See the port."""
        return self._interactions.get(interaction_id)

    def at(self, run_id: RunId, position: Position) -> Interaction | None:
        """See the port."""
        return next((i for i in self._interactions if (i.run_id, i.position) == (run_id, position)), None)

    def of_run(self, run_id: RunId) -> list[Interaction]:
        """See the port."""
        return sorted((i for i in self._interactions if i.run_id == run_id), key=lambda i: i.id)

    def open(self, tenant: str, *, after: InteractionId | None, limit: int) -> list[Interaction]:
        """See the port."""
        return sorted((i for i in self._open() if i.tenant == tenant and i.id > (after or "")), key=lambda i: i.id)[:limit]

    def due(self, *, now: Instant, limit: int) -> list[Interaction]:
        """See the port."""
        return sorted((i for i in self._open() if i.is_due(now)), key=lambda i: (i.expires_at, i.id))[:limit]

    def end(self, interaction: Interaction) -> None:
        """See the port."""
        stored = required(self.get(interaction.id), "a question that ends is there")
        invariant(stored.status is InteractionStatus.OPEN, "a question ends once")
        ended = replace(
            stored,
            status=interaction.status,
            answer=interaction.answer,
            answer_key=interaction.answer_key,
            ended_by=interaction.ended_by,
            ended_at=interaction.ended_at,
        )
        self._interactions.put(ended.id, ended)

    def _open(self) -> list[Interaction]:
        return [i for i in self._interactions if i.status is InteractionStatus.OPEN]
