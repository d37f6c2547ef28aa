"""The near side of the door service: a remote owner, forty lines of HTTP.

    q = Quiesce("sqlite:///house.db", owners=[DoorOwner("http://127.0.0.1:8200")])
    await q.stage(open_door("front", subject="ada", producer="bell", producer_key="ring-7"))

Whatever goes wrong on the way raises, and what raises is never taken for absence: an admission without an answer stays
`unknown` until the service's receipt shows how it ended.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import ClassVar
from urllib.parse import quote

from quiesce.domain.canonical import parse
from quiesce.owners import (
    Absent,
    AdmissionReceipt,
    Command,
    CommandRequest,
    Delivery,
    Environment,
    Kind,
    RemoteOwner,
    StaleClaim,
    Target,
)

OPEN = Kind(name="open")


def open_door(door: str, *, subject: str, producer: str, producer_key: str) -> CommandRequest:
    """Return the command that opens a door."""
    return CommandRequest(
        kind=OPEN,
        target=Target(owner="door", id=door),
        producer=producer,
        producer_key=producer_key,
        subject=subject,
        payload={"door": door},
    )


class DoorOwner(RemoteOwner):
    """Reads and admits at the door service."""

    name: ClassVar[str] = "door"
    kinds: ClassVar[tuple[Kind, ...]] = (OPEN,)

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self._url = url
        self._timeout_s = timeout_s

    async def read_receipt(self, env: Environment, command: Command) -> AdmissionReceipt | Absent:
        """Ask for the receipt, as the holder of this claim."""
        path = f"/receipts/{quote(command.key, safe='')}?fence={command.fence}"
        status, body = await asyncio.to_thread(self._request, path, None)
        if status == 404:
            return Absent(excludes_in_flight=body["excludes_in_flight"] is True)
        return _receipt(status, body)

    async def admit(self, env: Environment, delivery: Delivery) -> AdmissionReceipt:
        """Ask the service to open the door."""
        command = delivery.command
        wanted = {"command_key": command.key, "fence": delivery.claim.fence, "subject": command.intent.subject}
        payload = parse(command.intent.payload)
        door = payload["door"] if isinstance(payload, dict) else ""
        status, body = await asyncio.to_thread(self._request, "/admissions", {**wanted, "door": door})
        if status == 409:
            raise StaleClaim(f"the service has seen a later claim of {command.key}", command_key=command.key)
        return _receipt(status, body)

    def _request(self, path: str, body: dict[str, object] | None) -> tuple[int, dict[str, object]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def _receipt(status: int, body: dict[str, object]) -> AdmissionReceipt:
    """Read a receipt; anything else is no answer at all."""
    if status != 200:
        raise ValueError(f"the door service answered {status}")
    return AdmissionReceipt.from_json(body)
