"""Frozen dataclasses to JSON values and back, with errors that name the field.

A record is a dataclass whose fields are numbers, strings, booleans, enums, paths, mappings, tuples
of any length (``tuple[int, ...]``) and other records, or ``None`` where the type says so. Its
fields are its JSON keys. A key that cannot be a Python name is given in the field's metadata::

    @dataclass(frozen=True)
    class Answer:
        label: str = field(metadata={"key": "class"})

Readers ignore unknown keys and convert nothing silently: ``"3"`` is not a number, nor is ``true``.
Fields with a default may be missing. What ``__post_init__`` refuses with `ValueError` is reported
like a wrong type.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

if TYPE_CHECKING:  # imported late: it costs a board more time than the rest of the start
    from cattrs import Converter

__all__ = ["from_json", "to_json"]

_T = TypeVar("_T")


def to_json(record: Any) -> Any:
    """Return a record as JSON values: a dictionary with a list for every tuple."""
    return _converter().unstructure(record)


def from_json(
    kind: type[_T], data: object, where: str = "", *, error: Callable[[str], Exception] = ValueError
) -> _T:
    """Read a record from JSON values.

    Args:
        kind: The dataclass, or any type that a field may have.
        data: What `json.loads` returned.
        where: Start of the error's message, such as ``manifest.json``.
        error: Makes the exception from its message.

    Raises:
        Exception: What `error` makes; for example
            ``manifest.json: splits[0].features.scale must be a number, not 'x'``.
    """
    try:
        return _converter().structure(data, kind)
    except Exception as problem:  # cattrs raises whatever a constructor raises
        path, text = _explain(problem)
        raise error(f"{where}: {path}{text}" if where else f"{path}{text}") from None


class _WrongTypeError(ValueError):
    """A value of another type than the field's; continues a sentence about the field."""

    def __init__(self, wanted: str, value: object) -> None:
        super().__init__(f"must be {wanted}, not {value!r:.60}")


def _exactly(kind: type, wanted: str) -> Callable[[Any, Any], Any]:
    """Return a hook that takes values of one type; ``True`` is not a whole number."""

    def read(value: Any, _kind: Any) -> Any:
        if type(value) is not kind:
            raise _WrongTypeError(wanted, value)
        return value

    return read


def _number(value: Any, _kind: Any) -> float:
    if type(value) not in (int, float):
        raise _WrongTypeError("a number", value)
    if not math.isfinite(value):
        raise _WrongTypeError("a finite number", value)
    return float(value)


@cache
def _converter() -> Converter:
    from cattrs import Converter
    from cattrs.cols import is_mapping, is_sequence, list_structure_factory
    from cattrs.gen import (
        make_dict_structure_fn,
        make_dict_unstructure_fn,
        make_mapping_structure_fn,
        override,
    )

    def renamed(kind: Any) -> Any:
        fields = dataclasses.fields(kind)
        return {f.name: override(rename=f.metadata["key"]) for f in fields if "key" in f.metadata}

    def is_record(kind: Any) -> bool:
        return isinstance(kind, type) and dataclasses.is_dataclass(kind)

    def is_tuple(kind: Any) -> bool:
        return kind is tuple or getattr(kind, "__origin__", None) is tuple

    def read_record(kind: Any, converter: Converter) -> Any:
        read = make_dict_structure_fn(kind, converter, **renamed(kind))
        return _checked(Mapping, "an object", read)

    def read_mapping(kind: Any, converter: Converter) -> Any:
        if kind in (dict, Mapping) or Any in get_args(kind)[1:]:
            return _checked(Mapping, "an object", lambda value, _: dict(value))
        read = make_mapping_structure_fn(kind, converter, structure_to=dict)
        return _checked(Mapping, "an object", read)

    def read_list(kind: Any, converter: Converter) -> Any:
        return _checked((list, tuple), "a list", list_structure_factory(kind, converter))

    def read_tuple(kind: Any, converter: Converter) -> Any:
        items: Any = list[get_args(kind)[0]]  # type: ignore[misc]
        read = list_structure_factory(items, converter)
        return _checked((list, tuple), "a list", lambda value, to: tuple(read(value, to)))

    made = Converter(unstruct_collection_overrides={tuple: list, Mapping: dict})
    text = _exactly(str, "a string")
    made.register_structure_hook(bool, _exactly(bool, "true or false"))
    made.register_structure_hook(int, _exactly(int, "a whole number"))
    made.register_structure_hook(float, _number)
    made.register_structure_hook(str, text)
    made.register_structure_hook_factory(is_record)(read_record)
    made.register_structure_hook_factory(is_mapping)(read_mapping)
    made.register_structure_hook_factory(is_sequence)(read_list)
    made.register_structure_hook_factory(is_tuple)(read_tuple)
    made.register_unstructure_hook_factory(is_record)(
        lambda kind: make_dict_unstructure_fn(kind, made, **renamed(kind))
    )
    made.register_structure_hook(Path, lambda value, _: Path(text(value, str)))
    made.register_unstructure_hook(Path, str)
    return made


def _checked(allowed: Any, wanted: str, read: Callable[[Any, Any], Any]) -> Any:
    """Return `read` behind a check of the value's own type."""

    def check(value: Any, kind: Any) -> Any:
        if not isinstance(value, allowed):
            raise _WrongTypeError(wanted, value)
        return read(value, kind)

    return check


def _explain(problem: BaseException) -> tuple[str, str]:
    """Return the path of the first bad field, and what is wrong with it."""
    path = ""
    while isinstance(problem, ExceptionGroup):
        kind, problem = getattr(problem, "cl", None), problem.exceptions[0]
        note = next((n for n in getattr(problem, "__notes__", ()) if hasattr(n, "type")), None)
        if (name := getattr(note, "name", None)) is not None:
            keys = {f.name: f.metadata.get("key", f.name) for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
            path = f"{path}.{keys[name]}"
            if isinstance(problem, KeyError) and problem.args == (keys[name],):
                return path.lstrip("."), " is missing"
        elif note is not None:
            path += f"[{note.index}]" if isinstance(note.index, int) else f".{note.index}"
    path = path.lstrip(".")
    if isinstance(problem, _WrongTypeError):
        return path or "the content", f" {problem}"
    return path, f": {problem}" if path else str(problem)
