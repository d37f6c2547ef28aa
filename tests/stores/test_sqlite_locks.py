"""Two stores on one file in one process: a counterexample that once broke the SQLite store.

Opening a store looks at the header of its file. With POSIX locks, closing a descriptor of one's own drops all locks that the
process holds on the file: of the store that was open already, too. Another process that then closes the file takes itself
for the last, copies the log into the file and removes it, under the feet of the open store. So SQLite itself must look.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from quiesce.bootstrap import open_store
from quiesce.domain.ids import ThreadId
from quiesce.domain.threads import Thread

_OPEN_AND_CLOSE = "import asyncio, sys; from quiesce.bootstrap import open_store; asyncio.run(open_store(sys.argv[1]).close())"
_LOOK = (
    "import asyncio, sys; from quiesce.bootstrap import open_store; store = open_store(sys.argv[1]); "
    "found = asyncio.run(store.read(lambda tx: tx.threads.get('t'))); sys.exit(found is None)"
)


@pytest.mark.req("C87", "QA-05")
async def test_a_commit_is_not_lost_when_a_second_store_was_opened_on_the_same_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first = await asyncio.to_thread(open_store, url)
    second = await asyncio.to_thread(open_store, url)
    await second.close()
    assert await _in_another_process(_OPEN_AND_CLOSE, url) == 0
    await first.transact(lambda tx: tx.threads.insert(Thread(id=ThreadId("t"), tenant="x", created_at=tx.now)))
    found = await _in_another_process(_LOOK, url)
    await first.close()
    assert found == 0


async def _in_another_process(code: str, url: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, url)
    return await process.wait()
