"""The listener: carries rings of other processes to the bells of this one.

Nothing depends on it; every bell has a timeout, and polling alone suffices. It comes back for ever: a connection that breaks
is replaced after a growing pause, and one on which nothing comes any more, without an error, is found out by a question that
stays unanswered (C15). While it was away rings were missed, so each return rings every bell.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
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

    def __init__(self, settings: PostgresSettings, notifier: LocalNotifier) -> None:
        self._settings = settings
        self._notifier = notifier
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connected = threading.Event()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self.reconnects = 0
        """How often a lost connection was to be replaced."""

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
        """End the thread. Idempotent; blocks for no longer than an attempt to connect."""
        with self._lock:
            self._closing.set()
            if self._connection is not None:
                _shut(self._connection)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        pause_ms = _PAUSE_MS
        while not self._closing.is_set():
            try:
                with contextlib.closing(connect(self._settings)) as connection:
                    pause_ms = _PAUSE_MS
                    self._listen(connection)
            except psycopg.Error:
                pass  # lost: counted below, and visible as `is_connected`
            if not self._closing.wait(pause_ms / 1000):
                self.reconnects += 1
                pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    def _listen(self, connection: Connection) -> None:
        """Ring what is heard, until closed. Raises `psycopg.Error` when the connection is lost."""
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._settings.schema)))
        with self._lock:
            self._connection = connection
        self._connected.set()
        try:
            if self.reconnects:
                self._notifier.ring_all()
            while not self._closing.is_set():
                heard = list(connection.notifies(timeout=self._settings.ping_ms / 1000, stop_after=1))
                self._notifier.ring_all({notice.payload: None for notice in heard})
                if not heard:
                    self._ask(connection)
        finally:
            self._connected.clear()
            with self._lock:
                self._connection = None

    def _ask(self, connection: Connection) -> None:
        """Ask the server something. Without an answer in time the socket is shut, which ends the wait with an error."""
        timer = threading.Timer(self._settings.ping_ms / 1000, _shut, [connection])
        timer.start()
        try:
            connection.execute(b"SELECT 1")
        finally:
            timer.cancel()
            timer.join()


def _shut(connection: Connection) -> None:
    """End whatever waits on the connection's socket, from another thread. The connection itself stays its owner's."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
