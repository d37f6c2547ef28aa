"""A remote owner to try things on: a post office with a book of its own beside the store, and a line that may fail.

A letter may say where its line fails: `answer` (it is posted, and the answer is lost on its way back) or `request` (it is
lost on its way there). The book is the office's own: what stands in it took effect, whatever anybody was told.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from quiesce.cases.destination import Destination, append_line, read_lines
from quiesce.domain.canonical import parse
from quiesce.domain.commands import Kind, Target
from quiesce.domain.deliveries import Absent, Admission, AdmissionId, AdmissionReceipt, Command
from quiesce.runtime.commands import CommandRequest
from quiesce.runtime.environment import Environment
from quiesce.runtime.owners import Delivery, RemoteOwner

BOOK: Final = "post.log"
POST: Final = Kind(name="post", is_barrier=False)


def letter(to: str, *, producer_key: str, fails: str = "") -> CommandRequest:
    """Return the command that posts a letter. `fails`: where its line fails, `answer` or `request`."""
    return CommandRequest(
        kind=POST,
        target=Target(owner=PostOffice.name, id=to),
        producer="demo",
        producer_key=producer_key,
        subject="ada",
        payload={"to": to, "fails": fails},
    )


class PostOffice(RemoteOwner):
    """Posts each letter once. It cannot prove that a lost request will not arrive after all."""

    name: ClassVar[str] = "post"
    kinds: ClassVar[tuple[Kind, ...]] = (POST,)

    def __init__(self, destination: Destination) -> None:
        self._book = destination.directory / BOOK

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:  # noqa: ARG002 - as asked
        """Look into the book."""
        with self._open_book() as entries:
            found = entries.get(command.key)
        return found or Absent(excludes_in_flight=False)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """Post the letter, unless it stands in the book."""
        payload = parse(delivery.command.intent.payload)
        fails = payload.get("fails") if isinstance(payload, dict) else ""
        if fails == "request":
            raise TimeoutError("no answer")
        with self._open_book() as entries:
            receipt = entries.get(delivery.command.key)
            if receipt is None:
                receipt = _receipt(env, delivery.command)
                append_line(self._book, json.dumps(receipt.to_json()))
        if fails == "answer":
            raise ConnectionResetError("the line was cut")
        return receipt

    @contextmanager
    def _open_book(self) -> Iterator[dict[str, AdmissionReceipt]]:
        """Give the book's receipts by command key, and keep it shut to others meanwhile."""
        self._book.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._book):
            receipts = [AdmissionReceipt.from_json(json.loads(line)) for line in read_lines(self._book)]
            yield {receipt.command_key: receipt for receipt in receipts}


def _receipt(env: Environment, command: Command) -> AdmissionReceipt:
    return AdmissionReceipt(
        id=AdmissionId(env.new_id()),
        command_key=command.key,
        verdict=Admission.ACCEPTED,
        reason="",
        effect_ref=f"letter to {command.target.id}",
        at=env.clock.now(),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
