"""A validator for what our schemas use of JSON Schema 2020-12; other words are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
_IGNORED = {"$schema", "$defs", "title", "description"}
_KNOWN = _IGNORED | {
    "$ref", "type", "properties", "required", "items", "oneOf", "enum", "const", "pattern",
    "minimum", "maximum", "maxProperties", "additionalProperties",
}  # fmt: skip


def problems(value: Any, schema: Mapping[str, Any], *, strict: bool = False) -> list[str]:
    """Return what is wrong with `value`; with `strict`, keys that the schema does not name too."""
    return list(_problems(value, schema, schema, "$", strict))


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _problems(value, schema, root, at, strict):
    assert set(schema) <= _KNOWN, f"the validator does not know {set(schema) - _KNOWN}"
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "oneOf" in schema:
        ways = [list(_problems(value, s, root, at, strict)) for s in schema["oneOf"]]
        if sum(not w for w in ways) != 1:
            yield f"{at}: fits {sum(not w for w in ways)} of {len(ways)} ways: {ways}"
        return
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{at}: {value!r} is no {' or '.join(kinds)}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"{at}: {value} is too small"
        if value > schema.get("maximum", value):
            yield f"{at}: {value} is too large"
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from _problems(item, schema["items"], root, f"{at}[{i}]", strict)
    if isinstance(value, dict):
        yield from _of_object(value, schema, root, at, strict)


def _of_object(value, schema, root, at, strict):
    named = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{at}: lacks {key}"
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{at}: has {len(value)} keys"
    for key, inner in value.items():
        if key in named:
            yield from _problems(inner, named[key], root, f"{at}.{key}", strict)
        elif "additionalProperties" in schema:
            yield from _problems(inner, schema["additionalProperties"], root, f"{at}.{key}", strict)
        elif strict and named:
            yield f"{at}: {key} is not in the schema"
