"""Fills fields of an expectations file in place: comments and everything else stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pipeconform.entries import header_of
from pipeconform.gate.proposal import toml_value

__all__ = ["filled"]

_HEADER = header_of("expect")
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|\d{4}-\d{2}-\d{2})"""


def filled(text: str, entries: Iterable[int], values: Mapping[str, object], *, again: bool = False) -> str:
    """The file's text with values in the fields of the entries that begin on these lines, counted from 1.

    Fields that have a value keep it, unless they are to be filled `again`.
    """
    lines = text.splitlines()
    for number in sorted(entries, reverse=True):  # from the end: lines that are added move none of the others
        end = next((at for at in range(number, len(lines)) if _HEADER.match(lines[at])), len(lines))
        own = lines[number:end]
        for field, value in values.items():
            own = _with(own, field, toml_value(value), again=again)
        lines[number:end] = own
    return "\n".join(lines) + "\n"


def _with(lines: list[str], field: str, value: str, *, again: bool) -> list[str]:
    pattern = re.compile(rf"(\s*{field}\s*=\s*){_VALUE}")
    for at, line in enumerate(lines):
        found = pattern.match(line)
        if found is None:
            continue
        if again or found[2] in ('""', "''"):
            return [*lines[:at], f"{found[1]}{value}{line[found.end() :]}", *lines[at + 1 :]]
        return lines
    return [f"{field} = {value}", *lines]
