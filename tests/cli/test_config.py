"""Settings: flags before environment before file before defaults, and nothing misspelt passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiesce.config import DEFAULT_SESSION, load_config
from quiesce.domain.errors import InvalidInput


def test_without_any_setting_there_is_a_session_in_the_working_directory(tmp_path: Path) -> None:
    config = load_config(environment={}, directory=tmp_path)
    assert (config.session, config.store) == (Path(DEFAULT_SESSION), None)


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "quiesce.toml").write_text('session = "file"\npatience_ms = 3\n[settings]\nlease_ms = 7\nbeat_ms = 2\n')
    file = load_config(environment={}, directory=tmp_path)
    assert (file.session, file.patience_ms, file.settings.lease_ms) == (Path("file"), 3, 7)
    variables = {"QUIESCE_STORE": "postgresql://h/db", "QUIESCE_LEASE_MS": "9", "QUIESCE_PATIENCE_MS": "4"}
    given = load_config(environment=variables, directory=tmp_path)
    assert (given.session, given.store, given.patience_ms) == (None, "postgresql://h/db", 4)
    assert (given.settings.lease_ms, given.settings.beat_ms) == (9, 2)
    flags = load_config(session=Path("flag"), environment=variables, directory=tmp_path)
    assert (flags.session, flags.store) == (Path("flag"), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sesion = 'x'", "sesion"),
        ("[settings]\nlease = 1", "lease"),
        ("[settings]\nlease_ms = 'long'", "lease_ms"),
        ("[settings]\nlease_ms = true", "lease_ms"),
        ("settings = 3", "must be a table"),
        ("session = 'a'\nstore = 'b'", "cannot go with a session"),
        ("not toml", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "quiesce.toml").write_text(text)
    with pytest.raises(InvalidInput, match=words):
        load_config(environment={}, directory=tmp_path)


def test_a_session_and_a_store_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot go with a session"):
        load_config(session=Path("a"), store="sqlite:///b", environment={}, directory=tmp_path)
