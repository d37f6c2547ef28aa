"""What a command costs, counted: one commit for each fact that must be durable before the next may begin, and none besides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.channel.kit import Channel


async def commits_of(channel: Channel, deed: Callable[[], Awaitable[object]]) -> int:
    before = channel.store.counters.commits
    await deed()
    return channel.store.counters.commits - before


@pytest.mark.req("CC-28", "CC-01")
async def test_a_command_to_a_local_owner_costs_six_commits(channel: Channel) -> None:
    """Staged; relayed; claimed; the admission marked ahead; admitted; settled."""
    worker = channel.worker()
    assert await commits_of(channel, channel.stage) == 1
    assert await commits_of(channel, worker.pass_once) == 5
    assert len(await channel.effects()) == 1
    assert await commits_of(channel, worker.pass_once) == 0, "where nothing is due, nothing is written"


@pytest.mark.req("CC-28")
async def test_a_command_to_a_remote_owner_costs_one_less_here(channel: Channel) -> None:
    """The admission is committed over there."""
    worker = channel.worker()
    await channel.stage(channel.request(owner="post"))
    assert await commits_of(channel, worker.pass_once) == 4
    assert len(channel.post.effects) == 1


@pytest.mark.req("CC-28")
async def test_relay_and_claim_cost_one_commit_for_many(channel: Channel) -> None:
    for n in range(20):
        await channel.stage(channel.request(f"t{n}"))
    assert await commits_of(channel, channel.relay) == 1
    assert await commits_of(channel, channel.claim) == 1
