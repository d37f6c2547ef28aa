"""The list of built-in cases, by name, and the registry through which a worker of a session can advance any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from quiesce.cases import effects, families, reports, tools
from quiesce.cases.destination import Destination
from quiesce.cases.post import PostOffice
from quiesce.domain.errors import NotFound
from quiesce.runtime.owners import Owner
from quiesce.runtime.registry import Agent, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A built-in case. `build` makes its agents over a destination: the case's own first, then those it spawns."""

    name: str
    summary: str
    build: Callable[[Destination], tuple[Agent, ...]]


_ALL: Final = (
    Case(name="durable-report", summary="plans, looks things up, streams a report and saves it", build=reports.durable_report),
    Case(name="slow-stream", summary="streams many words slowly, with a checkpoint now and then", build=reports.slow_stream),
    Case(name="live-stream", summary="a small real model streams (extra local-model)", build=reports.live_stream),
    Case(name="once-effect", summary="one effect that may never be repeated", build=effects.once_effect),
    Case(name="probe-effect", summary="one effect whose destination can be asked about it", build=effects.probe_effect),
    Case(name="idempotent-effect", summary="one effect whose destination knows its key again", build=effects.idempotent_effect),
    Case(name="pending-model", summary="a model request that stays unanswered (QUIESCE_CASE_HOLD)", build=reports.pending_model),
    Case(name="thread-tool", summary="a blocking tool in a thread, which no cancel can interrupt", build=tools.thread_tool),
    Case(name="process-tool", summary="a blocking tool in a process, which a cancel can end", build=tools.process_tool),
    Case(name="retrying", summary="a step that fails twice, with stored back-off, then succeeds", build=tools.retrying),
    Case(name="parallel", summary="three effects at once, two of them by the same tool", build=effects.parallel),
    Case(name="nested", summary="effects within steps, at depths 0, 1 and 2", build=effects.nested),
    Case(name="family", summary="a parent, three children, a grandchild each, all with effects", build=families.family),
    Case(name="approval", summary="asks a person before an effect that may never be repeated", build=effects.approval),
    Case(name="sleeper", summary="a long timer: it waits without a process", build=families.sleeper),
)

CASES: Final[Mapping[str, Case]] = {case.name: case for case in _ALL}
"""Every built-in case, by name."""


def case_named(name: str) -> Case:
    """Return a case. Raises `NotFound` that lists them all."""
    case = CASES.get(name)
    if case is None:
        raise NotFound("case", name, "the built-in cases are " + ", ".join(CASES))
    return case


def agents_of(name: str, destination: Destination) -> tuple[Agent, ...]:
    """Return the agents of one case, its own first. Raises `NotFound`."""
    return case_named(name).build(destination)


def owners_of(destination: Destination) -> tuple[Owner, ...]:
    """Return the built-in owners of commands, over a session's destination."""
    return (PostOffice(destination),)


def registry(destination: Destination) -> Registry:
    """Return a registry of every case's agents."""
    return Registry(agent for case in _ALL for agent in case.build(destination))
