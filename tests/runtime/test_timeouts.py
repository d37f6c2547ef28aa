"""A relative deadline under an idempotency key: the retry of a lost answer is the same request."""

import pytest

from quiesce.domain.errors import InvalidInput
from quiesce.domain.instant import elapsed_ms
from quiesce.ports.store import Store
from quiesce.runtime.submission import Submission
from tests.runtime.kit import Cluster


def wanted(timeout_ms: int | None) -> Submission:
    return Submission(agent="nobody", input=b'{"args":[],"kwargs":{}}', key="order-7", timeout_ms=timeout_ms)


@pytest.mark.req("RR-18", "CC-12", "CC-14")
async def test_a_retry_with_the_same_timeout_is_the_same_run_with_the_same_deadline(cluster: Cluster, store: Store) -> None:
    first = await cluster.service.submit(wanted(60_000))
    again = await cluster.service.submit(wanted(60_000))
    assert again == first
    assert first.deadline_at is not None
    assert elapsed_ms(first.created_at, first.deadline_at) == 60_000


@pytest.mark.req("RR-18")
@pytest.mark.parametrize("timeout_ms", [0, -1, 10**12])
async def test_a_timeout_that_is_no_time_is_refused_by_name(cluster: Cluster, timeout_ms: int) -> None:
    with pytest.raises(InvalidInput, match="timeout_ms"):
        await cluster.service.submit(wanted(timeout_ms))
