"""Recorded evidence with one fault: every recorded field is changed in turn, according to its type.

Nothing here knows a field by name. `spoils` walks the msgspec structs by their annotations and changes what it meets:
a number by one bit, a tensor to another dtype or shape, a sequence by one more or one less, a dictionary by a key.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import torch

from pipeconform.observe.array import Array
from pipeconform.observe.observation import Structure

Step = int | str
Path = tuple[Step, ...]
"""The way to a value: names of fields, indices, keys of dictionaries."""


class Allowed:
    """The changes of a record that are not faults; subclasses allow more."""

    def bound(self, path: Path) -> Array | None:
        """The largest difference of a tensor that is not a fault; None if bits must be equal."""
        return None

    def least(self, field: str) -> int:
        """The smallest difference of a number that is a fault."""
        return 1

    def more(self, kind: Any, path: Path) -> tuple[Any, ...]:
        """The extra elements to try in the sequence at `path`."""
        return (example(kind),)


@dataclass(frozen=True)
class Spoil:
    """One change of a record."""

    field: str
    """The field that was changed, as ``StepShown.gradients``; of a tensor or a structure the field it stands in."""
    how: str
    path: Path
    value: Any
    """What stands at `path` now."""

    def apply(self, record: Any) -> Any:
        """The record with the change."""
        return replaced(record, self.path, self.value)

    def __str__(self) -> str:
        return f"{self.field} {self.how} at {'.'.join(map(str, self.path))}"


def at(record: Any, path: Path) -> Any:
    """What stands at `path`."""
    for step in path:
        record = getattr(record, step) if isinstance(record, msgspec.Struct) else record[step]
    return record


def replaced(record: Any, path: Path, value: Any) -> Any:
    """`record` with another value at `path`."""
    if not path:
        return value
    step, *rest = path
    if isinstance(record, msgspec.Struct):
        assert isinstance(step, str)
        return msgspec.structs.replace(record, **{step: replaced(getattr(record, step), tuple(rest), value)})
    if isinstance(record, Mapping):
        return {**record, step: replaced(record[step], tuple(rest), value)}
    assert isinstance(step, int)
    return (*record[:step], replaced(record[step], tuple(rest), value), *record[step + 1 :])


def spoils(record: msgspec.Struct, allowed: Allowed | None = None) -> Iterator[Spoil]:
    """Every change of one value in `record`."""
    yield from _of_struct(record, (), allowed or Allowed())


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The annotations of a struct's fields."""
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def every_field(kind: type[msgspec.Struct]) -> set[str]:
    """Names of all fields of a struct and of the structs inside it, as ``StepShown.gradients``."""
    found: set[str] = set()
    waiting, seen = [kind], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for name, hint in fields_of(one).items():
            found.add(f"{one.__name__}.{name}")
            waiting += [inner for inner in _structs_in(hint) if inner not in _VALUES]
    return found


_VALUES = (Array, Structure)
"""Structs that are values themselves: they are spoilt for the field in which they stand."""


def _structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs_in(inner)


# ------------------------------------------------------------------------------------------- by annotation


def _of_struct(value: msgspec.Struct, path: Path, allowed: Allowed) -> Iterator[Spoil]:
    for name, hint in fields_of(type(value)).items():
        field = f"{type(value).__name__}.{name}"
        yield from _of(getattr(value, name), hint, field, (*path, name), allowed)


def _of(value: Any, hint: Any, field: str, path: Path, allowed: Allowed) -> Iterator[Spoil]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (kind,) = [one for one in inner if one is not type(None)]
        if value is None:
            yield Spoil(field, "unexpected", path, example(kind))
            return
        yield Spoil(field, "missing", path, None)
        yield from _of(value, kind, field, path, allowed)
    elif hint is Array:
        yield from _of_array(value, field, path, allowed)
    elif hint is Structure:
        yield from _of_structure(value, field, path, allowed)
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield from _of_struct(value, path, allowed)
    elif origin is tuple and inner[-1:] == (Ellipsis,):
        yield from _of_sequence(value, inner[0], field, path, allowed)
    elif origin is tuple:
        for index, (one, kind) in enumerate(zip(value, inner, strict=True)):
            yield from _of(one, kind, field, (*path, index), allowed)
    elif origin is dict:
        yield from _of_mapping(value, *inner, field, path, allowed)
    elif origin is Literal:
        yield Spoil(field, "another word", path, next(one for one in inner if one != value))
    elif hint is bool:
        yield Spoil(field, "turned round", path, not value)
    elif hint in (int, float):
        least = allowed.least(field)
        yield Spoil(field, "one more", path, value + least)
        yield Spoil(field, "one less", path, value - least)
        if least > 1:
            yield Spoil(field, "within the bound", path, value + least - 1)
    elif hint is str:
        yield Spoil(field, "other words", path, f"{value}x")
    else:
        raise AssertionError(f"{field} is of type {hint}: say in tests/judge/spoiling.py how to spoil it")


def _of_sequence(
    value: tuple[Any, ...], kind: Any, field: str, path: Path, allowed: Allowed
) -> Iterator[Spoil]:
    for index in range(len(value)):
        yield Spoil(field, "one less", path, (*value[:index], *value[index + 1 :]))
    for one in (value[-1],) if value else allowed.more(kind, path):
        yield Spoil(field, "one more", path, (*value, one))
    for index in range(1, len(value)):
        if value[index - 1] != value[index]:
            turned = (*value[: index - 1], value[index], value[index - 1], *value[index + 1 :])
            yield Spoil(field, "another order", path, turned)
    for index, one in enumerate(value):
        yield from _of(one, kind, field, (*path, index), allowed)


def _of_mapping(
    value: dict[Any, Any], key: Any, kind: Any, field: str, path: Path, allowed: Allowed
) -> Iterator[Spoil]:
    for one in value:
        yield Spoil(field, "key missing", path, {name: own for name, own in value.items() if name != one})
    strange = "strange" if key is str else next(n for n in range(len(value) + 1) if n not in value)
    more = next(iter(value.values()), None)
    yield Spoil(field, "one key more", path, {**value, strange: example(kind) if more is None else more})
    if Array in get_args(kind) and any(own is not None and own.size for own in value.values()):
        yield Spoil(field, "all twice", path, {name: _twice(own) for name, own in value.items()})
    for one, own in value.items():
        yield from _of(own, kind, field, (*path, one), allowed)


def _twice(value: Array | None) -> Array | None:
    return None if value is None else Array.of(value.tensor() * 2)


def _of_structure(value: Structure, field: str, path: Path, allowed: Allowed) -> Iterator[Spoil]:
    container = Structure(kind="tuple", items=(value,))
    yield Spoil(field, "another container", path, container)
    if value.array is not None:
        placed = None if value.placements is not None else ("R",)
        yield Spoil(field, "other placements", path, msgspec.structs.replace(value, placements=placed))
        yield from _of_array(value.array, field, (*path, "array"), allowed)
    elif value.kind == "other":
        yield Spoil(field, "other words", (*path, "text"), f"{value.text}x")
    for index, item in enumerate(value.items):
        keys = tuple(key for position, key in enumerate(value.keys) if position != index)
        items = tuple(one for position, one in enumerate(value.items) if position != index)
        yield Spoil(field, "one less", path, msgspec.structs.replace(value, keys=keys, items=items))
        yield from _of_structure(item, field, (*path, "items", index), allowed)


def _of_array(value: Array, field: str, path: Path, allowed: Allowed) -> Iterator[Spoil]:
    tensor = value.tensor()
    real = tensor.dtype.to_real()
    other = torch.float32 if real is torch.float64 else torch.float64
    yield Spoil(
        field, "dtype", path, Array.of(tensor.to(other.to_complex() if tensor.is_complex() else other))
    )
    yield Spoil(field, "shape", path, Array.of(tensor[None]))
    if not tensor.numel():
        return
    limit = allowed.bound(path)
    if limit is not None and not bool(limit.tensor().isfinite().all()):
        return  # no value is beyond it
    yield Spoil(field, "value", path, Array.of(nudged(tensor, limit, beyond=True)))
    if limit is not None and bool((limit.tensor() != 0).any()):
        inside = nudged(tensor, limit, beyond=False)
        if not torch.equal(inside, tensor):
            yield Spoil(field, "within the bound", path, Array.of(inside))


def nudged(tensor: torch.Tensor, limit: Array | None, *, beyond: bool) -> torch.Tensor:
    """The same values but for one, which is the nearest beyond its bound, or the farthest within it."""
    found = tensor.clone()
    flat = found.reshape(-1)
    bounds = None if limit is None else limit.tensor().double().reshape(-1)
    index = len(flat) - 1 if bounds is None else int(bounds.argmax())
    if not tensor.is_floating_point():
        flat[index] = ~flat[index] if tensor.dtype is torch.bool else flat[index] + 1
        return found
    if tensor.element_size() == 1:  # nothing is computed in float8: another bit is another value
        flat.view(torch.uint8)[index] ^= 1
        return found
    right, most = flat[index].double(), 0.0 if bounds is None else float(bounds[index])
    up = torch.tensor(torch.inf, dtype=tensor.dtype)
    one = (right + most).to(tensor.dtype)
    while float((one.double() - right).abs()) > most:
        one = torch.nextafter(one, -up)
    if beyond:
        while float((one.double() - right).abs()) <= most:
            one = torch.nextafter(one, up)
    flat[index] = one
    return found


def example(kind: Any) -> Any:
    """Some value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Array:
        return Array.of(torch.full((), 12345.0))
    if kind is Structure:
        return Structure.of(torch.full((), 12345.0))
    if origin in (Union, types.UnionType):
        return example(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return inner[0]
    if origin is tuple and inner[-1:] == (Ellipsis,):
        return (example(inner[0]),)
    if origin is tuple:
        return tuple(map(example, inner))
    if origin is dict:
        return {example(inner[0]): example(inner[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{name: example(hint) for name, hint in fields_of(kind).items()})
    return {int: 1, float: 1.0, str: "something", bool: True}[kind]
