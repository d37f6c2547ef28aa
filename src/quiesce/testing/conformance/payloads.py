"""Payloads: whatever canonical JSON holds comes back byte for byte, wherever a payload can be stored."""
# ruff: noqa: D102, S101 - the tests are sentences, and assert

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.domain.canonical import Json, canonical
from quiesce.domain.operations import OperationStatus
from quiesce.domain.streams import Draft
from quiesce.testing.conformance.subject import StoreContract, StoreUnderTest, proves
from quiesce.testing.samples import TENANT, Samples

PAYLOADS: dict[str, Json] = {
    "nothing": None,
    "empty text": "",
    "empty object": {},
    "empty list": [],
    "NUL": "before\u0000after",
    "emoji": {"👩‍👩‍👧": "🙂", "é": "e\u0301"},
    "floats": [0.1, -0.0, 1e-7, 1e21, 5e-324, 1.7976931348623157e308, 333333333.33333329],
    "large integers": [2**53 - 1, -(2**53 - 1)],
    "text that looks like something else": ["null", "true", "0", "{}", "'; DROP TABLE runs; --", "%s :name ?"],
    "line ends": "\r\n\u2028\u2029\u0085",
    "deep": [[[[[[[[[[{"a": [[[[[[]]]]]]}]]]]]]]]]],
    "a megabyte": "x" * 1_000_000,
}


class PayloadsContract(StoreContract):
    """Payloads of every kind of row."""

    @proves("TR-12", "TR-13")
    @pytest.mark.parametrize("name", PAYLOADS)
    def test_a_payload_comes_back_byte_for_byte(self, store: StoreUnderTest, make: Samples, name: str) -> None:
        payload = canonical(PAYLOADS[name])
        run = replace(make.running(), input=payload, bindings=payload)
        operation = replace(make.operation(run, status=OperationStatus.COMMITTED), arguments=payload, result=payload)
        events = make.events(run, Draft(channel="text", payload=payload))
        checkpoint = replace(make.checkpoint(run), state=payload)
        evidence = replace(make.evidence(run), body=payload)
        message = replace(make.message(run), body=payload)
        store.add(run)
        store.transact(lambda tx: tx.operations.put_many([operation]))
        store.transact(lambda tx: tx.streams.append_many(events))
        store.transact(lambda tx: tx.checkpoints.add_many([checkpoint]))
        store.transact(lambda tx: tx.evidence.add(evidence))
        store.transact(lambda tx: tx.outbox.append(message))
        assert store.run(run.id) == run
        assert store.read(lambda tx: tx.operations.of_run(run.id)) == [operation]
        assert store.read(lambda tx: tx.streams.read(run.id, after=0, limit=5)) == list(events)
        assert store.read(lambda tx: tx.checkpoints.last(run.id)) == checkpoint
        assert store.read(lambda tx: tx.evidence.of_run(run.id)) == [replace(evidence, number=1)]
        assert store.read(lambda tx: tx.outbox.pending(limit=5)) == [message]

    def test_names_of_every_script_are_kept(self, store: StoreUnderTest, make: Samples) -> None:
        name = "Ωmega “quoted” 'n' \\ 研究 🙂\n"
        run = replace(make.run(agent=name), key=name, subject=name)
        store.add(run)
        store.save(replace(run, budget=run.budget.moved(used={name: 1}, reserved={})))
        found = store.read(lambda tx: tx.runs.by_key(TENANT, name))
        assert found is not None
        assert (found.agent, found.key, found.subject, found.budget.of(name).used) == (name, name, name, 1)
        assert store.transact(lambda tx: tx.runs.claimable(agents=[name], now=make.now, limit=5)) == [found]

    def test_instants_are_kept_to_the_microsecond(self, store: StoreUnderTest, make: Samples) -> None:
        run = replace(make.run(), created_at=type(make.now)(make.now + 1), deadline_at=type(make.now)(2**53 - 1))
        store.add(run)
        assert store.run(run.id) == run
