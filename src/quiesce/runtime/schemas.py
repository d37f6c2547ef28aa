"""Answer schemas: JSON Schema of a Python type, and whether a value fits one.

Who answers seldom has the code that asked, so the schema travels with the question and everybody checks by it. Understood is
what `msgspec` makes of types; a keyword that it never makes says nothing here.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from quiesce.domain.canonical import Json
from quiesce.domain.errors import InvalidInput

_DEFS: Final = "$defs"
_REF: Final = f"#/{_DEFS}/"
_FORMATS: Final[Mapping[str, Any]] = {
    "date-time": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "duration": dt.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
}
_TYPES: Final[Mapping[str, Callable[[Json], bool]]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_BOUNDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": lambda v, n: v >= n,
    "maximum": lambda v, n: v <= n,
    "exclusiveMinimum": lambda v, n: v > n,
    "exclusiveMaximum": lambda v, n: v < n,
    "multipleOf": lambda v, n: v % n == 0,
    "minLength": lambda v, n: len(v) >= n,
    "maxLength": lambda v, n: len(v) <= n,
    "pattern": lambda v, p: re.search(p, v) is not None,
    "minItems": lambda v, n: len(v) >= n,
    "maxItems": lambda v, n: len(v) <= n,
    "minProperties": lambda v, n: len(v) >= n,
    "maxProperties": lambda v, n: len(v) <= n,
}
_KIND_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys(("minItems", "maxItems"), "array"),
    **dict.fromkeys(("minProperties", "maxProperties"), "object"),
}


def schema_of(annotation: object) -> dict[str, Json]:
    """Return the JSON Schema of a type. Raises `InvalidInput` for one that has none."""
    try:
        return msgspec.json.schema(annotation, schema_hook=_schema_hook)
    except (TypeError, NotImplementedError) as error:
        raise InvalidInput(field="answer", value=annotation, rule=f"has no JSON schema: {error}") from None


def _schema_hook(kind: type) -> dict[str, Any]:
    make = getattr(kind, "model_json_schema", None)
    if not callable(make):
        raise NotImplementedError(f"type {kind.__name__} is not supported")
    schema: dict[str, Any] = make()
    return schema


def check_fits(value: Json, schema: Json, *, field: str) -> None:
    """Raise `InvalidInput` that says where and why, unless `value` fits the schema."""
    defs = schema.get(_DEFS) if isinstance(schema, dict) else None
    wrong = _misfit(value, schema, field, defs if isinstance(defs, dict) else {})
    if wrong is not None:
        where, rule = wrong
        raise InvalidInput(field=where, value=value, rule=rule)


def _misfit(value: Json, schema: Json, at: str, defs: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return where a value breaks which rule; None if it fits."""
    if not isinstance(schema, dict):
        return None
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith(_REF):
        return _misfit(value, defs.get(ref.removeprefix(_REF)), at, defs)
    options = schema.get("anyOf")
    if isinstance(options, list):
        misfits = [_misfit(value, option, at, defs) for option in options]
        if None not in misfits:
            return (at, "must be one of: " + "; or ".join(m[1] for m in misfits if m))
    if "const" in schema and not _is_same(value, schema["const"]):
        return at, f"must be {schema['const']!r}"
    if isinstance(among := schema.get("enum"), list) and not any(_is_same(value, each) for each in among):
        return at, "must be one of " + ", ".join(repr(each) for each in among)
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds] if isinstance(kinds, str) else []
    if names and not any(_TYPES[str(name)](value) for name in names if name in _TYPES):
        return at, "must be of type " + " or ".join(str(name) for name in names)
    return _bounds(value, schema, at) or _within(value, schema, at, defs)


def _is_same(value: Json, other: Json) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _bounds(value: Json, schema: Mapping[str, Json], at: str) -> tuple[str, str] | None:
    for keyword, holds in _BOUNDS.items():
        if keyword in schema and _TYPES[_KIND_OF[keyword]](value) and not holds(value, schema[keyword]):
            return at, f"breaks {keyword} {schema[keyword]!r}"
    form = schema.get("format")
    if isinstance(value, str) and isinstance(form, str) and form in _FORMATS:
        try:
            msgspec.convert(value, _FORMATS[form])
        except msgspec.ValidationError:
            return at, f"must be text of format {form}"
    return None


def _within(value: Json, schema: Mapping[str, Json], at: str, defs: Mapping[str, Json]) -> tuple[str, str] | None:
    if isinstance(value, list):
        first = schema.get("prefixItems")
        heads = first if isinstance(first, list) else []
        rest = schema.get("items")
        if rest is False and len(value) > len(heads):
            return at, f"must hold at most {len(heads)} items"
        pairs = [(f"{at}[{n}]", item, heads[n] if n < len(heads) else rest) for n, item in enumerate(value)]
    elif isinstance(value, dict):
        named = schema.get("properties")
        known = named if isinstance(named, dict) else {}
        needed = schema.get("required")
        missing = [str(n) for n in (needed if isinstance(needed, list) else []) if n not in value]
        if missing:
            return at, "must have " + ", ".join(missing)
        others = schema.get("additionalProperties")
        unknown = [name for name in value if name not in known]
        if others is False and unknown:
            return at, "must not have " + ", ".join(unknown)
        pairs = [(f"{at}.{name}", item, known.get(name, others)) for name, item in value.items()]
    else:
        return None
    return next((wrong for where, item, rule in pairs if (wrong := _misfit(item, rule, where, defs)) is not None), None)
