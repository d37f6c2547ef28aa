"""The listener: carries rings of other processes to the bells of this one.

Nothing depends on it; every bell has a timeout, and polling alone suffices. It comes back for ever: a connection that breaks
is replaced after a growing pause, and one that has gone silently deaf is found out by a notification of our own that it
must hear (C15). While it was away rings were missed, so each return rings every bell.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from quiesce.stores.notifier import LocalNotifier
from quiesce.stores.postgres.connection import Connection, connect
from quiesce.stores.postgres.settings import PostgresSettings

_PAUSE_MS: Final = 100
_PAUSE_MS_MAX: Final = 5000


class Listener:
    """Owns a thread and a connection, both made when `start` is first called."""

    def __init__(self, settings: PostgresSettings, notifier: LocalNotifier, ping: Callable[[], None]) -> None:
        """Prepare. `ping` makes every listener of the schema hear an empty topic; it may raise `psycopg.Error`."""
        self._settings = settings
        self._notifier = notifier
        self._ping = ping
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connected = threading.Event()
        self._thread: threading.Thread | None = None
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        """Whether rings of other processes arrive now, as far as is known."""
        return self._connected.is_set()

    def wait_connected(self, timeout_ms: float) -> bool:
        """Block until connected; return False after the timeout."""
        return self._connected.wait(timeout_ms / 1000)

    def start(self) -> None:
        """Begin to listen, unless that has begun. Does not wait for the connection."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._work, name="quiesce-listener", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent; blocks for as long as a ping takes."""
        with self._lock:
            self._closing.set()
            thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with contextlib.suppress(psycopg.Error):  # unheard, it ends with its own wait
            self._ping()
        thread.join(timeout=self._settings.ping_ms / 1000)

    def _work(self) -> None:
        pause_ms = _PAUSE_MS
        while not self._closing.is_set():
            try:
                with connect(self._settings) as connection:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._settings.schema)))
                    self._connected.set()
                    pause_ms = _PAUSE_MS
                    if self.reconnects:
                        self._notifier.ring_all()
                    self._listen(connection)
            except psycopg.Error:
                pass  # lost: counted below, and visible as `is_connected`
            finally:
                self._connected.clear()
            if not self._closing.wait(pause_ms / 1000):
                self.reconnects += 1
                pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    def _listen(self, connection: Connection) -> None:
        """Ring what is heard; return once the connection is found deaf, raise `psycopg.Error` when it is lost."""
        is_tested = False
        while not self._closing.is_set():
            # Ends with the first packet heard, which may hold several: whoever waits for more hears nothing till the timeout.
            heard = list(connection.notifies(timeout=self._settings.ping_ms / 1000, stop_after=1))
            if heard:
                is_tested = False
                self._notifier.ring_all({notice.payload: None for notice in heard})
            elif is_tested:
                return
            else:
                self._ping()
                is_tested = True
