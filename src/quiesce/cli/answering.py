"""For people whom runs ask: `inbox` lists what is open over all threads, `answer` settles one."""

from __future__ import annotations

import getpass
import json
from typing import Annotated

import typer
from rich.text import Text

from quiesce.cli.exits import Exit, perform
from quiesce.cli.options import ArtifactsOption, JsonOption, SessionOption, StoreOption
from quiesce.cli.output import console, listing, moment, print_json
from quiesce.cli.session import Place, locate, opened
from quiesce.domain.canonical import Json
from quiesce.domain.errors import InvalidInput
from quiesce.domain.interactions import Interaction
from quiesce.runtime.service import ControlService


def inbox(*, session: SessionOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what runs ask of people, over all threads."""

    async def work() -> int:
        place = locate(session, store, None)
        async with opened(place, writes=False) as env:
            questions = await ControlService(env).questions()
        if as_json:
            print_json([question.to_json() for question in questions])
        elif questions:
            _show(questions, place)
        else:
            console().print(Text("nothing waits for an answer"))
        return Exit.OK

    perform(work, as_json=as_json)


def _show(questions: list[Interaction], place: Place) -> None:
    out = console()
    rows = [(q.id, q.run_id, q.prompt.decode(), q.schema.decode(), moment(q.expires_at)) for q in questions]
    out.print(listing(("question", "run", "asks", "answer", "expires"), rows))
    out.print(Text(f"answer one: quiesce answer {questions[0].id} --value JSON{place.flags}"), soft_wrap=True)


def answer(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="A question's id, as `inbox` shows it.")],
    *,
    value: Annotated[str, typer.Option("--value", metavar="JSON", help="The answer, by the question's schema.")],
    actor: Annotated[str | None, typer.Option("--actor", help="Who answers. [default: your login name]")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Makes it safe to send the same answer again.")] = None,
    digest: Annotated[str | None, typer.Option("--digest", help="Refuse any question but the one of this digest.")] = None,
    session: SessionOption = None,
    store: StoreOption = None,
    artifacts: ArtifactsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question of a run."""

    async def work() -> int:
        place, said = locate(session, store, artifacts), _read(value)
        async with opened(place) as env:
            who = actor or getpass.getuser()
            answered = await ControlService(env).answer(question, said, actor=who, key=key, digest=digest)
        if as_json:
            print_json(answered.to_json())
        else:
            out = console()
            out.print(Text(f"answered: {(answered.answer or b'').decode()}"))
            out.print(Text(f"the run may go on: quiesce resume {answered.run_id}{place.flags}"), soft_wrap=True)
        return Exit.OK

    perform(work, as_json=as_json)


def _read(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError as error:
        rule = f"is not JSON ({error}); text needs quotes of its own: --value '\"yes\"'"
        raise InvalidInput(field="value", value=text, rule=rule) from None
    return value
