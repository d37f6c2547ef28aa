"""Named queries, read from SQL files: one file per aggregate and dialect, with equal names and parameters in both.

A query begins with `-- name: <name>`; the comment after it says why it exists or what its shape rests on. Parameters are
written `:name` in every dialect. Nothing else is known here: no driver, no schema, no dialect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from quiesce.domain.errors import invariant

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--[^\n]*")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One statement. `sql` is free of comments; `parameters` in the order of first use."""

    name: str
    reason: str
    sql: str
    parameters: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether the statement changes rows."""
        return self.sql.split(maxsplit=1)[0] in ("INSERT", "UPDATE", "DELETE")

    def pyformat(self) -> bytes:
        """Return the statement with `%(name)b` placeholders: psycopg's binary parameters."""
        return _PARAMETER.sub(r"%(\1)b", self.sql.replace("%", "%%")).encode()


Catalogue = Mapping[str, Query]


def load(package: str) -> dict[str, Query]:
    """Read all `queries/*.sql` of a package. A name that occurs twice is an `InvariantBroken`."""
    found: dict[str, Query] = {}
    for file in sorted(files(package).joinpath("queries").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".sql"):
            for query in parse(file.read_text(encoding="utf-8")):
                invariant(query.name not in found, f"the query {query.name} is defined twice")
                found[query.name] = query
    return found


def parse(text: str) -> list[Query]:
    """Split the text of one file into its queries."""
    _, *parts = _NAME.split(text)
    return [_query(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def _query(name: str, body: str) -> Query:
    reason = " ".join(line.removeprefix("--").strip() for line in body.strip().splitlines() if line.startswith("--"))
    sql = _COMMENT.sub("", body).strip().removesuffix(";").rstrip()
    return Query(name=name, reason=reason, sql=sql, parameters=tuple(dict.fromkeys(_PARAMETER.findall(sql))))
