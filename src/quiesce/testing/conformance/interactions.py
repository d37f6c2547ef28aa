"""Questions to people: one a position, open ones over all runs of a tenant, and an end that is never replaced."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.boundary import Actor, ActorKind
from quiesce.domain.canonical import canonical
from quiesce.domain.errors import QuiesceError
from quiesce.domain.ids import Position, RunId
from quiesce.domain.instant import Instant, after_ms
from quiesce.domain.interactions import Interaction, InteractionId
from quiesce.domain.runs import Run
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import Samples

ADA = Actor(kind=ActorKind.USER, name="ada")


class InteractionsContract(StoreContract):
    """`Interactions`."""

    @proves("NO-10", "C80")
    def test_a_question_is_read_back_as_it_was_asked(self, store: StoreUnderTest, make: Samples) -> None:
        question = _asked(store, make, make.running(), expires_at=after_ms(make.now, 10))
        assert store.read(lambda tx: tx.interactions.get(question.id)) == question
        assert store.read(lambda tx: tx.interactions.at(question.run_id, question.position)) == question
        assert store.read(lambda tx: tx.interactions.of_run(question.run_id)) == [question]
        store_again = store.read(lambda tx: tx.interactions.open(question.tenant, after=None, limit=10))
        assert store_again == [question]

    def test_what_was_never_asked_is_not_found(self, store: StoreUnderTest, make: Samples) -> None:
        question = _asked(store, make, make.running())
        assert store.read(lambda tx: tx.interactions.get(InteractionId(make.id()))) is None
        assert store.read(lambda tx: tx.interactions.at(question.run_id, Position("9"))) is None
        assert store.read(lambda tx: tx.interactions.at(RunId(make.id()), question.position)) is None
        assert store.read(lambda tx: tx.interactions.of_run(RunId(make.id()))) == []

    @proves("NO-10", "C77")
    def test_a_position_has_one_question_and_another_is_an_error(self, store: StoreUnderTest, make: Samples) -> None:
        run = make.running()
        first = _asked(store, make, run)
        with pytest.raises(QuiesceError):
            _add(store, _question(make, run))
        with pytest.raises(QuiesceError):
            _add(store, replace(first, position=Position("2")))
        beside = _question(make, run, position="2")
        _add(store, beside)
        assert store.read(lambda tx: tx.interactions.of_run(run.id)) == [first, beside]

    def test_open_questions_come_by_tenant_over_all_runs_oldest_first(self, store: StoreUnderTest, make: Samples) -> None:
        one, two = _asked(store, make, make.running()), _asked(store, make, make.running())
        other = _asked(store, make, make.running(tenant="another"))
        three, ended = _asked(store, make, make.running()), _asked(store, make, make.running())
        store.transact(lambda tx: tx.interactions.end(ended.answered(b"1", ADA, "k", make.now)))
        assert store.read(lambda tx: tx.interactions.open(one.tenant, after=None, limit=10)) == [one, two, three]
        assert store.read(lambda tx: tx.interactions.open(one.tenant, after=None, limit=2)) == [one, two]
        assert store.read(lambda tx: tx.interactions.open(one.tenant, after=two.id, limit=2)) == [three]
        assert store.read(lambda tx: tx.interactions.open("another", after=None, limit=2)) == [other]

    @proves("C81")
    def test_due_are_the_open_ones_whose_time_has_come_the_longest_overdue_first(
        self, store: StoreUnderTest, make: Samples
    ) -> None:
        start = make.now
        late = _asked(store, make, make.running(), expires_at=after_ms(start, 20_000))
        soon = _asked(store, make, make.running(), expires_at=after_ms(start, 10_000))
        _asked(store, make, make.running())
        ended = _asked(store, make, make.running(), expires_at=after_ms(start, 5000))
        store.transact(lambda tx: tx.interactions.end(ended.answered(b"1", ADA, "k", make.now)))
        limits = [(9999, 10, []), (10_000, 10, [soon]), (20_000, 10, [soon, late]), (20_000, 1, [soon])]
        for ms, limit, expected in limits:
            now = after_ms(start, ms)
            assert store.read(lambda tx, now=now, n=limit: tx.interactions.due(now=now, limit=n)) == expected  # type: ignore[misc]

    @proves("C76")
    def test_an_end_is_kept_and_never_replaced(self, store: StoreUnderTest, make: Samples) -> None:
        answered, expired, revoked = (_asked(store, make, make.running(), expires_at=make.now) for _ in range(3))
        ends = [answered.answered(canonical({"ok": "ü"}), ADA, "k", make.now), expired.expired(make.now)]
        ends.append(revoked.revoked(ADA, make.now))
        for end in ends:
            store.transact(lambda tx, end=end: tx.interactions.end(end))  # type: ignore[misc]
        assert [store.read(lambda tx, i=end.id: tx.interactions.get(i)) for end in ends] == ends  # type: ignore[misc]
        for end in ends:
            with pytest.raises(QuiesceError):
                store.transact(lambda tx, end=end: tx.interactions.end(end))  # type: ignore[misc]
        assert store.read(lambda tx: tx.interactions.open(answered.tenant, after=None, limit=10)) == []

    @proves("NO-10")
    def test_what_was_asked_is_never_written_again(self, store: StoreUnderTest, make: Samples) -> None:
        question = _asked(store, make, make.running())
        forged = replace(question, prompt=canonical("something else"), about=b"1", schema=b"{}")
        store.transact(lambda tx: tx.interactions.end(forged.answered(b"true", ADA, "k", make.now)))
        stored = store.read(lambda tx: tx.interactions.get(question.id))
        assert stored == question.answered(b"true", ADA, "k", make.now)


def _question(make: Samples, run: Run, *, position: str = "1", expires_at: Instant | None = None) -> Interaction:
    return Interaction(
        id=InteractionId(make.id()),
        run_id=run.id,
        position=Position(position),
        thread_id=run.thread_id,
        tenant=run.tenant,
        prompt=canonical("May I? 📦"),
        schema=canonical({"type": "boolean"}),
        about=canonical({"tool": "order", "what": ["ü"]}),
        created_at=make.now,
        expires_at=expires_at,
    )


def _add(store: StoreUnderTest, question: Interaction) -> None:
    store.transact(lambda tx: tx.interactions.add(question))


def _asked(store: StoreUnderTest, make: Samples, run: Run, *, expires_at: Instant | None = None) -> Interaction:
    store.add(run)
    question = _question(make, run, expires_at=expires_at)
    _add(store, question)
    return question
