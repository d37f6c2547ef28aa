"""Errors: one clear line, a code, an exit code; never a traceback, and nothing is changed."""

from __future__ import annotations

import sqlite3

import pytest

from tests.cli.shell import Done, Shell

UNKNOWN = "01a22ec6-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "words"),
    [
        (("start", "--case", "no-such"), 3, "NOT_FOUND", "durable-report"),
        (("start", "nomodule:agent"), 3, "NOT_FOUND", "nomodule"),
        (("start", "json:agent"), 3, "NOT_FOUND", "no agent"),
        (("start", "json:dumps"), 2, "INVALID_INPUT", "@quiesce.agent"),
        (("start",), 2, "INVALID_INPUT", "--case"),
        (("start", "--case", "family", "--input", "{oops"), 2, "INVALID_INPUT", "not JSON"),
        (("start", "--case", "family", "--input", '{"ticks": "three"}'), 2, "INVALID_INPUT", "ticks"),
        (("start", "--case", "family", "--input", '{"tocks": 3}'), 2, "INVALID_INPUT", "family(ticks, delay_ms)"),
        (("start", "--case", "family", "--budget", "many"), 2, "INVALID_INPUT", "UNIT=LIMIT"),
        (("start", "--case", "family", "--timeout", "-1"), 2, "INVALID_INPUT", "timeout"),
        (("list", "--store", "memory://"), 2, "INVALID_INPUT", "memory"),
        (("list", "--store", "mysql://x"), 2, "INVALID_INPUT", "must begin with"),
        (("list",), 3, "NOT_FOUND", "session"),
        (("verify",), 2, "INVALID_INPUT", "--bundle"),
        (("verify", "--bundle", "no-such.json"), 2, "INVALID_INPUT", "cannot be read"),
        (("start", "--case", "family", "--session", "/dev/null/x"), 6, "STORE_READ_ONLY", "cannot be made"),
    ],
)
@pytest.mark.req("C01")
def test_what_cannot_be_done_is_said_in_one_line(
    shell: Shell, arguments: tuple[str, ...], exit_code: int, code: str, words: str
) -> None:
    done = shell.run(*arguments, "--json", QUIESCE_SESSION="" if "--store" in arguments else str(shell.session))
    assert (done.code, done.error()["code"]) == (exit_code, code)
    assert words in done.error()["message"]
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not shell.session.exists()


@pytest.mark.req("C01")
def test_an_unknown_run_is_not_found_by_any_verb(finished: tuple[Shell, Done]) -> None:
    shell, _ = finished
    for verb in ("inspect", "resume", "cancel", "watch", "receipt", "verify", "reconcile"):
        done = shell.run(verb, UNKNOWN, "--json")
        assert (verb, done.code, done.error()["code"]) == (verb, 3, "NOT_FOUND")
    assert shell.run("inspect", "01a2-nonsense").code == 2
    assert shell.run("reconcile", "last", "99", "--verdict", "give_up", "--grounds", "x").code == 3


def test_a_run_without_a_receipt_says_that_it_is_not_terminal(shell: Shell) -> None:
    shell.run("start", "--case", "family", "--detach")
    for verb in ("receipt", "verify"):
        done = shell.run(verb, "last", "--json")
        assert (done.code, done.error()["code"]) == (4, "SETTLEMENT_PENDING")


def test_the_file_of_somebody_else_is_not_touched(shell: Shell) -> None:
    shell.session.mkdir()
    shell.database.write_text("dear diary\n" * 200)
    done = shell.run("list", "--json")
    assert (done.code, done.error()["code"]) == (6, "NOT_A_STORE")
    assert shell.run("start", "--case", "family").code == 6
    assert shell.run("doctor").code == 6
    assert shell.database.read_text() == "dear diary\n" * 200


def test_a_database_of_another_application_is_not_touched(shell: Shell) -> None:
    shell.session.mkdir()
    with sqlite3.connect(shell.database) as connection:
        connection.execute("CREATE TABLE diary (entry TEXT)")
    connection.close()
    before = shell.database.read_bytes()
    done = shell.run("start", "--case", "family", "--json")
    assert (done.code, done.error()["code"]) == (6, "NOT_A_STORE")
    assert shell.database.read_bytes() == before


def test_a_store_of_a_later_version_is_refused(shell: Shell) -> None:
    shell.run("start", "--case", "family", "--detach")
    with sqlite3.connect(shell.database) as connection:
        connection.execute("INSERT INTO migration VALUES (9999, 'from_the_future', 'x', 0)")
    connection.close()
    done = shell.run("list", "--json")
    assert (done.code, done.error()["code"]) == (6, "SCHEMA_TOO_NEW")
    assert "hint: a later version" in shell.run("list").err


def test_a_misspelt_setting_is_an_error_and_not_a_default(shell: Shell) -> None:
    (shell.directory / "quiesce.toml").write_text("[settings]\nleese_ms = 5\n")
    done = shell.run("list", "--json")
    assert (done.code, done.error()["code"]) == (2, "INVALID_INPUT")
    assert "leese_ms" in done.error()["message"]


def test_an_unknown_verb_or_option_is_a_usage_error(shell: Shell) -> None:
    assert shell.run("serve").code == 2
    assert shell.run("start", "--cse", "family").code == 2
    assert shell.run("start", "--case", "family", "--durability", "maybe").code == 2
