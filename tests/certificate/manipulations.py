"""Manipulations of a package: every field of every file changed, deleted, repeated, or taken from another package.

Whoever manipulates a package makes its manifest right again, which is done here by leaving it out.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeconform.certificate.contents import (
    BADGE,
    CANARIES,
    CERTIFICATE,
    ENVIRONMENT,
    JUDGED,
    PAGE,
    RESULT,
    encoded,
)

__all__ = ["Manipulation", "fields_changed", "files_changed", "files_exchanged", "sealed"]

DATA = (CERTIFICATE, RESULT, ENVIRONMENT, CANARIES, JUDGED)
_BY_NAME = {"counts", "microbatches", "rules", "variables", "switches", "packages", "promises", "default"}
"""Objects whose keys are data."""
_INSTANCES = 2
"""Of the places with one path in the schema, those that are changed: the first, and the last."""


@dataclass(frozen=True)
class Manipulation:
    """One change, and what the files are afterwards."""

    field: str
    """The file, and the path in its schema."""
    how: str
    make: Callable[[], Mapping[str, bytes]]
    """Of many manipulations few may be tried: those that are not cost nothing."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """All files of the package."""
        return self.make()

    def __str__(self) -> str:
        return f"{self.field}: {self.how}"


def fields_changed(files: Mapping[str, bytes], names: tuple[str, ...] = DATA) -> Iterator[Manipulation]:
    """Every field of some JSON files changed to other values, plausible and implausible."""
    for name in names:
        data = json.loads(files[name])
        places: dict[str, list[tuple[list[Any], Any]]] = {}
        for path, schema, value in _walk(data, [], ""):
            places.setdefault(schema, []).append((path, value))
        for schema, found in places.items():
            values = [value for _, value in found]
            for path, value in found[:: max(1, len(found) - 1)][:_INSTANCES]:
                elsewhere = next((one for one in values if one != value), value)
                for how, other in _others(value, elsewhere):
                    if json.dumps(other) == json.dumps(value):
                        continue
                    field = f"{name}: {schema}".rstrip(": ")
                    yield Manipulation(field, how, partial(_changed, files, name, data, path, other))


def files_changed(files: Mapping[str, bytes]) -> Iterator[Manipulation]:
    """Files deleted, added, renamed, exchanged with each other, and texts changed."""
    cases = [name for name in files if name.startswith("cases/")]
    names = [
        *DATA,
        PAGE,
        BADGE,
        cases[0],
        cases[-1],
        *(name for name in files if name[:5] in ("adapt", "logs/")),
    ]
    for name in names:
        less = {key: data for key, data in files.items() if key != name}
        yield _manipulation(_folder(name), "deleted", less)
        yield _manipulation(_folder(name), "renamed", {**less, f"x{name}": files[name]})
        yield _manipulation(_folder(name), "emptied", {**files, name: b""})
        yield _manipulation(_folder(name), "a line more", {**files, name: files[name] + b"\n"})
        yield _manipulation(_folder(name), "not text", {**files, name: b"\xff\xfe" + files[name]})
        yield _manipulation(_folder(name), "null", {**files, name: b"null"})
        yield _manipulation(_folder(name), "copied beside", {**files, f"{name}.copy": files[name]})
    first, second = cases[0], cases[1]
    yield _manipulation("cases", "two exchanged", {**files, first: files[second], second: files[first]})
    yield _manipulation("cases", "one in the place of another", {**files, first: files[second]})
    yield _manipulation("files", "one more", {**files, "notes.txt": b"trust me"})
    yield _manipulation("files", "a log more", {**files, "logs/other.txt": b"trust me"})
    yield _manipulation("files", "an adapter more", {**files, "adapter/other.py": b"pass"})
    for name in DATA:
        twice = files[name].replace(b"{", b'{"format": 1, "format": 1, ', 1)
        yield _manipulation(name, "a key twice", {**files, name: twice})


def files_exchanged(files: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[Manipulation]:
    """Each file, and each pair of files, of another package."""
    for name in DATA:
        yield _manipulation(name, "of another package", {**files, name: other[name]})
        for second in DATA[DATA.index(name) + 1 :]:
            taken = {name: other[name], second: other[second]}
            yield _manipulation(f"{name} and {second}", "of another package", {**files, **taken})


def sealed(one: Manipulation, seal: Any) -> Manipulation:
    """The same, with what the certificate derives from other files made right again by `seal`, too."""
    return Manipulation(one.field, f"{one.how}, sealed", lambda: seal(one.files))


def _manipulation(field: str, how: str, files: Mapping[str, bytes]) -> Manipulation:
    return Manipulation(field, how, lambda: files)


def _walk(value: Any, path: list[Any], schema: str) -> Iterator[tuple[list[Any], str, Any]]:
    yield path, schema, value
    if isinstance(value, dict):
        named = schema.rpartition(".")[2] in _BY_NAME
        for key, inner in value.items():
            below = "*" if named else key
            yield from _walk(inner, [*path, key], f"{schema}.{below}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, [*path, index], f"{schema}[]")


def _others(value: Any, elsewhere: Any) -> Iterator[tuple[str, Any]]:
    yield "null", None
    if elsewhere != value:
        yield "as elsewhere", elsewhere
    match value:
        case bool():
            yield "turned", not value
            yield "a number", int(value)
        case int():
            yield from (("one more", value + 1), ("one less", value - 1), ("zero", 0), ("negative", -5))
            yield from (("large", value + 10**6), ("99", 99), ("huge", 10**25), ("text", str(value)))
        case float():
            yield from (("five", 5.0), ("negative", -1.5), ("a little more", value + 0.01), ("text", "x"))
        case str():
            yield from (("blank", ""), ("longer", f"{value}x"), ("another", "other"), ("a number", 3))
            yield from (
                ("escaped", f"{value}\x1b[2K"),
                ("shorter", value[:-1]),
                ("in capitals", value.upper()),
            )
        case list():
            yield from (("emptied", []), ("without the first", value[1:]), ("without the last", value[:-1]))
            yield from (("the first twice", value[:1] + value), ("reversed", value[::-1]))
            yield from (("the last again", value + value[-1:]), ("an object", {}), ("text", "x"))
        case dict():
            yield "emptied", {}
            yield "one more", {**value, "other": 1}
            for key in value:
                yield f"without {key}", {name: inner for name, inner in value.items() if name != key}
        case None:
            yield from (("zero", 0), ("text", "x"), ("a list", []), ("an object", {}), ("half", 0.5))


def _changed(
    files: Mapping[str, bytes], name: str, data: Any, path: list[Any], other: Any
) -> Mapping[str, bytes]:
    return {**files, name: encoded(_with(data, path, other))}


def _with(data: Any, path: list[Any], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(data)
    changed[path[0]] = _with(data[path[0]], path[1:], value)
    return changed


def _folder(name: str) -> str:
    return name.partition("/")[0] if "/" in name else name
