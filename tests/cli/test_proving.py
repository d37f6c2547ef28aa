"""Verification and bundles: what was changed is found, whatever was changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiesce.cli.demo.scenes import change_one_byte
from quiesce.domain.errors import InvalidInput, VerificationFailed
from quiesce.domain.terminal import digest_of_body
from quiesce.runtime.bundle import bundle_of, digest_of_document, read_document
from quiesce.runtime.verification import require, verify, verify_document
from tests.cli.playing import theatre
from tests.cli.shell import Done, Shell

Document = dict[str, Any]
Path_ = tuple[str | int, ...]


async def _documents(directory: Path) -> dict[str, Document]:
    """Return bundles of runs that ended differently, the last of them second in its thread."""
    async with theatre(directory) as played:
        receipts = {
            "completed": await played.play("durable-report"),
            "cancelled": await played.stop_halting(),
            "unknown": await played.play_until(1, "process-tool", block_ms=60_000),
            "family": await played.play("family", ticks=1, delay_ms=0),
        }
        await played.play_in("t", "parallel")
        receipts["second"] = await played.play_in("t", "nested")
        bundles = {name: await played.bundle(receipt.run_id) for name, receipt in receipts.items()}
    return {name: json.loads(json.dumps(bundle.to_json())) for name, bundle in bundles.items()}


@pytest.fixture
async def documents(tmp_path: Path) -> dict[str, Document]:
    """Bundles as they are read from files."""
    return await _documents(tmp_path)


def leaves(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the way to every value that holds no other."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def flipped(value: object) -> object:
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value[:-1]}{'x' if not value.endswith('x') else 'y'}"
        case _:
            return "something"


def altered(document: Document, path: Path_) -> Document:
    """Return a copy with one leaf changed."""
    copied = copy.deepcopy(document)
    at: Any = copied
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = flipped(at[path[-1]])
    return copied


def failed(document: Document) -> list[str]:
    """Return the names of the checks that fail."""
    return [check.name for check in [verify_document(document), *verify(bundle_of(document))] if not check.ok]


@pytest.mark.req("TR-12", "TR-13", "TR-14", "TR-58")
async def test_what_was_not_changed_verifies_however_the_run_ended(documents: dict[str, Document]) -> None:
    assert {name: failed(document) for name, document in documents.items()} == {name: [] for name in documents}
    assert documents["cancelled"]["receipt"]["gap"]["kind"] == "recoverable"
    assert documents["unknown"]["receipt"]["resume_policy"] == "block"
    assert len(documents["second"]["thread_receipts"]) == 1


async def test_a_bundle_survives_its_file(documents: dict[str, Document]) -> None:
    for document in documents.values():
        assert bundle_of(read_document(json.dumps(document))).to_json() == document


@pytest.mark.req("TR-14")
async def test_every_altered_field_of_a_receipt_is_found_without_the_bundles_own_digest(
    documents: dict[str, Document],
) -> None:
    for document in documents.values():
        for path in leaves(document["receipt"], ("receipt",)):
            forged = altered(document, path)
            forged["bundle_digest"] = digest_of_document(forged)
            assert failed(forged), path


async def test_every_altered_leaf_of_a_bundle_is_found(documents: dict[str, Document]) -> None:
    for document in (documents["second"], documents["unknown"]):
        for path in leaves(document):
            assert not verify_document(altered(document, path)).ok, path


RESTS_ON_FACTS = (
    ("run_id", "thread_id", "attempt", "occurrence_id", "outcome_id", "last_checkpoint_id", "digest_algorithm"),
    ("terminal_cause", "terminal_reason", "terminal_status", "reason_text", "cancel_scope", "never_started"),
    ("covered_seq", "stored_seq", "last_stream_seq_emitted", "last_stream_seq_durable", "emitted_exact"),
    ("terminal_durability", "cleanup_attempted", "cleanup_completed", "escalated"),
    ("resume_policy", "resume_rule", "same_run_may_continue", "admissible"),
    ("durable_state_digest", "visible_state_digest_at_abort", "visible_state_digest_exact", "previous_receipt_digest"),
)


@pytest.mark.req("TR-09", "TR-15", "TR-58")
@pytest.mark.parametrize("names", RESTS_ON_FACTS)
async def test_a_forged_receipt_with_digests_made_anew_contradicts_its_evidence(
    documents: dict[str, Document], names: tuple[str, ...]
) -> None:
    for name in names:
        forged = altered(documents["cancelled"], ("receipt", name))
        forged["receipt"]["terminal_receipt_digest"] = digest_of_body(forged["receipt"])
        forged["bundle_digest"] = digest_of_document(forged)
        assert failed(forged), name


@pytest.mark.parametrize(
    ("path", "check"),
    [
        (("events", 3, "payload"), "visible_stream"),
        (("events", 3, "seq"), "stream_numbers"),
        (("events", 3, "chain"), "visible_stream"),
        (("events", 11, "state_bearing"), "frontier"),
        (("checkpoints", -1, "state", "written"), "durable_state"),
        (("checkpoints", 0, "number"), "checkpoint_chain"),
        (("outcome", "occurrence_id"), "outcome"),
        (("outcome", "frontier", "emitted_seq"), "frontier"),
        (("occurrence", "id"), "occurrence"),
        (("frozen_seq",), "frontier"),
    ],
)
@pytest.mark.req("TR-03", "TR-12", "TR-13")
async def test_altered_evidence_is_found_by_the_check_about_it(documents: dict[str, Document], path: Path_, check: str) -> None:
    forged = altered(documents["cancelled"], path)
    forged["bundle_digest"] = digest_of_document(forged)
    assert check in failed(forged)


async def test_an_event_that_was_taken_out_is_missed(documents: dict[str, Document]) -> None:
    forged = copy.deepcopy(documents["cancelled"])
    del forged["events"][5]
    assert {"bundle_digest", "visible_stream", "stream_numbers"} <= set(failed(forged))


@pytest.mark.req("TR-14", "TR-16")
async def test_a_broken_thread_chain_is_found(documents: dict[str, Document]) -> None:
    forged = copy.deepcopy(documents["second"])
    forged["thread_receipts"][0]["reason_text"] = "otherwise"
    assert "thread_chain" in failed(forged)
    forged["thread_receipts"] = []
    assert "thread_chain" in failed(forged)


@pytest.mark.req("TR-44", "TR-64")
async def test_an_effect_that_is_left_out_of_the_receipt_is_missed(documents: dict[str, Document]) -> None:
    forged = copy.deepcopy(documents["unknown"])
    assert forged["receipt"]["unresolved_operations"]
    forged["receipt"]["unresolved_operations"] = []
    assert "unresolved" in failed(forged)
    with pytest.raises(VerificationFailed, match="unresolved"):
        require(verify(bundle_of(forged)), subject="it")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "quiesce-bundle/2"}', '{"format": "quiesce-bundle/1"}'])
def test_what_is_no_bundle_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="bundle"):
        bundle_of(read_document(text))


def test_export_and_verify_work_without_the_store(finished: tuple[Shell, Done], tmp_path: Path) -> None:
    shell, done = finished
    file = tmp_path / "run.json"
    assert shell.run("export", "last", "-o", str(file)).code == 0
    assert json.loads(shell.run("export", "last").out) == json.loads(file.read_text())
    elsewhere = Shell(tmp_path)
    verified = elsewhere.run("verify", "--bundle", str(file), "--json")
    assert (verified.code, verified.json()["ok"]) == (0, True)
    assert not elsewhere.session.exists()
    from_store = shell.run("verify", done.json()["run_id"], "--json").json()
    assert {check["name"] for check in from_store["checks"]} >= {"receipt_digest", "durable_state", "visible_stream"}
    change_one_byte(file)
    tampered = elsewhere.run("verify", "--bundle", str(file))
    assert tampered.code == 7
    assert "FAILED" in tampered.out
    assert "error VERIFICATION_FAILED" in tampered.err
