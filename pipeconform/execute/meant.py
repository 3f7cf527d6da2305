"""What was probably meant by a name that an adapter's code gets wrong."""

from __future__ import annotations

import dataclasses
import re
import sys
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pipeconform.adapter
import pipeconform.wrapper
from pipeconform.suggestions import hint, nearest

__all__ = ["meant_by", "meant_in_value"]

_IMPORTED = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_ARGUMENT = re.compile(r"^(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_VALUE = re.compile(r"Invalid enum value '(.*)' - at `\w+\.(.+)`")


def meant_by(error: BaseException) -> str:
    """The names nearest to one that an exception is about, as the end of its message; empty if there are none."""
    near: tuple[str, ...] = ()
    text = str(error)
    if "Did you mean" in text:
        return ""
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        near = nearest(error.name, _public(error.obj))
    elif isinstance(error, ImportError) and (found := _IMPORTED.search(text)) and found[2] in sys.modules:
        near = nearest(found[1], _public(sys.modules[found[2]]))
    elif isinstance(error, TypeError) and (found := _ARGUMENT.match(text)):
        kind = getattr(pipeconform.adapter, found[1], None) or getattr(pipeconform.wrapper, found[1], None)
        if kind is not None and dataclasses.is_dataclass(kind):
            near = nearest(found[2], [one.name for one in dataclasses.fields(kind)])
    return hint(near)


def meant_in_value(text: str, kind: type) -> str:
    """The values that the field of `kind` takes to which a decoder's message refers, as its end."""
    if "Expected `array`" in text:
        return '; a tuple with one element is written ("x",)'
    found = _VALUE.search(text)
    if found is None:
        return ""
    known = _values(kind, found[2].split("."))
    near = nearest(found[1], known)
    return hint(near) or f"; known: {', '.join(known)}"


def _values(kind: Any, path: list[str]) -> list[str]:
    """The values of the enumeration or literal type at a path of fields."""
    for one in path:
        inner = [*_leaves(get_type_hints(kind).get(one.partition("[")[0]))]
        if len(path) > 1 and (structs := [leaf for leaf in inner if dataclasses.is_dataclass(leaf)]):
            return _values(structs[0], path[1:])
        return [value for leaf in inner for value in _members(leaf)]
    return []


def _leaves(hint: Any) -> list[Any]:
    """The types in a type, without tuples, sets and unions around them."""
    if get_origin(hint) is Literal or not get_args(hint):
        return [hint]
    return [leaf for inner in get_args(hint) for leaf in _leaves(inner)]


def _members(leaf: Any) -> list[str]:
    if isinstance(leaf, type) and issubclass(leaf, Enum):
        return [str(one.value) for one in leaf]
    return [str(one) for one in get_args(leaf)] if get_origin(leaf) is Literal else []


def _public(owner: object) -> list[str]:
    return [one for one in dir(owner) if not one.startswith("_")]
