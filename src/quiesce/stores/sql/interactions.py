"""Questions over named queries. What was asked is written once; the schema itself refuses to change it."""

from __future__ import annotations

from quiesce.domain.boundary import Actor
from quiesce.domain.errors import invariant
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant
from quiesce.domain.interactions import Interaction, InteractionId, InteractionStatus
from quiesce.stores.sql.codec import decode, encode
from quiesce.stores.sql.queries import Queries, Row


class SqlInteractions:
    """Implements `ports.interactions.Interactions`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def add(self, interaction: Interaction) -> None:
        """See the port."""
        row = self._queries.one(
            "add_interaction",
            id=interaction.id,
            run_id=interaction.run_id,
            position=interaction.position,
            thread_id=interaction.thread_id,
            tenant=interaction.tenant,
            prompt=interaction.prompt,
            schema=interaction.schema,
            about=interaction.about,
            created_at=interaction.created_at,
            expires_at=interaction.expires_at,
        )
        invariant(row is not None, "one question a position")

    def get(self, interaction_id: InteractionId) -> Interaction | None:
        """See the port."""
        row = self._queries.one("get_interaction", id=interaction_id)
        return None if row is None else _interaction_of(row)

    def at(self, run_id: RunId, position: Position) -> Interaction | None:
        """See the port."""
        row = self._queries.one("interaction_at", run_id=run_id, position=position)
        return None if row is None else _interaction_of(row)

    def of_run(self, run_id: RunId) -> list[Interaction]:
        """See the port."""
        return [_interaction_of(row) for row in self._queries.many("interactions_of_run", run_id=run_id)]

    def open(self, tenant: str, *, after: InteractionId | None, limit: int) -> list[Interaction]:
        """See the port."""
        rows = self._queries.many("open_interactions", tenant=tenant, after=after or "", limit=limit)
        return [_interaction_of(row) for row in rows]

    def due(self, *, now: Instant, limit: int) -> list[Interaction]:
        """See the port."""
        return [_interaction_of(row) for row in self._queries.many("due_interactions", now=now, limit=limit)]

    def end(self, interaction: Interaction) -> None:
        """See the port."""
        row = self._queries.one(
            "end_interaction",
            id=interaction.id,
            status=interaction.status.value,
            answer=interaction.answer,
            answer_key=interaction.answer_key,
            ended_by=None if interaction.ended_by is None else encode(interaction.ended_by.to_json()),
            ended_at=interaction.ended_at,
        )
        invariant(row is not None, "a question ends once")


def _interaction_of(row: Row) -> Interaction:
    (id_, run_id, position, thread_id, tenant, prompt, schema, about, created_at, expires_at) = row[:10]
    status, answer, answer_key, ended_by, ended_at = row[10:]
    return Interaction(
        id=id_,
        run_id=run_id,
        position=position,
        thread_id=thread_id,
        tenant=tenant,
        prompt=prompt,
        schema=schema,
        about=about,
        created_at=created_at,
        expires_at=expires_at,
        status=InteractionStatus(status),
        answer=answer,
        answer_key=answer_key,
        ended_by=None if ended_by is None else Actor.from_json(decode(ended_by)),
        ended_at=ended_at,
    )
