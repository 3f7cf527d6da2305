"""What must be changed in a file of expectations before a run passes its gate, by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.report.result import Result

__all__ = ["RequiredChange", "required_changes"]

_PLACE = re.compile(r"^(?P<label>.+?:(?P<line>\d+)): (?P<text>.+)$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RequiredChange:
    """One thing that is wrong with the file."""

    text: str
    label: str = ""
    """The entry's place, such as ``pipeconform-expectations.toml:12``; empty if the text names none."""
    line: int = 0
    """The line of the entry; 0 without a `label`."""


def required_changes(result: Result) -> Iterator[RequiredChange]:
    """What the gate of a run found wrong with its expectations; nothing if it had none."""
    problems = () if result.expectations is None else result.expectations.problems
    for text in problems:
        found = _PLACE.match(text)
        if found is None:
            yield RequiredChange(text=text)
        else:
            yield RequiredChange(text=found["text"], label=found["label"], line=int(found["line"]))
