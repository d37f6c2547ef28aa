"""The examples of `docs/staging.md` are run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiosqlite
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from quiesce.staging import stage, stage_async
from quiesce.stores.postgres import PostgresSettings
from tests.staging.kit import World, async_engine, engine

TEXT: Final = (Path(__file__).resolve().parents[2] / "docs" / "staging.md").read_text()
BLOCKS: Final = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.req("CC-20", "CC-12", "CC-67")
def test_the_program_at_the_beginning_runs_and_may_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS[0])
    for _ in range(2):
        done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
        assert (done.returncode, done.stdout) == (0, "settled accepted announced order 1\n"), done.stderr


def examples(schema: str) -> dict[str, Any]:
    """The names that the document's blocks define, for a store in this schema."""
    names: dict[str, Any] = {"__name__": "document"}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102 - the document's own text
    names["stage"], names["stage_async"] = partial(stage, schema=schema), partial(stage_async, schema=schema)
    return names


async def play_sqlalchemy(shown: dict[str, Any], driver: str, where: str) -> None:
    """Place an order with each example of SQLAlchemy."""
    made, async_made = engine(driver, where), async_engine(driver, where)
    shown["with_sqlalchemy_core"](made, 1)
    with Session(made) as session:
        shown["with_sqlalchemy_orm"](session, Order(number=2))
    await shown["with_sqlalchemy_core_async"](async_made, 3)
    async with AsyncSession(async_made) as async_session:
        await shown["with_sqlalchemy_orm_async"](async_session, Order(number=4))
    made.dispose()
    await async_made.dispose()


@pytest.mark.req("CC-20", "CC-67")
@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
async def test_the_examples_for_postgresql_do_what_they_say(world: World, url: str) -> None:
    settings = PostgresSettings.from_url(url)
    where = make_conninfo(settings.conninfo, options=f"-c search_path={settings.schema}")
    shown = examples(settings.schema)
    await play_sqlalchemy(shown, "postgres", where)
    with psycopg.connect(where) as connection:
        shown["with_psycopg"](connection, 5)
    async with await psycopg.AsyncConnection.connect(where) as async_connection:
        await shown["with_psycopg_async"](async_connection, 6)
    with psycopg.connect(where) as connection:
        assert len(connection.execute("SELECT number FROM orders").fetchall()) == 6
    for number in range(1, 7):
        assert await world.intent(f"order {number} was placed") is not None


@pytest.mark.req("CC-20", "CC-67")
@pytest.mark.parametrize("kind", ["sqlite3"], indirect=True)
async def test_the_examples_for_sqlite_do_what_they_say(world: World, url: str) -> None:
    where = url.removeprefix("sqlite:///")
    shown = examples("quiesce")
    await play_sqlalchemy(shown, "sqlite", where)
    async with aiosqlite.connect(where) as connection:
        await shown["with_aiosqlite"](connection, 5)
    for number in range(1, 6):
        assert await world.intent(f"order {number} was placed") is not None
