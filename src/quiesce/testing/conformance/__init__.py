"""The conformance suite for stores: what `quiesce.ports` promises, as tests that any store must pass.

Needs pytest and nothing else; no plugin, no event loop of yours. Say how your store is opened and inherit the contracts:

    import pytest
    from quiesce.testing import conformance

    @pytest.fixture
    def store(tmp_path):
        async def open_store(clock):
            return await MyStore.open(tmp_path / "store.db", clock=clock)

        with conformance.StoreUnderTest(open_store) as store:
            yield store

    class TestRuns(conformance.RunsContract): ...
    class TestFences(conformance.FencesContract): ...      # and so on: `conformance.CONTRACTS` lists them all

Each test gets a store that is open and *empty*. `open_store` may be called again within a test: it then opens the same
place. Nothing is skipped for a weaker store; where stores may differ, the tests ask `Store.capabilities`.

`proves` attaches requirement ids to a test as the attribute `proves`; turn it into a marker if you report on them.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "subject",
            "transactions",
            "runs",
            "claims",
            "threads",
            "workers",
            "operations",
            "streams",
            "checkpoints",
            "terminal",
            "evidence",
            "outbox",
            "mailbox",
            "interactions",
            "intents",
            "schedules",
            "commands",
            "deliveries",
            "fences",
            "budgets",
            "payloads",
            "notifier",
        )
    )
)

from quiesce.testing.conformance.budgets import BudgetsContract  # noqa: E402 - after the registration above
from quiesce.testing.conformance.checkpoints import CheckpointsContract  # noqa: E402
from quiesce.testing.conformance.claims import ClaimsContract  # noqa: E402
from quiesce.testing.conformance.commands import CommandsContract, TargetsContract  # noqa: E402
from quiesce.testing.conformance.deliveries import DeliveriesContract, OrderContract  # noqa: E402
from quiesce.testing.conformance.evidence import EvidenceContract  # noqa: E402
from quiesce.testing.conformance.fences import EvidenceAdmissionContract, FencesContract  # noqa: E402
from quiesce.testing.conformance.intents import (  # noqa: E402
    AdmissionsContract,
    IntentsContract,
    ScopesContract,
)
from quiesce.testing.conformance.interactions import InteractionsContract  # noqa: E402
from quiesce.testing.conformance.mailbox import MailboxContract  # noqa: E402
from quiesce.testing.conformance.notifier import NotifierContract  # noqa: E402
from quiesce.testing.conformance.operations import OperationsContract  # noqa: E402
from quiesce.testing.conformance.outbox import OutboxContract  # noqa: E402
from quiesce.testing.conformance.payloads import PayloadsContract  # noqa: E402
from quiesce.testing.conformance.runs import AttemptsContract, RunsContract  # noqa: E402
from quiesce.testing.conformance.schedules import SchedulesContract  # noqa: E402
from quiesce.testing.conformance.streams import StreamsContract  # noqa: E402
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, everything_of, proves  # noqa: E402
from quiesce.testing.conformance.terminal import TerminalContract  # noqa: E402
from quiesce.testing.conformance.threads import ThreadsContract  # noqa: E402
from quiesce.testing.conformance.transactions import ConcurrencyContract, TransactionsContract  # noqa: E402
from quiesce.testing.conformance.workers import WorkersContract  # noqa: E402

CONTRACTS: tuple[type[StoreContract], ...] = (
    TransactionsContract,
    ConcurrencyContract,
    NotifierContract,
    RunsContract,
    AttemptsContract,
    ClaimsContract,
    ThreadsContract,
    WorkersContract,
    OperationsContract,
    StreamsContract,
    CheckpointsContract,
    TerminalContract,
    EvidenceContract,
    OutboxContract,
    MailboxContract,
    InteractionsContract,
    IntentsContract,
    ScopesContract,
    TargetsContract,
    CommandsContract,
    DeliveriesContract,
    OrderContract,
    AdmissionsContract,
    SchedulesContract,
    FencesContract,
    EvidenceAdmissionContract,
    BudgetsContract,
    PayloadsContract,
)

__all__ = [
    "CONTRACTS",
    "AdmissionsContract",
    "AttemptsContract",
    "BudgetsContract",
    "CheckpointsContract",
    "ClaimsContract",
    "CommandsContract",
    "ConcurrencyContract",
    "DeliveriesContract",
    "EvidenceAdmissionContract",
    "EvidenceContract",
    "FencesContract",
    "IntentsContract",
    "InteractionsContract",
    "MailboxContract",
    "NotifierContract",
    "OperationsContract",
    "OrderContract",
    "OutboxContract",
    "PayloadsContract",
    "RunsContract",
    "SchedulesContract",
    "ScopesContract",
    "StoreContract",
    "StoreUnderTest",
    "StreamsContract",
    "TargetsContract",
    "TerminalContract",
    "ThreadsContract",
    "TransactionsContract",
    "WorkersContract",
    "everything_of",
    "proves",
]
