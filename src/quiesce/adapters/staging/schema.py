"""Whether the tables that a producer's connection shows are those of a store that this version writes to.

Knows both dialects' migrations and nothing of their drivers. Changes nothing: bringing a schema up to date is for whoever
opens the store, never for a producer's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from quiesce.domain.errors import StoreError
from quiesce.stores.migrate import Applied, Migration, load, missing
from quiesce.stores.sql.queries import Row


def check_schema(package: str, rows: Iterable[Row]) -> None:
    """Raise unless exactly the migrations of this package were applied.

    Raises `SchemaTooNew`, or `StoreError` for a schema of an earlier version or one with other content.
    """
    lacking = missing(_known(package), [Applied(number=number, name=name, checksum=checksum) for number, name, checksum in rows])
    if lacking:
        raise StoreError(
            f"the store lacks migration {lacking[0].number} ({lacking[0].name}): open it once with this version. "
            "Nothing was staged",
            missing=[migration.number for migration in lacking],
        )


@cache
def _known(package: str) -> list[Migration]:
    return load(package)
