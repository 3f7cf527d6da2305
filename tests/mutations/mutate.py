"""Mutations of files: of their bytes, and of the values in their JSON; equal seeds make equal mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**7,
    10**18,
    -(10**40),
    2**63,
    1e308,
    float("nan"),
    "",
    "x" * 10_000,
    "name\nVERIFIED: all is well",
    "\x1b[2K\rVERIFIED",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\u202eDEIFIREV",
    "nul\0",
    "\ud800",
    "../../etc/passwd",
    "%s{}{0.__class__}",
    "<script>alert(1)</script>",
    [],
    {},
    [[]] * 1000,
    list(range(5000)),
    {"a": {"b": {"c": []}}},
)
"""Values that are put in the place of others."""

_SNIPPETS = (
    b"\xff\xfe",
    b"\x00",
    b"\xed\xa0\x80",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5000,
    b"1e999999",
    b"-0",
    b'"\\ud800"',
    b"\r\n",
    b"NaN",
    b"'",
    b'"',
    b"=",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to three mutations; JSON is changed in its values as often as in its bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _of_values(data, rng) if rng.random() < 0.5 else rng.choice(_BYTES)(data, rng)
    return data


def _of_values(data: bytes, rng: random.Random) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return rng.choice(_BYTES)(data, rng)
    places = list(_places(document))
    if not places:
        return data
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 10, 1000)))
        case 1:
            holder[f"{key}{rng.choice(('', ' ', 'x', chr(0x202E)))}"] = holder[key]
        case 2:
            other, its = rng.choice(places)
            holder[key] = other[its]
        case _:
            holder[key] = rng.choice(HOSTILE)
    try:
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # a place that was put into itself
        return data


def _places(value: Any) -> Any:
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, own in list(found):
        yield value, key
        yield from _places(own)


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\0"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    return data[:low] + data[high:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    return data[:high] + data[low:high] * rng.choice((1, 2, 50)) + data[high:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_SNIPPETS) + data[at:]


def _replace_number(data: bytes, rng: random.Random) -> bytes:
    digits = [at for at, one in enumerate(data) if 48 <= one <= 57]
    if not digits:
        return _insert(data, rng)
    at = rng.choice(digits)
    return data[:at] + rng.choice((b"-1", b"0", b"999999", b"1" * 40, b"7" * 5000, b"1e9")) + data[at + 1 :]


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    low = rng.randrange(len(data) + 1)
    return low, min(len(data), low + rng.choice((1, 2, 8, 64, 512)))


_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _cut,
    _truncate,
    _repeat,
    _insert,
    _replace_number,
)
