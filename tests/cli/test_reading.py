"""Reading verbs: stable names in JSON, abbreviations of ids, and the plain views."""

from __future__ import annotations

import pytest

from quiesce.runtime.crashpoints import POINTS
from tests.cli.shell import Done, Shell

RECEIPT_FIELDS = {
    "receipt_id",
    "run_id",
    "thread_id",
    "attempt",
    "occurrence_id",
    "outcome_id",
    "terminal_cause",
    "terminal_reason",
    "reason_text",
    "actor",
    "terminal_status",
    "last_checkpoint_id",
    "last_stream_seq_emitted",
    "last_stream_seq_durable",
    "covered_seq",
    "stored_seq",
    "emitted_exact",
    "terminal_durability",
    "gap",
    "cleanup_attempted",
    "cleanup_completed",
    "escalated",
    "cancel_scope",
    "never_started",
    "unresolved_operations",
    "unconsumed_results",
    "artifacts",
    "usage",
    "resume_policy",
    "resume_rule",
    "same_run_may_continue",
    "admissible",
    "durable_state_digest",
    "visible_state_digest_at_abort",
    "visible_state_digest_exact",
    "store_durability",
    "previous_receipt_digest",
    "digest_algorithm",
    "published_at",
    "terminal_receipt_digest",
}


@pytest.mark.req("TR-02", "TR-48", "TR-62")
def test_the_receipt_has_its_documented_fields(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    receipt = shell.run("receipt", "last", "--json").json()
    assert set(receipt) >= RECEIPT_FIELDS
    assert receipt == done.json()["receipt"]


@pytest.mark.req("RR-44")
def test_inspect_answers_the_three_questions(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    seen = shell.run("inspect", "last", "--json").json()
    assert set(seen["authority"]) == {"may_continue", "read_only", "must_stop"}
    assert seen["run_id"] == done.json()["run_id"]
    assert len(seen["authority"]["read_only"]) == len(seen["operations"])
    plain = shell.run("inspect", "last").out
    for words in ("journal", "may continue", "may only be read again", "must stop", "attempts", "report.md"):
        assert words in plain


def test_runs_are_found_by_beginning_ending_and_last(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    run_id = done.json()["run_id"]
    for name in (run_id, run_id[:13], run_id[-8:], "last"):
        assert shell.run("explain", name, "--json").json()["run_id"] == run_id


def test_list_and_explain_are_plain(finished: tuple[Shell, Done]) -> None:
    shell, done = finished
    listed = shell.run("list").out
    assert done.json()["run_id"] in listed
    assert shell.run("list", "--status", "failed", "--json").json() == []
    assert "It is completed" in shell.run("explain", "last").out


def test_doctor_reports_versions_schema_and_durability(finished: tuple[Shell, Done]) -> None:
    shell, _ = finished
    report = shell.run("doctor", "--json").json()
    found = {finding["name"]: finding for finding in report["findings"]}
    assert report["ok"]
    assert found["journal"]["found"] == "wal"
    assert found["durability"]["found"] == "full"
    assert {"python", "sqlite", "schema", "integrity", "clock"} <= set(found)


def test_crash_points_are_listed(shell: Shell) -> None:
    assert shell.run("crash-points", "--json").json() == dict(POINTS)
