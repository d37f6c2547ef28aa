"""User code: async in this task, plain functions in threads of their own.

One daemon thread a call, not a pool: a tool that blocks for an hour must neither starve the others nor keep the process
from ending (an executor joins its threads at exit). A thread cannot be interrupted; whoever stops waiting leaves it behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


async def call_body(body: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Call user code: async in this task, plain code in a thread, so that it never blocks the loop."""
    if inspect.iscoroutinefunction(body):
        return await body(*args, **kwargs)
    result = await call_in_thread(body, args, kwargs)
    return await result if inspect.isawaitable(result) else result


async def call_in_thread(fn: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]) -> T:
    """Call `fn` in a new daemon thread, in a copy of this context, and return or raise what it does."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(fn, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - carried to whoever awaits it
            _deliver(loop, future, None, error)
        else:
            _deliver(loop, future, value, None)

    threading.Thread(target=work, name=f"quiesce {getattr(fn, '__name__', 'call')}", daemon=True).start()
    return await future


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    """Hand the outcome to the loop; nobody is there any more if the process is ending."""

    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"{error!r} cannot be raised into a coroutine"))
        else:
            future.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
