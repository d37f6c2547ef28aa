"""A door service: a small HTTP service with a store of its own, that opens doors on command, each command once.

    python service.py --database doors.db --port 8200

It is the far side of a remote owner. Three promises make it one, each kept in one transaction of its own database:

* an admission is deduplicated by the command key, for ever: the second one gets the first receipt;
* every request carries the fence of the claim under which it is made, and whoever was seen under a higher one is obeyed:
  a lower fence is refused, so that a request that got lost on its way cannot act when it arrives after all;
* asking for a receipt counts as being seen. "None here" therefore also means "and none will come from an older claim".

    GET  /receipts/{command key}?fence=3        200 the receipt, or 404 {"excludes_in_flight": true}
    POST /admissions                            200 the receipt, 409 for a stale fence
         {"command_key": ..., "fence": 3, "subject": "ada", "door": "front", "kind": "open"}
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (command_key TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS receipt (
  command_key TEXT PRIMARY KEY, admission_id TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
  effect_ref TEXT NOT NULL, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS opening (id TEXT PRIMARY KEY, door TEXT NOT NULL, subject TEXT NOT NULL);
"""
BODY_BYTES_MAX = 64 * 1024


class StaleFence(Exception):
    """A later claim of this command was seen before."""


class Doors:
    """The service's own rules over its own database. Each method is one transaction."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SCHEMA)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give a connection in one transaction: committed at the end, or rolled back by an exception."""
        with closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection

    def receipt(self, command_key: str, fence: int) -> dict[str, object] | None:
        """Return the receipt of a command, and remember that a claim with this fence has asked."""
        with self._connected() as connection:
            self._see(connection, command_key, fence)
            row = connection.execute("SELECT * FROM receipt WHERE command_key = ?", (command_key,)).fetchone()
        return None if row is None else dict(row)

    def admit(self, command: dict[str, object]) -> dict[str, object]:
        """Open a door, or refuse to, once per command key. Raises `StaleFence` if a later claim was seen."""
        key, door, subject = str(command["command_key"]), str(command["door"]), str(command["subject"])
        fence = int(str(command["fence"]))
        with self._connected() as connection:
            known = connection.execute("SELECT * FROM receipt WHERE command_key = ?", (key,)).fetchone()
            if known is not None:
                return dict(known)
            if not self._see(connection, key, fence):
                raise StaleFence
            receipt = self._decide(connection, key, door, subject)
            connection.execute(
                "INSERT INTO receipt VALUES (:command_key, :admission_id, :verdict, :reason, :effect_ref, :at)", receipt
            )
        return receipt

    @staticmethod
    def _see(connection: sqlite3.Connection, command_key: str, fence: int) -> bool:
        """Remember a fence; False if a higher one was seen."""
        changed = connection.execute(
            "INSERT INTO seen VALUES (?, ?) ON CONFLICT (command_key)"
            " DO UPDATE SET fence = excluded.fence WHERE excluded.fence >= fence",
            (command_key, fence),
        )
        return changed.rowcount == 1

    @staticmethod
    def _decide(connection: sqlite3.Connection, key: str, door: str, subject: str) -> dict[str, object]:
        opening_id, verdict, reason = str(uuid.uuid4()), "accepted", ""
        if subject == "stranger":
            opening_id, verdict, reason = "", "rejected", "strangers open no doors"
        else:
            connection.execute("INSERT INTO opening VALUES (?, ?, ?)", (opening_id, door, subject))
        return {
            "command_key": key,
            "admission_id": str(uuid.uuid4()),
            "verdict": verdict,
            "reason": reason,
            "effect_ref": opening_id,
            "at": time.time_ns() // 1000,
        }

    def openings(self) -> int:
        """Return how often a door was opened."""
        with self._connected() as connection:
            return int(connection.execute("SELECT count(*) FROM opening").fetchone()[0])


class Handler(BaseHTTPRequestHandler):
    """The HTTP face."""

    doors: Doors

    def do_GET(self) -> None:
        """Answer for a receipt."""
        parts = urlsplit(self.path)
        place, _, key = parts.path.lstrip("/").partition("/")
        fence = parse_qs(parts.query).get("fence", [""])[0]
        if place != "receipts" or not key or not fence.isdigit():
            return self._answer(400, {"error": "ask for /receipts/{command key}?fence=N"})
        receipt = self.doors.receipt(unquote(key), int(fence))
        return self._answer(404, {"excludes_in_flight": True}) if receipt is None else self._answer(200, receipt)

    def do_POST(self) -> None:
        """Admit a command."""
        length = int(self.headers.get("Content-Length", "0"))
        if self.path != "/admissions" or length > BODY_BYTES_MAX:
            return self._answer(400, {"error": f"post at most {BODY_BYTES_MAX} bytes to /admissions"})
        try:
            return self._answer(200, self.doors.admit(json.loads(self.rfile.read(length))))
        except StaleFence:
            return self._answer(409, {"error": "stale fence"})
        except (KeyError, ValueError) as error:
            return self._answer(400, {"error": f"{type(error).__name__}: {error}"})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8200, help="0 takes any; the port is printed")
    arguments = parser.parse_args()
    Handler.doors = Doors(arguments.database)
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
