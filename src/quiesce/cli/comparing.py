"""The verb `compare`: what is durable, what may have been seen, and what one client saw, on one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, SessionOption, StoreOption
from quiesce.cli.output import console, grid, plural, print_json, say
from quiesce.cli.session import Place, find_run, locate, opened
from quiesce.domain.canonical import parse
from quiesce.domain.comparison import Mark, Relation, Seen
from quiesce.domain.errors import InvalidInput, VerificationFailed
from quiesce.domain.evidence import Evidence, EvidenceKind
from quiesce.domain.ids import RunId
from quiesce.runtime.bundle import bundle_of, read_document
from quiesce.runtime.comparison import Compared, compare_bundle
from quiesce.runtime.service import ControlService

_STDIN: Final = Path("-")
_LINE_CHARS: Final = 40
"""How long the drawn line is, beside its labels."""


def compare(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="As for the other verbs.", show_default=False)] = None,
    *,
    seen: Annotated[list[str] | None, typer.Option("--seen", metavar="K:HASH", help="A client's mark. Repeatable.")] = None,
    events: Annotated[Path | None, typer.Option("--events", help="What `watch --json` printed; - for stdin.")] = None,
    bundle: Annotated[Path | None, typer.Option("--bundle", help="A file of `quiesce export` instead of RUN.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Record what differs: it blocks what would build on it.")] = False,
    resolve: Annotated[str | None, typer.Option("--resolve", metavar="GROUNDS", help="Decide about what was recorded.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Who records or decides.")] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what was seen with what is stored."""

    async def work() -> int:
        if (run is None) == (bundle is None):
            raise InvalidInput(field="run", value=run, rule="name one of RUN and --bundle FILE")
        given = [Mark.parse(text, field="--seen") for text in seen or []]
        if record or resolve is not None:
            kept = await _kept(locate(session, store, artifacts), run, given, events, resolve, actor)
            if as_json:
                print_json({**kept.to_json(), "body": parse(kept.body)})
            else:
                console().print(Text(_words_of_record(kept)), soft_wrap=True)
            return Exit.OK
        if bundle is not None:
            compared = _offline(bundle, given, events)
        else:
            async with opened(locate(session, store, artifacts), writes=False) as env:
                service = ControlService(env)
                run_id = await find_run(service, str(run))
                compared = await service.compare(run_id, [*given, *_marks_of(events, run_id)])
        if as_json:
            print_json(compared.to_json())
        else:
            show_comparison(compared)
        if compared.result.relation is not Relation.DIVERGED:
            return Exit.OK
        say(f"error {VerificationFailed.code}: run {compared.run_id}: {words_of(compared)}")
        return Exit.VERIFICATION

    perform(work, as_json=as_json)


async def _kept(
    place: Place, run: str | None, given: Sequence[Mark], events: Path | None, resolve: str | None, actor: str | None
) -> Evidence:
    """Record a contradiction, or with `resolve` the decision about those that were recorded."""
    if run is None:
        raise InvalidInput(field="bundle", value=None, rule="cannot keep a record; name RUN")
    async with opened(place) as env:
        service = ControlService(env)
        run_id = await find_run(service, run)
        if resolve is not None:
            return await service.resolve(run_id, resolve, actor=actor)
        return await service.contradict(run_id, [*given, *_marks_of(events, run_id)], actor=actor)


def _words_of_record(record: Evidence) -> str:
    if record.kind is EvidenceKind.DECISION:
        return f"resolved by {record.actor.name}: what may follow run {record.run_id} is asked again without it"
    return (
        f"recorded for {record.actor.name}: nothing builds on run {record.run_id} any more, "
        f"until a person decides: quiesce compare {record.run_id} --resolve GROUNDS"
    )


def _offline(path: Path, given: Sequence[Mark], events: Path | None) -> Compared:
    try:
        document = read_document(path.read_bytes())
    except OSError as error:
        raise InvalidInput(field="bundle", value=str(path), rule=f"cannot be read ({error.strerror})") from None
    bundle = bundle_of(document)
    return compare_bundle(bundle, [*given, *_marks_of(events, bundle.run_id)])


def _marks_of(path: Path | None, run_id: RunId) -> list[Mark]:
    """Compute a mark for each event that a client kept. Raises `InvalidInput` for what is no beginning of a stream."""
    if path is None:
        return []
    try:
        text = sys.stdin.read() if path == _STDIN else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(field="events", value=str(path), rule=f"cannot be read ({error})") from None
    seen = Seen(run_id)
    for frame in _frames(text.splitlines()):
        seen.take_json(frame)
    return seen.marks()


def _frames(lines: Iterable[str]) -> Iterable[dict[str, object]]:
    """Return the events among the frames; others have no number."""
    for number, line in enumerate(lines, 1):
        try:
            frame = json.loads(line) if line.strip() else {}
        except ValueError:
            frame = None
        if not isinstance(frame, dict):
            raise InvalidInput(
                field=f"events line {number}", value=line, rule="must be a JSON object, as `watch --json` prints it"
            )
        if "seq" in frame:
            yield frame


def show_comparison(compared: Compared) -> None:
    """Print what was found, the numbers on one line, and what they mean."""
    out = console()
    style = "bold red" if compared.result.relation is Relation.DIVERGED else "bold"
    out.print(Text(words_of(compared), style=style), soft_wrap=True)
    out.print(Text(drawn(compared)), soft_wrap=True)
    n = compared.numbers
    rows = [
        ("D", f"event {n.covered_seq}: the last checkpoint holds what was shown up to there"),
        ("stored", f"event {n.stored_seq}"),
        ("V", f"event {n.emitted_seq}: " + ("" if n.emitted_exact else "at most ") + "up to there it may have been seen"),
        ("T", f"receipt {compared.receipt_id}" if compared.receipt_id else "not yet: the run has not ended"),
    ]
    out.print(grid(rows))
    if compared.seen is not None:
        out.print(Text(f"seen    {compared.seen.seq}:{compared.seen.chain}"), soft_wrap=True)


def drawn(compared: Compared) -> str:
    """Return the numbers as points of one line, in their order, with what lies between drawn to scale."""
    n = compared.numbers
    points = [("D", n.covered_seq), ("stored", n.stored_seq), ("V", n.emitted_seq)]
    if compared.seen is not None:
        points.append(("seen", compared.seen.seq))
    if compared.result.diverged_at is not None:
        points.append(("differs", compared.result.diverged_at))
    last = max(1, *(number for _, number in points))
    line, at = "0", 0
    for number in sorted({number for _, number in points}):
        names = ",".join(name for name, its in points if its == number)
        if number > at:
            line += " " + "─" * max(1, round(_LINE_CHARS * (number - at) / last)) + f" {names} {number}"
        else:
            line += f" {names}"
        at = number
    return line + (" ┃ T" if compared.receipt_id else " …")


def words_of(compared: Compared) -> str:
    """Say in a sentence what was found."""
    result, numbers = compared.result, compared.numbers
    agreed = f"the same up to event {result.agreed_through}" if result.agreed_through else "nothing is known to be the same"
    is_client = compared.seen is not None
    match result.relation:
        case Relation.EQUAL if is_client:
            return f"equal: what was seen is what is stored, {plural(numbers.stored_seq, 'event')}"
        case Relation.EQUAL:
            return "equal: the last checkpoint holds all that may have been seen"
        case Relation.DURABLE_AHEAD:
            return f"durable ahead by {plural(result.events, 'event')}: {agreed}"
        case Relation.VISIBLE_AHEAD if is_client:
            return (
                f"visible ahead by {plural(result.events, 'event')}: {agreed}; "
                "what was seen beyond what is stored cannot be judged by anybody"
            )
        case Relation.VISIBLE_AHEAD:
            lost = "" if result.unjudged is None else f"; of {result.unjudged[0]} to {result.unjudged[1]} nothing is stored"
            return f"visible ahead by {plural(result.events, 'event')} that the last checkpoint does not hold{lost}"
        case Relation.DIVERGED if result.never_left:
            return f"diverged: event {result.diverged_at} never left, and was seen; {agreed}"
        case Relation.DIVERGED:
            where = f"at event {result.diverged_at}" if result.is_exact else f"at or before event {result.diverged_at}"
            return f"diverged {where}; {agreed}"
