"""A producer as a process of its own, which dies as in a power cut: behind its staging, or behind its commit.

`python -m tests.staging.dying KIND URL KEY WHERE`, where WHERE is `staged` or `committed`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.staging.kit import producing, request


async def main(kind: str, url: str, key: str, where: str) -> None:
    """Write the order and stage its command; die."""
    async with producing(kind, url) as producer:
        await producer.order()
        await producer.stage(request(key))
        if where == "committed":
            await producer.commit()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
