"""What exported cases need of msgspec, in plain Python: classes with fields, equality and `replace`."""

from __future__ import annotations

import inspect
import types
from typing import Any, ClassVar, Self

__all__ = ["Struct", "json", "structs"]


class Struct:
    """Fields are the annotated names; all but keyword arguments, immutability aside."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **_: Any) -> None:
        own = [name for name in inspect.get_annotations(cls) if not name.startswith("_")]
        cls._fields = (*cls._fields, *(name for name in own if name not in cls._fields))

    def __init__(self, *positional: Any, **values: Any) -> None:
        values |= dict(zip(self._fields, positional, strict=False))
        for name in self._fields:
            if name in values:
                setattr(self, name, values.pop(name))
            elif hasattr(type(self), name):
                setattr(self, name, getattr(type(self), name))
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
        check = getattr(self, "__post_init__", None)
        if check is not None:
            check()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._values()))

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def _replaced(self, **changes: Any) -> Self:
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)


structs = types.SimpleNamespace(replace=lambda struct, **changes: struct._replaced(**changes))
json = types.SimpleNamespace(encode=lambda value: repr(vars(value)).encode())


class ValidationError(Exception):
    """Never raised here: the case was valid when it was exported."""


class DecodeError(Exception):
    """Likewise."""
