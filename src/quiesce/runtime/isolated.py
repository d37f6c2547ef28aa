"""The far side of an isolated tool: what runs in the child process, and what crosses to it.

Only JSON crosses. Arguments are decoded here by the tool's own annotations, so an isolated tool is written like any other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import msgspec

from quiesce.domain.canonical import parse
from quiesce.domain.errors import NotFound
from quiesce.domain.ids import Fence, Position, RunId
from quiesce.domain.instant import Instant
from quiesce.runtime.codec import decode_arguments, encode

ISOLATED: Final = "quiesce.runtime.isolated:invoke"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a tool is told about its call. Pass `key` on to the destination: it is the same on every try.

    `fence` grows with every holder of the run: a destination that remembers the highest it has seen can refuse the late
    request of a dead worker. `deadline_at`: the run's own, in microseconds since the epoch, if it has one.
    """

    key: str
    run_id: RunId
    operation: Position
    fence: Fence
    try_number: int
    deadline_at: Instant | None


def target_of(fn: Callable[..., object]) -> str:
    """Return `module:qualname` of a function, with the file's path where the module is the program itself."""
    module = fn.__module__
    if module == "__main__":
        module = str(Path(str(sys.modules["__main__"].__file__)).resolve())
    return f"{module}:{fn.__qualname__}"


def invoke(target: str, args: Sequence[object], kwargs: Mapping[str, object], call: Mapping[str, object] | None) -> object:
    """Call the tool in this process and return its result as plain JSON values."""
    module, _, qualname = target.partition(":")
    fn = _find(module, qualname)
    positional, keyword = decode_arguments(fn, args, kwargs)
    if call is not None:
        keyword["call"] = msgspec.convert(call, Call)
    return parse(encode(fn(*positional, **keyword), field="result"))


def _find(module: str, qualname: str) -> Callable[..., object]:
    found: object = _load(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    declared = getattr(found, "fn", found)  # the name may be bound to the declared tool rather than to its function
    if not callable(declared):
        raise NotFound("function", f"{module}:{qualname}")
    return cast("Callable[..., object]", declared)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("quiesce_isolated_tool", path)
    if spec is None or spec.loader is None:
        raise NotFound("module", str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
