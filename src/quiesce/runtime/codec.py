"""Python values to canonical JSON and back, by the annotations of the user's own functions.

Dataclasses, `msgspec` structs, enums, dates, UUIDs and pydantic models are understood. What an agent is given is always
what was stored, decoded: the first execution and every replay see equal values, so a lossy type shows at once and not
after a crash.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence

import msgspec

from quiesce.domain.canonical import canonical, parse
from quiesce.domain.errors import InvalidInput, InvalidPayload
from quiesce.domain.limits import DEFAULT_LIMITS, Limits


def encode(value: object, *, field: str, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return canonical JSON of any supported value; raise `InvalidPayload` or `PayloadTooLarge` naming `field`."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_enc_hook, str_keys=True)
    except (TypeError, NotImplementedError, RecursionError) as error:
        raise InvalidPayload(field=field, value=type(value).__name__, rule=f"has no JSON form: {error}") from None
    return canonical(plain, field=field, limits=limits)


def decode(data: bytes, annotation: object, *, field: str) -> object:
    """Return the value, converted to `annotation` if that says anything. Raises `InvalidInput` where it does not fit."""
    value = parse(data)
    if annotation in (inspect.Parameter.empty, None, object, typing.Any) or isinstance(annotation, typing.TypeVar):
        return value
    try:
        return msgspec.convert(value, annotation, dec_hook=_dec_hook)
    except msgspec.ValidationError as error:
        raise InvalidInput(field=field, value=value, rule=f"does not fit {_name(annotation)}: {error}") from None
    except TypeError:
        return value  # an annotation that msgspec cannot read says nothing about the data


def annotations_of(fn: Callable[..., object]) -> dict[str, object]:
    """Return the resolved annotations of a function; an unresolvable one is left out."""
    try:
        return typing.get_type_hints(fn)
    except (NameError, TypeError):
        return {}


def decode_arguments(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], *, skip: int = 0
) -> tuple[list[object], dict[str, object]]:
    """Decode plain JSON arguments by the annotations of a function's parameters, from the one behind `skip` on.

    Raises `InvalidInput` naming the parameter that does not fit.
    """
    hints = annotations_of(fn)
    names = list(inspect.signature(fn).parameters)[skip:]
    named = [(names[i] if i < len(names) else f"argument {i + 1}", value) for i, value in enumerate(args)]
    return (
        [decode(canonical(value), hints.get(name), field=name) for name, value in named],
        {name: decode(canonical(value), hints.get(name), field=name) for name, value in kwargs.items()},
    )


def _name(annotation: object) -> str:
    return getattr(annotation, "__name__", str(annotation))


def _enc_hook(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise NotImplementedError(f"objects of type {type(value).__name__} are not supported")


def _dec_hook(kind: type, value: object) -> object:
    if kind is object:  # as in `dict[str, object]`: it says nothing about the data
        return value
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise NotImplementedError(f"objects of type {kind.__name__} are not supported")
