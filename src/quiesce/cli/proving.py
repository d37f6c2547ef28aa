"""Verbs about proof: `verify` computes again what a receipt claims, `export` takes the evidence elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, RunArgument, SessionOption, StoreOption
from quiesce.cli.output import console, listing, print_json, say, shortened
from quiesce.cli.session import Place, find_run, locate, opened
from quiesce.domain.errors import InvalidInput, StoreReadOnly, VerificationFailed
from quiesce.runtime.bundle import bundle_of, gather_tx, read_document
from quiesce.runtime.service import ControlService
from quiesce.runtime.verification import Check, verify, verify_document, verify_files

_STDOUT = Path("-")


def verify_run(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="As for the other verbs.", show_default=False)] = None,
    *,
    bundle: Annotated[Path | None, typer.Option("--bundle", help="A file of `quiesce export` instead.")] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a receipt."""

    async def work() -> int:
        if (run is None) == (bundle is None):
            raise InvalidInput(field="run", value=run, rule="name one of RUN and --bundle FILE")
        if bundle is not None:
            subject, checks = f"bundle {bundle}", check_file(bundle)
        else:
            subject, checks = await _check_run(locate(session, store, artifacts), str(run))
        if as_json:
            print_json({"subject": subject, "ok": all(c.ok for c in checks), "checks": [c.to_json() for c in checks]})
        else:
            show_checks(subject, checks)
        failed = [check.name for check in checks if not check.ok]
        if failed:
            say(f"error {VerificationFailed.code}: {subject}: {', '.join(failed)}")
        return Exit.VERIFICATION if failed else Exit.OK

    perform(work, as_json=as_json)


def export(
    run: RunArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - for stdout.")] = _STDOUT,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
) -> None:
    """Export a run's evidence."""

    async def work() -> int:
        async with opened(locate(session, store, artifacts), writes=False) as env:
            run_id = await find_run(ControlService(env), run)
            bundle = await env.store.read(lambda tx: gather_tx(tx, run_id))
        text = json.dumps(bundle.to_json(), indent=1, ensure_ascii=False)
        if output == _STDOUT:
            print(text)
            return Exit.OK
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreReadOnly(f"{output}: cannot be written ({error.strerror})") from error
        say(f"run {run_id}: {len(bundle.events)} events, {len(bundle.checkpoints)} checkpoints -> {output}")
        return Exit.OK

    perform(work, as_json=False)


def check_file(path: Path) -> list[Check]:
    """Check a bundle file by itself. Raises `InvalidInput` for a file that is no bundle."""
    try:
        document = read_document(path.read_bytes())
    except OSError as error:
        raise InvalidInput(field="bundle", value=str(path), rule=f"cannot be read ({error.strerror})") from None
    return [verify_document(document), *verify(bundle_of(document))]


async def _check_run(place: Place, name: str) -> tuple[str, list[Check]]:
    async with opened(place, writes=False) as env:
        service = ControlService(env)
        run_id = await find_run(service, name)
        bundle = await env.store.read(lambda tx: gather_tx(tx, run_id))
        receipt = await service.receipt(run_id)
        return f"run {run_id}", [*verify(bundle), *verify_files(receipt.artifacts, env.artifacts)]


def show_checks(subject: str, checks: Sequence[Check]) -> None:
    """Print checks, a line each; what a failed one expected and found below it."""
    out = console()
    out.print(Text(subject, style="bold"), soft_wrap=True)
    rows = [(Text("ok", style="green") if c.ok else Text("FAILED", style="bold red"), c.name, c.about) for c in checks]
    out.print(listing(("", "check", "what holds"), rows))
    for check in checks:
        if not check.ok:
            out.print(Text(f"\n{check.name}\n  expected {_short(check.expected)}\n  found    {_short(check.found)}"))


def _short(value: object) -> str:
    text = shortened(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 600 else text[:597] + "..."
