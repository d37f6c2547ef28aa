"""Every store passes every contract of the public conformance suite."""

from __future__ import annotations

from quiesce.testing import conformance


class TestTransactions(conformance.TransactionsContract): ...


class TestConcurrency(conformance.ConcurrencyContract): ...


class TestNotifier(conformance.NotifierContract): ...


class TestRuns(conformance.RunsContract): ...


class TestAttempts(conformance.AttemptsContract): ...


class TestClaims(conformance.ClaimsContract): ...


class TestThreads(conformance.ThreadsContract): ...


class TestWorkers(conformance.WorkersContract): ...


class TestOperations(conformance.OperationsContract): ...


class TestStreams(conformance.StreamsContract): ...


class TestCheckpoints(conformance.CheckpointsContract): ...


class TestTerminal(conformance.TerminalContract): ...


class TestEvidence(conformance.EvidenceContract): ...


class TestOutbox(conformance.OutboxContract): ...


class TestMailbox(conformance.MailboxContract): ...


class TestInteractions(conformance.InteractionsContract): ...


class TestIntents(conformance.IntentsContract): ...


class TestScopes(conformance.ScopesContract): ...


class TestTargets(conformance.TargetsContract): ...


class TestCommands(conformance.CommandsContract): ...


class TestDeliveries(conformance.DeliveriesContract): ...


class TestOrder(conformance.OrderContract): ...


class TestAdmissions(conformance.AdmissionsContract): ...


class TestSchedules(conformance.SchedulesContract): ...


class TestFences(conformance.FencesContract): ...


class TestEvidenceAdmission(conformance.EvidenceAdmissionContract): ...


class TestBudgets(conformance.BudgetsContract): ...


class TestPayloads(conformance.PayloadsContract): ...


def test_every_contract_of_the_suite_is_run_here() -> None:
    run_here = {base for cls in globals().values() if isinstance(cls, type) for base in cls.__bases__}
    assert set(conformance.CONTRACTS) <= run_here
