"""Which code a command works with: a built-in case, or agents of the user's own, named `module:agent`."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from quiesce.cases import CASES, agents_of, owners_of, registry
from quiesce.cli.session import Place
from quiesce.domain.errors import InvalidInput, NotFound
from quiesce.domain.runs import Run
from quiesce.runtime.codec import decode_arguments, encode
from quiesce.runtime.owners import LocalOwner, Owner, RemoteOwner
from quiesce.runtime.registry import Agent, Registry, check_bindings


def load_agents(target: str) -> list[Agent]:
    """Import `module:agent` (or `module`), with the working directory on the path; the named agent comes first.

    All other agents of the module come along, since the named one may spawn them. Raises `NotFound`, `InvalidInput`.
    """
    module_name, _, name = target.partition(":")
    module = _import(module_name)
    agents = [value for value in vars(module).values() if isinstance(value, Agent)]
    if not name:
        if not agents and not load_owners([target]):
            rule = "names a module without agents (@quiesce.agent) and without owners"
            raise InvalidInput(field="agent", value=target, rule=rule)
        return agents
    chosen = vars(module).get(name)
    if chosen is None:
        known = ", ".join(n for n, value in vars(module).items() if isinstance(value, Agent)) or "no agent"
        raise NotFound("agent", target, f"module {module_name} has {known}")
    if not isinstance(chosen, Agent):
        raise InvalidInput(field="agent", value=target, rule="is not declared with @quiesce.agent")
    return [chosen, *(agent for agent in agents if agent is not chosen)]


def owners_for(targets: Iterable[str], place: Place) -> list[Owner]:
    """Return the owners of these modules, and the built-in ones where a place can have them."""
    return [*(owners_of(place.destination()) if place.artifacts is not None else ()), *load_owners(targets)]


def load_owners(targets: Iterable[str]) -> list[Owner]:
    """Return the owners that these modules hold at their top level: instances of `LocalOwner` and `RemoteOwner`."""
    modules = dict.fromkeys(target.partition(":")[0] for target in targets)
    values = (value for name in modules for value in vars(_import(name)).values())
    return list({id(value): value for value in values if isinstance(value, LocalOwner | RemoteOwner)}.values())


def _import(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound("module", name, f"looked for it in {here} and on the path") from None
        raise InvalidInput(field="agent", value=name, rule=f"cannot be imported: {error}") from error
    except Exception as error:  # the user's own module, which may raise anything as it is imported
        raise InvalidInput(field="agent", value=name, rule=f"cannot be imported: {type(error).__name__}: {error}") from error


def code_for(case: str | None, target: str | None, place: Place) -> tuple[Agent, Registry]:
    """Return the agent that `start` is asked for, and what its tree may need. Exactly one of the two names it."""
    if (case is None) == (target is None):
        rule = "name one of --case NAME and module:agent; cases are " + ", ".join(CASES)
        raise InvalidInput(field="agent", value=target or case, rule=rule)
    agents = list(agents_of(case, place.destination())) if case is not None else load_agents(str(target))
    return agents[0], Registry(agents)


def registry_for(targets: Iterable[str], place: Place, *, cases: Iterable[str] | None = None) -> Registry:
    """Return the agents of these modules and of these cases: all cases, where a place can have them, if none is named."""
    if cases is None:
        known = registry(place.destination()) if place.artifacts is not None else Registry()
    else:
        known = Registry(agent for case in cases for agent in agents_of(case, place.destination()))
    for target in targets:
        for agent in load_agents(target):
            known.add(agent)
    return known


def check_code(run: Run, known: Registry) -> None:
    """Raise unless the run's agent is known here and bound as the run was (RR-40)."""
    if run.agent not in known.names:
        raise NotFound("agent", run.agent, f"it is no built-in case; name its code: quiesce resume {run.id} module:agent")
    check_bindings(run, known.get(run.agent))


def read_input(text: str | None, agent: Agent) -> bytes:
    """Return the stored form of a run's input, from `--input JSON`: a list of arguments, an object of named ones, or one.

    Raises `InvalidInput` that names what does not fit the agent's parameters, before anything is stored.
    """
    try:
        value = json.loads(text) if text is not None else []
    except ValueError as error:
        raise InvalidInput(field="input", value=text, rule=f"is not JSON: {error}") from None
    args = value if isinstance(value, list) else [] if isinstance(value, dict) else [value]
    kwargs = value if isinstance(value, dict) else {}
    signature = inspect.signature(agent.fn)
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        parameters = ", ".join(list(signature.parameters)[1:]) or "nothing"
        raise InvalidInput(field="input", value=text, rule=f"does not fit {agent.name}({parameters}): {error}") from None
    decode_arguments(agent.fn, args, kwargs, skip=1)
    return encode({"args": args, "kwargs": kwargs}, field="input")
